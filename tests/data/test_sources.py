"""Every built-in dataset: small files of each layout, and the real files if they are available."""

from __future__ import annotations

import gzip
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from celm.base.errors import CelmError
from celm.data import inventory
from celm.data.dataset import Dataset
from celm.data.files.cifar_binary import CIFAR10, CIFAR100, CifarFormat
from celm.data.registry import datasets
from celm.data.sources.emnist import EMNIST_FILES
from support.dataset_files import (
    cifar_batches,
    write_cifar_archive,
    write_mnist_files,
    write_svhn_files,
)

RNG = np.random.RandomState(0)


def load(name: str, **options: object) -> Dataset:
    return datasets.build(name, options).load()


def idx(array: np.ndarray) -> bytes:
    return (
        struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    )


def test_digits_need_nothing_and_never_change() -> None:
    first, second = load("digits"), load("digits")
    assert first.shape == (1, 8, 8)
    assert (len(first.train_labels), len(first.test_labels)) == (1438, 359)
    assert torch.bincount(first.test_labels).min() >= 34
    assert torch.equal(first.test_inputs, second.test_inputs)
    assert abs(float(first.train_inputs.mean())) < 1e-3
    assert abs(float(first.train_inputs.std()) - 1) < 1e-3
    # Golden: a change of the split would silently change every figure measured on it.
    assert first.test_labels[:12].tolist() == GOLDEN
    assert first.train_inputs.dtype == torch.float32


GOLDEN = [3, 7, 3, 9, 0, 8, 7, 0, 8, 0, 3, 3]


@pytest.fixture
def small_idx() -> dict[str, bytes]:
    return {
        part: idx(RNG.randint(0, 10, 6) if "labels" in part else RNG.randint(0, 256, (6, 28, 28)))
        for part in EMNIST_FILES
    }


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fashion_mnist_from_idx_here_or_in_a_system_package(
    empty_data_root: Path, small_idx: dict[str, bytes], suffix: str, system: bool
) -> None:
    folder = (
        empty_data_root.parent / "system" / "fashion-mnist" if system else empty_data_root / "fashion_mnist"
    )
    folder.mkdir(parents=True)
    for part, content in small_idx.items():
        name = (
            part.replace("test", "t10k").replace("_", "-")
            + ("-idx1" if "labels" in part else "-idx3")
            + "-ubyte"
        )
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    dataset = load("fashion_mnist")
    pixels = torch.frombuffer(bytearray(small_idx["train_images"][16:]), dtype=torch.uint8).view(6, 1, 28, 28)
    assert torch.allclose(dataset.train_inputs, (pixels / 255 - 0.286) / 0.353, atol=1e-5)
    assert dataset.train_labels.tolist() == list(small_idx["train_labels"][8:])
    report = inventory.check_dataset("fashion_mnist")
    assert report.rows == (6, 6)
    assert len(report.problems) == 5  # four checksums, and the counts


def test_emnist_is_made_upright_and_padded_from_files_or_the_official_zip(
    empty_data_root: Path, small_idx: dict[str, bytes]
) -> None:
    folder = empty_data_root / "emnist"
    folder.mkdir()
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for part, content in small_idx.items():
            archive.writestr(f"gzip/{EMNIST_FILES[part]}.gz", gzip.compress(content))
    zipped = load("emnist")
    for part, content in small_idx.items():
        (folder / f"{EMNIST_FILES[part]}.gz").write_bytes(gzip.compress(content))
    dataset = load("emnist", padding=0)
    pixels = torch.frombuffer(bytearray(small_idx["test_images"][16:]), dtype=torch.uint8).view(6, 1, 28, 28)
    assert torch.allclose(dataset.test_inputs, (pixels.transpose(2, 3) / 255 - 0.1307) / 0.3081, atol=1e-5)
    assert zipped.shape == (1, 32, 32)
    assert torch.equal(zipped.test_inputs[:, :, 2:-2, 2:-2], dataset.test_inputs)
    assert torch.allclose(zipped.test_inputs[:, :, :2], torch.tensor(-0.1307 / 0.3081))
    assert len(dataset.classes) == 47


@pytest.mark.parametrize(
    ("name", "layout", "folder_name", "std_by_channel"),
    [
        ("cifar10", CIFAR10, "cifar-10-batches-bin", (0.2023, 0.1994, 0.2010)),
        ("cifar100", CIFAR100, "cifar-100-binary", (0.2673, 0.2564, 0.2762)),
    ],
)
def test_cifar_from_binary_batches_and_from_the_archive(
    empty_data_root: Path, name: str, layout: CifarFormat, folder_name: str, std_by_channel: tuple[float, ...]
) -> None:
    write_cifar_archive(empty_data_root / name, layout)
    (archive,) = (empty_data_root / name).iterdir()
    packed = load(name)
    assert len(list(empty_data_root.rglob("*"))) == 2
    per_file = 4
    assert len(packed.train_labels) == per_file * len(layout.train_files)
    assert len(packed.test_labels) == per_file
    assert packed.pad_value is not None
    batches = cifar_batches(layout)
    first = np.frombuffer(batches[layout.train_files[0]], dtype=np.uint8).reshape(per_file, -1)
    # The class is the last label of a record: of CIFAR-100 the fine one, after the coarse one.
    assert packed.train_labels[:per_file].tolist() == first[:, layout.labels - 1].tolist()
    # Black, which the padding has, is -mean / std, so input - black = pixel / 255 / std.
    pixels = torch.from_numpy(first[:, layout.labels :].reshape(-1, 3, 32, 32).copy()) / 255
    std = torch.tensor(std_by_channel).view(1, 3, 1, 1)
    above_black = packed.train_inputs[:per_file] - packed.pad_value.view(1, 3, 1, 1)
    assert torch.allclose(above_black * std, pixels, atol=1e-5)
    loose_folder = empty_data_root / name / folder_name
    loose_folder.mkdir()
    for file_name, content in batches.items():
        (loose_folder / file_name).write_bytes(content)
    loose = load(name, augment=False)
    assert loose.pad_value is None
    assert torch.equal(loose.train_inputs, packed.train_inputs)
    assert torch.equal(loose.train_labels, packed.train_labels)
    assert inventory.check_dataset(name).rows == (len(loose.train_labels), per_file)
    broken = loose_folder / layout.train_files[-1]
    broken.write_bytes(b"123")
    with pytest.raises(CelmError, match=f"{re.escape(broken.name)} is damaged: 3 bytes"):
        load(name)
    broken.unlink()
    archive.write_bytes(archive.read_bytes()[:9000])
    with pytest.raises(CelmError, match=f"{re.escape(archive.name)} is damaged"):
        load(name)
    assert not inventory.check_dataset(name).ok


def test_cifar10_is_normalised_as_by_the_authors(empty_data_root: Path) -> None:
    write_cifar_archive(empty_data_root / "cifar10", CIFAR10)
    padding = load("cifar10").pad_value
    assert padding is not None
    assert torch.allclose(padding, torch.tensor([-0.4914 / 0.2023, -0.4822 / 0.1994, -0.4465 / 0.2010]))


def test_cifar100_has_its_own_pls(empty_data_root: Path) -> None:
    write_cifar_archive(empty_data_root / "cifar100", CIFAR100)
    assert datasets.load("cifar100").defaults.splits["pls"] == {"max_samples": 400, "min_samples": 100}
    assert len(set(load("cifar100").classes)) == 100


def test_svhn_from_matlab_files(empty_data_root: Path) -> None:
    images = write_svhn_files(empty_data_root / "svhn")
    data = load("svhn")
    # 10 is the digit 0.
    assert data.train_labels.tolist() == data.test_labels.tolist() == [1, 9, 0]
    expected = (images[5, 7, 2, 1] / 255 - 0.4728) / 0.197
    assert float(data.train_inputs[1, 2, 5, 7]) == pytest.approx(expected, abs=1e-5)
    for content in (
        b"MATLAB 5.0",
        b"x" * 500,
        (empty_data_root / "svhn/train_32x32.mat").read_bytes()[:4000],
    ):
        (empty_data_root / "svhn" / "test_32x32.mat").write_bytes(content)
        with pytest.raises(CelmError, match=r"test_32x32\.mat"):
            load("svhn")


def test_mnist_from_idx(empty_data_root: Path) -> None:
    write_mnist_files(empty_data_root / "mnist")
    data = load("mnist")
    with gzip.open(empty_data_root / "mnist" / "t10k-images-idx3-ubyte.gz") as file:
        pixels = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).view(-1, 1, 28, 28)
    assert torch.allclose(data.test_inputs, (pixels / 255 - 0.1307) / 0.3081, atol=1e-5)


def test_mnist_is_a_name_of_its_own() -> None:
    assert datasets.check("mnist") == "mnist"


def test_labels_and_images_that_do_not_fit_are_refused(
    empty_data_root: Path, small_idx: dict[str, bytes]
) -> None:
    folder = empty_data_root / "emnist"
    folder.mkdir()
    for part, content in small_idx.items():
        (folder / EMNIST_FILES[part]).write_bytes(content)
    (folder / EMNIST_FILES["test_labels"]).write_bytes(idx(np.full(6, 47)))
    with pytest.raises(CelmError, match="a test label is 47, outside 0 to 46"):
        load("emnist")
    (folder / EMNIST_FILES["test_labels"]).write_bytes(idx(np.zeros(5)))
    with pytest.raises(CelmError, match="6 test images but 5 labels"):
        load("emnist")


def test_the_list_shows_which_datasets_are_present(
    empty_data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {row.name: row for row in inventory.list_datasets()}
    assert list(rows) == datasets.names()
    assert [name for name, row in rows.items() if row.present] == ["digits", "heart"]
    assert rows["emnist47"].origin is inventory.Origin.MANUAL
    assert rows["fashion_mnist"].download_size == 30878645
    assert inventory.download_dataset("digits").is_dir()
    assert inventory.check_dataset("digits").ok
    assert (inventory.download_dataset("heart") / "heart-disease.names").is_file()
    with pytest.raises(CelmError, match="cannot be downloaded"):
        inventory.download_dataset("emnist47")
    with pytest.raises(CelmError, match="your own folder"):
        inventory.download_dataset("folder")
    with pytest.raises(CelmError, match="run `celm data get emnist`"):
        inventory.check_dataset("emnist")
    monkeypatch.setenv("CELM_MIRROR", "http://127.0.0.1:1")
    with pytest.raises(CelmError, match="celm data get fashion_mnist"):
        load("fashion_mnist")


def test_real_fashion_mnist(real_data: Path) -> None:
    dataset = load("fashion_mnist")
    assert dataset.train_inputs.shape == (60000, 1, 28, 28)
    assert torch.bincount(dataset.train_labels).tolist() == [6000] * 10
    assert torch.bincount(dataset.test_labels).tolist() == [1000] * 10
    assert abs(float(dataset.train_inputs.mean())) < 0.01
    assert abs(float(dataset.train_inputs.std()) - 1) < 0.01
    report = inventory.check_dataset("fashion_mnist")
    assert report.ok
    assert {file.checksum for file in report.files} == {inventory.ChecksumStatus.OK}


def test_real_cifar10(real_data: Path) -> None:
    dataset = load("cifar10")
    assert dataset.train_inputs.shape == (50000, 3, 32, 32)
    assert torch.bincount(dataset.train_labels).tolist() == [5000] * 10
    assert torch.bincount(dataset.test_labels).tolist() == [1000] * 10
    assert dataset.train_inputs.mean(dim=(0, 2, 3)).abs().max() < 0.01
    assert inventory.check_dataset("cifar10").ok


def test_real_emnist47(real_data: Path) -> None:
    dataset = load("emnist47")
    assert dataset.train_inputs.shape == (94545, 1, 32, 32)
    assert len(dataset.classes) == 47
    assert torch.bincount(dataset.test_labels).tolist() == [200] * 47
    assert torch.bincount(dataset.train_labels[:32900]).tolist() == [700] * 47
    assert inventory.check_dataset("emnist47").ok


FLAMBY = [
    [2279, 3363, 2245, 606, 923, 97, 87, 330],
    [20, 2977, 2, 0, 96, 23, 45, 0],
    [533, 1470, 174, 20, 379, 40, 64, 11],
    [276, 649, 223, 86, 406, 20, 3, 144],
    [166, 349, 0, 0, 140, 0, 0, 0],
    [58, 276, 5, 0, 6, 4, 2, 0],
]


def test_real_fedisic_has_the_counts_of_flamby(real_data: Path) -> None:
    dataset = load("fedisic", size=32)
    assert dataset.shape == (3, 32, 32)
    assert (len(dataset.train_labels), len(dataset.test_labels)) == (18568, 4647)
    assert dataset.client_ids is not None
    counts = np.zeros((6, 8), dtype=int)
    for owner, label in zip(dataset.client_ids, dataset.train_labels.tolist(), strict=True):
        counts[int(re.fullmatch(r"center-(\d)", owner)[1]), label] += 1  # type: ignore[index]
    lost = np.array(FLAMBY) - counts
    # Of the 32 images that this copy lacks, all of centre 0 and class AK, 29 are of the training part.
    assert lost[0, 3] == 29
    assert np.count_nonzero(lost) == 1
    assert inventory.check_dataset("fedisic").ok


def test_every_download_has_a_sha256_sum() -> None:
    infos = [getattr(datasets.load(name), "info", None) for name in datasets.names()]
    files = [file for info in infos if info is not None for file in info.remote_files]
    assert {file.name for file in files} >= {"gzip.zip", "cifar-10-binary.tar.gz", "hapt.zip"}
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", file.digest) for file in files)
