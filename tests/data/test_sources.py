"""Every built-in dataset: small files of each layout, and the real files if they are available."""

from __future__ import annotations

import gzip
import io
import re
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from celm.base.errors import CelmError
from celm.data import inventory
from celm.data.dataset import Dataset
from celm.data.files.cifar_binary import RECORD_BYTES, TEST_BATCHES, TRAIN_BATCHES
from celm.data.registry import datasets
from celm.data.sources.emnist import EMNIST_FILES

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


def test_cifar10_from_binary_batches_and_from_the_archive(empty_data_root: Path) -> None:
    batches = {
        name: RNG.randint(0, 256, (4, RECORD_BYTES)).astype(np.uint8)
        for name in (*TRAIN_BATCHES, *TEST_BATCHES)
    }
    for batch in batches.values():
        batch[:, 0] %= 10
    folder = empty_data_root / "cifar10"
    folder.mkdir()
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, batch in {"../../escape.bin": batches[TEST_BATCHES[0]], **batches}.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = batch.size
            archive.addfile(entry, io.BytesIO(batch.tobytes()))
    packed = load("cifar10")
    assert len(list(empty_data_root.rglob("*"))) == 2
    assert (len(packed.train_labels), len(packed.test_labels)) == (20, 4)
    assert packed.pad_value is not None
    assert torch.allclose(
        packed.pad_value, torch.tensor([-0.4914 / 0.2023, -0.4822 / 0.1994, -0.4465 / 0.2010])
    )
    (folder / "cifar-10-batches-bin").mkdir()
    for name, batch in batches.items():
        (folder / "cifar-10-batches-bin" / name).write_bytes(batch.tobytes())
    loose = load("cifar10", augment=False)
    assert loose.pad_value is None
    assert torch.equal(loose.train_inputs, packed.train_inputs)
    assert torch.equal(loose.train_labels, packed.train_labels)
    (folder / "cifar-10-batches-bin" / TRAIN_BATCHES[2]).write_bytes(b"123")
    with pytest.raises(CelmError, match=r"data_batch_3\.bin is damaged: 3 bytes"):
        load("cifar10")
    (folder / "cifar-10-batches-bin" / TRAIN_BATCHES[2]).unlink()
    (folder / "cifar-10-binary.tar.gz").write_bytes((folder / "cifar-10-binary.tar.gz").read_bytes()[:9000])
    with pytest.raises(CelmError, match=r"cifar-10-binary\.tar\.gz is damaged"):
        load("cifar10")
    assert not inventory.check_dataset("cifar10").ok


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
