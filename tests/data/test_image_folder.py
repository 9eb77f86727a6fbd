"""The user's own images, as parquet files and as class folders."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from celm.base.errors import CelmError
from celm.base.registry import build_component
from celm.data.dataset import Dataset, hold_out
from celm.data.sources.image_folder import ImageFolder

pytestmark = pytest.mark.usefixtures("empty_data_root")


def png(value: int, width: int = 5, height: int = 4) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), value, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def put(path: Path, value: int = 0, **size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(value, **size))
    return path


def table(path: Path, labels: list[int] | list[str], **columns: list[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": png(index), "path": None} for index in range(len(labels))]
    pq.write_table(pa.table({"image": images, "label": labels, **columns}), path)


def load(path: Path, **options: object) -> Dataset:
    return build_component(ImageFolder, {"path": str(path), **options}, "dataset", "folder").load()


def test_class_folders_with_a_test_part(tmp_path: Path) -> None:
    for name, value in (("dog", 200), ("cat", 100)):
        put(tmp_path / "train" / name / "1.png", value)
        put(tmp_path / "train" / name / "deep" / "2.PNG", value)
    put(tmp_path / "test" / "dog" / "3.png", 200)
    put(tmp_path / "train" / ".hidden" / "x.png")
    put(tmp_path / "train" / "cat" / ".x.png")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / "empty").mkdir()
    dataset = load(tmp_path, mean=[0, 0, 0], std=[1, 1, 1])
    assert dataset.classes == ("cat", "dog")
    assert dataset.train_labels.tolist() == [0, 0, 1, 1]
    assert dataset.test_labels.tolist() == [1]
    assert dataset.shape == (3, 4, 5)
    assert torch.allclose(dataset.train_inputs[:, 0, 0, 0] * 255, torch.tensor([100.0, 100, 200, 200]))
    assert dataset.client_ids is None
    assert dataset.pad_value is None


def test_without_a_test_part_a_fifth_of_each_class_is_held_out_always_the_same(tmp_path: Path) -> None:
    for index in range(20):
        put(tmp_path / "a" / f"{index:02}.png", index)
        if index < 10:
            put(tmp_path / "b" / f"{index:02}.png", 100 + index)
    first, second = load(tmp_path, grayscale=True), load(tmp_path, grayscale=True)
    assert torch.bincount(first.train_labels).tolist() == [16, 8]
    assert torch.bincount(first.test_labels).tolist() == [4, 2]
    assert torch.equal(first.test_inputs, second.test_inputs)
    assert first.shape == (1, 4, 5)
    assert first.train_inputs.mean().abs() < 1e-5
    assert abs(float(first.train_inputs.std(unbiased=False)) - 1) < 1e-5


def test_a_class_of_one_stays_in_training() -> None:
    train, test = hold_out(np.array([0, 0, 0, 0, 0, 1]))
    assert (len(train), len(test)) == (5, 1)
    assert 5 in train


def test_parquet_with_owners_and_text_labels(tmp_path: Path) -> None:
    table(tmp_path / "train-00000-of-00002.parquet", ["b", "a"], client=["north", "south"])
    table(tmp_path / "train-00001-of-00002.parquet", ["a", "c"], client=["south", "north"])
    table(tmp_path / "test.parquet", ["c"])
    dataset = load(tmp_path, augment=True)
    assert dataset.classes == ("a", "b", "c")
    assert dataset.train_labels.tolist() == [1, 0, 0, 2]
    assert dataset.test_labels.tolist() == [2]
    assert dataset.client_ids == ("north", "south", "south", "north")
    assert dataset.pad_value is not None
    assert dataset.pad_value.shape == (3,)


def test_parquet_without_test_holds_out_rows_and_their_owners(tmp_path: Path) -> None:
    labels = [3, 7] * 10
    table(tmp_path / "data" / "all.parquet", labels, hospital=[label * 10 for label in labels])
    dataset = load(tmp_path, owner_column="hospital")
    assert dataset.classes == ("3", "7")
    assert len(dataset.test_labels) == 4
    assert dataset.client_ids is not None
    assert [dataset.classes[label] for label in dataset.train_labels.tolist()] == [
        owner.removeprefix("client-").removesuffix("0") for owner in dataset.client_ids
    ]


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    put(tmp_path / "a" / "1.png")
    odd = put(tmp_path / "b" / "2.png", width=9)
    put(tmp_path / "b" / "3.png", width=9)
    with pytest.raises(CelmError, match=r"9 x 4 pixels.*set a size") as caught:
        load(tmp_path)
    assert str(odd) in str(caught.value)
    assert load(tmp_path, size=6).shape == (3, 6, 6)


def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside" / "secret" / "1.png")
    data = tmp_path / "data"
    put(data / "a" / "1.png")
    put(data / "b" / "1.png")
    put(data / "b" / "2.png")
    (data / "a" / "inner.png").symlink_to(data / "b" / "1.png")
    assert len(load(data).train_labels) == 2
    (data / "a" / "2.png").symlink_to(outside)
    with pytest.raises(CelmError, match=r"2\.png is a link that leaves"):
        load(data)
    (data / "a" / "2.png").unlink()
    (data / "c").symlink_to(outside.parent)
    with pytest.raises(CelmError, match="c is a link that leaves"):
        load(data)


def test_errors_are_one_line(tmp_path: Path) -> None:
    def check_error(match: str, path: Path, **options: object) -> None:
        with pytest.raises(CelmError, match=match) as caught:
            load(path, **options)
        assert "\n" not in str(caught.value)

    check_error("no such folder", tmp_path / "none")
    check_error("has no data", tmp_path)
    put(tmp_path / "one" / "a" / "1.png")
    check_error("only one class", tmp_path / "one")
    data = tmp_path / "data"
    for name in ("a", "b"):
        put(data / "train" / name / "1.png")
    put(data / "test" / "z" / "1.png")
    check_error("class 'z'", data)
    broken = data / "train" / "b" / "1.png"
    broken.write_bytes(png(1)[:50])
    (data / "test" / "z").rename(data / "test" / "a")
    check_error(f"{broken} is a corrupt image", data)
    put(broken)
    check_error("3 values each", data, mean=[0.5], std=[0.5])
    check_error("both or neither", data, mean=[0.5, 0.5, 0.5])
    check_error("std positive", data, mean=[0.5] * 3, std=[0.0] * 3)
    check_error("setting 'dataset.size'", data, size=0)
    shards = tmp_path / "shards"
    table(shards / "train-00000-of-00002.parquet", [0, 1], client=["a", ""])
    check_error("train-00001-of-00002.parquet is missing", shards)
    (shards / "train-00000-of-00002.parquet").rename(shards / "train.parquet")
    check_error("unusable client name", shards)
    check_error("no column 'site'", shards, owner_column="site")
    (shards / "train.parquet").rename(shards / "test.parquet")
    check_error("no train", shards)


def test_a_path_is_needed() -> None:
    with pytest.raises(CelmError, match=r"dataset\.path"):
        build_component(ImageFolder, {}, "dataset", "folder")
