"""Objects in place of names: the same bytes as by name, and resumed only with the same objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset, TensorDataset

import celm
from celm.data.sources.digits import Digits
from celm.data.splits.dirichlet import Dirichlet
from celm.experiment.objects import REGISTRIES
from celm.federation.build import load_dataset, resolve_defaults
from celm.models.mlp import Mlp
from celm.objectives.fedprox import FedProx
from celm.rules.fedavg import FedAvg
from celm.rules.rule import Rule

FEW = {"clients": 3, "rounds": 2, "probe": {"steps": 2}, "train": {"batch": 64}}
FILES = ("rounds.jsonl",)


@dataclass(frozen=True)
class Sized(FedAvg):
    """FedAvg under a name of its own."""

    factor: float = 1.0


def _make_local_factory() -> Callable[..., nn.Module]:
    """Return a factory that no process can import, wherever the tests are."""

    def small_net(input_shape: tuple[int, ...], classes: int, width: int = 8) -> nn.Module:
        size = int(np.prod(input_shape))
        return nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, classes))

    return small_net


small_net = _make_local_factory()


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forget all objects afterwards, as a new process would."""
    yield
    forget_objects()


def forget_objects() -> None:
    for registry in REGISTRIES.values():
        registry.objects.clear()
        registry.registered.clear()


def stop(folder: Path) -> None:
    """As if the run had been stopped after round 1."""
    for name in ("result.json", "model.safetensors", "checkpoints/round-000002.safetensors"):
        (folder / name).unlink()


def load(**settings: Any) -> Any:
    return load_dataset(resolve_defaults(celm.Experiment(**settings)))


def test_an_object_of_celm_is_saved_by_its_name() -> None:
    by_object = celm.Experiment(
        rule=FedAvg(by_size=True), split=Dirichlet(alpha=0.3), model=Mlp(widths=(8,)), clients=7,
        objective={"name": FedProx(mu=0.5)}, observe=[FedAvg()],
    )  # fmt: skip
    by_name = celm.Experiment(
        rule={"name": "fedavg", "by_size": True}, split={"name": "dirichlet", "alpha": 0.3, "clients": 7},
        model={"name": "mlp", "widths": [8]}, objective={"name": "fedprox", "mu": 0.5}, observe=["fedavg"],
    )  # fmt: skip
    assert by_object == by_name


def test_a_rule_and_a_factory_give_what_their_names_give(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match="do not save model 'small_net' and rule 'sized': .*celm.resume"
    ) as said:
        own = celm.run(celm.Experiment(rule=Sized(factor=2.0), model=small_net, **FEW), tmp_path / "own")
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    named = celm.run(
        celm.Experiment(rule="fedavg", model={"name": "mlp", "widths": [8]}, **FEW), tmp_path / "named"
    )
    assert own.accuracy == named.accuracy
    assert own.experiment.rule.options == {"factor": 2.0}
    assert (own.experiment.rule.name, own.experiment.model.name) == ("sized", "small_net")


def test_a_run_with_objects_is_read_by_all_and_resumed_with_them_only(tmp_path: Path, refused: Any) -> None:
    folder = tmp_path / "run"
    with pytest.warns(UserWarning, match="do not save"):
        run = celm.run(celm.Experiment(rule=Sized(factor=2.0), model=small_net, **FEW), folder)
    weights, records = run.model().state_dict(), (folder / "rounds.jsonl").read_bytes()
    forget_objects()
    loaded = celm.load(folder)
    assert loaded.weights == run.weights
    assert loaded.report(tmp_path / "page.html").is_file()
    with pytest.raises(celm.CelmError, match="model 'small_net' was given as an object"):
        loaded.model()
    assert torch.equal(loaded.model(small_net).state_dict()["1.weight"], weights["1.weight"])
    forget_objects()
    stop(folder)
    line = refused("run", "--resume", folder)
    assert "needs the objects that it began with: model 'small_net' and rule 'sized'" in line
    assert f"celm.resume('{folder}', model=..., rule=...)" in line
    with pytest.raises(celm.CelmError, match="rule 'sized'"):
        celm.resume(folder, model=small_net)
    with pytest.raises(celm.CelmError, match="with other settings"):
        celm.resume(folder, model=small_net, rule=Sized(factor=3.0))
    with pytest.raises(celm.CelmError, match="of rule 'sized'"):
        celm.resume(folder, model=small_net, rule=FedAvg())
    with pytest.raises(celm.CelmError, match="not given an object as split"):
        celm.resume(folder, split=Dirichlet())
    again = celm.resume(folder, model=small_net, rule=Sized(factor=2.0))
    assert (folder / "rounds.jsonl").read_bytes() == records
    assert again.finished


def test_a_module_begins_with_its_own_values_and_stays_unchanged(tmp_path: Path) -> None:
    torch.manual_seed(3)
    module = small_net((1, 8, 8), 10)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    experiment = celm.Experiment(model=module, rule="fedavg", **{**FEW, "train": {"lr": 1e-12}})
    with pytest.warns(UserWarning, match="model 'sequential'"):
        run = celm.run(experiment, tmp_path / "run")
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(torch.allclose(before[name], tensor) for name, tensor in run.model().state_dict().items())
    with torch.no_grad():
        module[1].weight.add_(1)
    assert celm.Experiment(model=module).model.object != experiment.model.object


def test_changed_code_is_said_when_a_run_is_resumed(tmp_path: Path) -> None:
    def other(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return small_net(input_shape, classes)

    other.__name__ = "small_net"
    with pytest.warns(UserWarning, match="do not save"):
        run = celm.run(celm.Experiment(model=small_net, rule="fedavg", **FEW), tmp_path / "run")
    stop(tmp_path / "run")
    forget_objects()
    with pytest.warns(UserWarning, match="model 'small_net' has changed"):
        assert celm.resume(tmp_path / "run", model=other).weights == run.weights


@pytest.mark.parametrize("form", ["arrays", "tensors", "TensorDataset", "pairs", "parts"])
def test_data_in_memory_are_those_of_the_dataset_by_name(form: str) -> None:
    known = Digits().load()
    x, y, test = known.train_inputs, known.train_labels, (known.test_inputs, known.test_labels)
    train: Any = {
        "arrays": (x.numpy(), y.numpy()),
        "tensors": (x, y),
        "TensorDataset": TensorDataset(x, y),
        "pairs": Subset(TensorDataset(x, y), range(len(x))),
        "parts": (x, [f"digit {k}" for k in y.tolist()]),
    }[form]
    found = load(dataset={"train": train, "test": test if form != "parts" else train})
    assert torch.equal(found.train_inputs, x)
    assert torch.equal(found.train_labels, y)
    assert form == "parts" or torch.equal(found.test_labels, known.test_labels)
    assert found.classes == tuple(f"digit {k}" if form == "parts" else str(k) for k in range(10))


def test_a_run_of_arrays_is_that_of_the_dataset_with_these_arrays(tmp_path: Path) -> None:
    known = Digits().load()
    data = {"train": (known.train_inputs, known.train_labels), "test": (known.test_inputs, known.test_labels)}
    settings = {
        "rule": "fedavg",
        "split": "pls",
        "train": {"batch": 64, "lr": 0.1},
        "clients": 3,
        "rounds": 2,
    }
    with pytest.warns(UserWarning, match="do not save dataset 'arrays'"):
        own = celm.run(celm.Experiment(dataset=data, **settings), tmp_path / "own")
    named = celm.run(celm.Experiment(dataset="digits", **settings), tmp_path / "named")
    assert (own.folder / "rounds.jsonl").read_bytes() == (named.folder / "rounds.jsonl").read_bytes()
    stop(own.folder)
    forget_objects()
    with pytest.raises(celm.CelmError, match="other data"):
        celm.resume(own.folder, dataset={**data, "test": (known.train_inputs, known.train_labels)})
    assert celm.resume(own.folder, dataset=data).accuracy == named.accuracy


def test_data_without_a_test_set_give_a_fifth_of_each_class() -> None:
    pixels, labels = load_digits(return_X_y=True)
    found = load(dataset=(pixels, labels))
    assert len(found.train_labels) + len(found.test_labels) == len(labels)
    share = torch.bincount(found.test_labels) / torch.from_numpy(np.bincount(labels))
    assert all(abs(share - 0.2) < 0.01)
    assert found.shape == (64,)


def test_clients_of_the_data_are_the_natural_split(tmp_path: Path) -> None:
    pixels, labels = load_digits(return_X_y=True)
    names = [("north", "south")[i % 2] for i in range(len(labels))]
    experiment = celm.Experiment(
        dataset={"train": (pixels, labels), "clients": names}, rule="fedavg", rounds=1
    )
    with pytest.warns(UserWarning, match="do not save"):
        assert list(celm.run(experiment, tmp_path / "run").weights) == ["north", "south"]


def test_bytes_are_images_between_0_and_1_with_channels_first() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 5, 6, 3), dtype=np.uint8)
    found = load(dataset={"train": (pixels, np.arange(40) % 2), "test": (pixels, np.arange(40) % 2)})
    assert found.shape == (3, 5, 6)
    assert torch.allclose(found.train_inputs[7, 2], torch.from_numpy(pixels[7, :, :, 2] / 255).float())


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ((np.zeros((5, 2)), np.zeros(4)), "5 inputs but 4 labels"),
        ((np.zeros((5, 2)), np.zeros(5)), "only one class"),
        ((np.full((5, 2), np.nan), np.arange(5)), "sample 0 are not finite"),
        ((np.zeros((5, 2)), np.linspace(0, 1, 5)), "labels are float64"),
        ((np.array([["a"]]), [1]), "not numbers"),
        ((np.zeros((5, 2)), np.eye(5)), r"labels have shape \[5, 5\]"),
        ((np.zeros((5, 2)),), r"not a pair \(x, y\)"),
        ({"train": (np.zeros((4, 2)), [0, 1, 0, 1]), "test": (np.zeros((1, 2)), [2])}, "class '2'"),
        ({"train": (np.zeros((4, 2)), [0, 1, 0, 1]), "tset": 1}, "unknown part 'tset'"),
        ({"train": (np.zeros((4, 2)), [0, 1, 0, 1]), "clients": ["a"]}, "1 clients but 4"),
        (object(), "unsupported type"),
    ],
)
def test_wrong_data_are_one_line(dataset: Any, message: str) -> None:
    with pytest.raises(celm.CelmError, match=message) as error:
        celm.Experiment(dataset=dataset)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:run folders do not save")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": Dirichlet()}, "rule: Dirichlet is not a Rule"),
        ({"split": {"name": FedAvg()}}, "split: FedAvg is not a Split"),
        ({"model": nn.Linear(3, 2)}, "model 'linear' fails on inputs"),
        ({"model": lambda: 3}, "model 'lambda' returned int"),
        ({"model": {"name": nn.Linear(64, 10), "width": 3}}, "module without settings"),
    ],
)
def test_wrong_objects_are_one_line(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(celm.CelmError, match=message) as error:
        celm.run(celm.Experiment(**settings), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_methods_of_a_comparison_are_objects_or_names(tmp_path: Path) -> None:
    methods = [Sized(), Sized(factor=2.0), (Sized(), "fedrs"), FedProx(mu=0.5), "fedavg"]
    with pytest.warns(UserWarning, match="celm.compare with the same objects") as said:
        result = celm.compare(methods, [1], out=tmp_path / "out", **FEW)
    assert len(said) == 1
    labels = ["sized", "sized factor=2.0", "sized+fedrs", "fedprox mu=0.5", "fedavg"]
    frame = result.to_dataframe().set_index("method")["accuracy"]
    assert sorted(frame.index) == sorted(labels)
    assert frame["sized"] == frame["sized factor=2.0"] == frame["fedavg"]
    with pytest.raises(celm.CelmError, match="without duplicates"):
        celm.compare([Sized(), Sized()], [1], out=tmp_path / "other", **FEW)
    assert issubclass(Sized, Rule)


class Rows:
    """The part of a Hugging Face dataset that celm reads, for machines without the library."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns
        self.features = dict.fromkeys(columns)
        self.column_names = list(columns)

    def with_format(self, _: None) -> dict[slice, Any] | Any:
        return self

    def __getitem__(self, _: slice) -> dict[str, list[Any]]:
        return self.columns


@pytest.mark.parametrize("library", ["datasets", "own"])
def test_columns_are_inputs_labels_and_clients(library: str) -> None:
    pixels, labels = load_digits(return_X_y=True)
    columns = {
        **{f"pixel {i}": pixels[:, i].tolist() for i in (10, 20, 30)},
        "label": [f"digit {k}" for k in labels],
        "client": [("north", "south")[i % 2] for i in range(len(labels))],
    }
    if library == "datasets":
        table = pytest.importorskip(
            "datasets", reason="Hugging Face datasets is not installed"
        ).Dataset.from_dict(columns)
    else:
        table = Rows(columns)
    found = load(dataset={"train": table, "test": table})
    assert np.array_equal(found.train_inputs.numpy(), pixels[:, [10, 20, 30]].astype(np.float32))
    assert found.client_ids == tuple(columns["client"])
    assert found.classes[int(found.train_labels[5])] == f"digit {labels[5]}"


def test_images_and_class_names_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 5, 6, 3), dtype=np.uint8)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"image": [Image.fromarray(image) for image in pixels], "label": [i % 2 for i in range(40)]}
    table = datasets.Dataset.from_dict(rows, features=features)
    found = load(dataset=datasets.DatasetDict({"train": table, "test": table}))
    assert found.classes == ("cat", "dog")
    assert torch.allclose(found.train_inputs, torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255)


def test_partitions_of_flower_are_clients() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
    pixels, labels = load_digits(return_X_y=True)
    columns = {
        "x": pixels.tolist(),
        "label": labels.tolist(),
        "owner": [("west", "east")[k % 2] for k in labels],
    }
    partitioner = partitioners.NaturalIdPartitioner(partition_by="owner")
    with pytest.raises(celm.CelmError, match="the partitioner has no data"):
        celm.Experiment(dataset=partitioners.IidPartitioner(num_partitions=2))
    partitioner.dataset = datasets.Dataset.from_dict(columns)
    with pytest.raises(celm.CelmError, match="column 'owner': inputs are"):
        celm.Experiment(dataset=partitioner)
    even = partitioners.IidPartitioner(num_partitions=4)
    even.dataset = datasets.Dataset.from_dict({name: columns[name] for name in ("x", "label")})
    found = load(dataset=even)
    assert sorted(set(found.client_ids)) == ["client-0", "client-1", "client-2", "client-3"]
    assert len(found.train_labels) + len(found.test_labels) == len(labels)
