"""CIFAR-100 (Krizhevsky 2009), https://www.cs.toronto.edu/~kriz/cifar.html. The classes are the fine labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo, FileLayout, RemoteFile
from celm.data.files.cifar_binary import CIFAR100, read_archive, read_batches
from celm.data.files.ensure import ensure_files
from celm.data.raw_images import RawImages

# The order of fine_label_names.txt in the archive, which is alphabetical.
_CIFAR100_CLASSES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
    dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
    leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
    otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
    road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905 - a list would take 100 lines
)
_ARCHIVE = "cifar-100-binary.tar.gz"
_ARCHIVE_SHA256 = "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"


@dataclass(frozen=True)
class Cifar100(DatasetSource):
    """Photographs (CIFAR-100), 32x32 colour, 100 classes.

    There are 50,000 training and 10,000 test images.
    """

    augment: bool = True
    """Random crops (padding 4) and flips during training."""

    defaults: ClassVar[Defaults] = Defaults(
        model="cnn",
        split="pls",
        rounds=200,
        lr=0.1,
        splits={"pls": {"max_samples": 400, "min_samples": 100}},
    )
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="cifar100",
        shape=(3, 32, 32),
        classes=100,
        licence="none stated by its makers",
        counts=((50000, 10000),),
        layouts=(
            FileLayout("batches", {name: (name, f"cifar-100-binary/{name}") for name in CIFAR100.files}),
            FileLayout("archive", {"archive": (_ARCHIVE,)}),
        ),
        remote_files=(
            RemoteFile(_ARCHIVE, f"https://www.cs.toronto.edu/~kriz/{_ARCHIVE}", 168513733, _ARCHIVE_SHA256),
        ),
        digests={_ARCHIVE: (_ARCHIVE_SHA256,)},
    )

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        if located.kind == "archive":
            train, test = read_archive(CIFAR100, located.path("archive"))
        else:
            train, test = (
                read_batches(CIFAR100, [located.path(name) for name in names])
                for names in (CIFAR100.train_files, CIFAR100.test_files)
            )
        raw = RawImages(*train, *test).validate(located.folder, self.info.classes, self.info.shape)
        return raw.to_dataset(
            self.info.name,
            _CIFAR100_CLASSES,
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
            augment=self.augment,
        )
