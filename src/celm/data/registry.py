"""The registered datasets and splits by name. Importing this module imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.registry import Registry

if TYPE_CHECKING:
    from celm.data.dataset import DatasetSource
    from celm.data.split import Split

datasets: Registry[DatasetSource] = Registry(
    "dataset",
    {
        "digits": "celm.data.sources.digits:Digits",
        "heart": "celm.data.sources.heart:Heart",
        "hapt": "celm.data.sources.hapt:Hapt",
        "fsdd": "celm.data.sources.fsdd:Fsdd",
        "mnist": "celm.data.sources.mnist:Mnist",
        "fashion_mnist": "celm.data.sources.fashion_mnist:FashionMnist",
        "cifar10": "celm.data.sources.cifar10:Cifar10",
        "cifar100": "celm.data.sources.cifar100:Cifar100",
        "svhn": "celm.data.sources.svhn:Svhn",
        "emnist": "celm.data.sources.emnist:Emnist",
        "emnist47": "celm.data.sources.emnist47:Emnist47",
        "fedisic": "celm.data.sources.fedisic:FedIsic",
        "fedisic_features": "celm.data.sources.fedisic_features:FedIsicFeatures",
        "folder": "celm.data.sources.image_folder:ImageFolder",
        "table": "celm.data.sources.table:Table",
        "hf": "celm.data.sources.hub:HubDataset",
    },
)

splits: Registry[Split] = Registry(
    "split",
    {
        "iid": "celm.data.splits.iid:Iid",
        "dirichlet": "celm.data.splits.dirichlet:Dirichlet",
        "pls": "celm.data.splits.pls:PureLabelSkew",
        "sls": "celm.data.splits.sls:StepLabelSkew",
        "maverick": "celm.data.splits.maverick:Maverick",
        "free_rider": "celm.data.splits.free_rider:FreeRider",
        "frm": "celm.data.splits.frm:FreeRiderAndMaverick",
        "natural": "celm.data.splits.natural:Natural",
    },
)
