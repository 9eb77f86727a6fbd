"""Parquet files as on the Hugging Face hub, their images, and the cache of decoded images."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import Tensor

from celm.base.errors import CelmError
from celm.data.files import parquet
from celm.data.files.cache import load_or_compute
from celm.data.files.images import decode_image

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


def write(path: Path, images: list[bytes | None], plain: bool = False, **columns: list[object]) -> Path:
    column = (
        pa.array(images, pa.binary())
        if plain
        else pa.array(
            [{"bytes": image, "path": "x.png"} for image in images],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        )
    )
    table = pa.table({"image": column, **{name: pa.array(values) for name, values in columns.items()}})
    names = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(names)}), path, row_group_size=2)
    return path


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_reads_images_labels_and_names(tmp_path: Path, plain: bool, kind: str) -> None:
    path = write(tmp_path / "a.parquet", [encode(p, kind) for p in PIXELS], plain, label=[0, 1, 1, 0, 1])
    images = parquet.decode_parquet_images([path, path], channels=3)
    assert images.dtype == torch.uint8
    assert torch.equal(images[5:], torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert parquet.read_column([path], "label") == [0, 1, 1, 0, 1]
    assert parquet.read_class_names(path) == ("cat", "dog")
    assert parquet.count_parquet_rows([path, path]) == 10


def test_a_grey_image_kept_as_colour_comes_back_exactly() -> None:
    grey = PIXELS[0, :, :, :1].repeat(3, axis=2)
    assert np.array_equal(decode_image(encode(grey), "here", channels=1)[0], grey[:, :, 0])


def test_resizes() -> None:
    assert decode_image(encode(PIXELS[0], "JPEG"), "here", channels=3, size=4).shape == (3, 4, 4)


def test_a_corrupt_image_is_named_by_file_and_row(tmp_path: Path) -> None:
    good = encode(PIXELS[0])
    for bad, message in ((good[:60], "corrupt"), (b"no image", "not a PNG"), (None, "no bytes")):
        path = write(tmp_path / "a.parquet", [good, good, good, bad], label=[0, 0, 0, 0])
        with pytest.raises(CelmError, match=message) as caught:
            parquet.decode_parquet_images([path], channels=3)
        assert f"{path}, row 3" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_images_of_two_sizes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [encode(PIXELS[0]), encode(PIXELS[1, :5])], label=[0, 0])
    with pytest.raises(CelmError, match=r"row 1 is 7 x 5 pixels.* 7 x 6 .*\(set a size"):
        parquet.decode_parquet_images([path], channels=3)


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    file = io.BytesIO()
    Image.new("1", (20000, 20000)).save(file, "PNG")
    with pytest.raises(CelmError, match="too large"):
        decode_image(file.getvalue(), "here", channels=1)


def test_sixteen_bits_are_refused() -> None:
    with pytest.raises(CelmError, match="8 bits"):
        decode_image(encode(np.zeros((4, 4), dtype=np.uint16)), "here", channels=1)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 100 + b"PAR1", b"hello" * 100])
def test_a_damaged_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    for read in (
        lambda: parquet.read_column([path], "label"),
        lambda: parquet.decode_parquet_images([path], 3),
    ):
        with pytest.raises(CelmError) as caught:
            read()
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_every_truncation_is_one_line(tmp_path: Path) -> None:
    content = write(tmp_path / "a.parquet", [encode(p) for p in PIXELS], label=[0] * 5).read_bytes()
    path = tmp_path / "b.parquet"
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(CelmError):
            parquet.decode_parquet_images([path], 3)


def test_a_damaged_byte_anywhere_is_one_line_or_nothing(tmp_path: Path) -> None:
    content = write(tmp_path / "a.parquet", [encode(p) for p in PIXELS], label=[0] * 5).read_bytes()
    path = tmp_path / "b.parquet"
    for position in range(0, len(content), 61):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        with suppress(CelmError):
            parquet.decode_parquet_images([path], 3)
            parquet.read_column([path], "label")


def test_columns_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [encode(PIXELS[0])] * 2, label=[0.5, 1.0], client=["a", None])
    with pytest.raises(CelmError, match=r"column 'label' .* integers or text, not double"):
        parquet.read_column([path], "label")
    with pytest.raises(CelmError, match="1 missing values"):
        parquet.read_column([path], "client")
    with pytest.raises(CelmError, match=r"no column 'none' .*it has: image, label, client"):
        parquet.read_column([path], "none")
    pq.write_table(pa.table({"image": [1, 2]}), path)
    with pytest.raises(CelmError, match="image bytes"):
        parquet.decode_parquet_images([path], 3)


def test_a_missing_shard_is_named() -> None:
    shards = [Path(f"train-0000{i}-of-00003.parquet") for i in (0, 2)]
    assert parquet.find_missing_shard(shards) == "train-00001-of-00003.parquet"
    assert parquet.find_missing_shard([Path("train.parquet"), Path("test-00000-of-00001.parquet")]) is None


class Counter:
    """Decodes, and counts how often it had to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, Tensor]:
        self.calls += 1
        return {"train": torch.arange(12, dtype=torch.uint8)}


def test_the_cache_is_used_rebuilt_when_damaged_and_keyed_by_file_and_settings(
    tmp_path: Path, empty_data_root: Path
) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(b"1")
    decode = Counter()
    folder = empty_data_root.parent / "decoded"
    for _ in range(2):
        assert torch.equal(
            load_or_compute("x", [file], {"size": 1}, decode, min_seconds=0)["train"], decode()["train"]
        )
    assert decode.calls == 1 + 2
    (cached,) = folder.iterdir()
    cached.write_bytes(cached.read_bytes()[:-1] + b"\xff")
    load_or_compute("x", [file], {"size": 1}, decode, min_seconds=0)
    assert decode.calls == 4
    load_or_compute("x", [file], {"size": 1}, decode, min_seconds=0)
    assert decode.calls == 4
    load_or_compute("x", [file], {"size": 2}, decode, min_seconds=0)
    file.write_bytes(b"22")
    load_or_compute("x", [file], {"size": 1}, decode, min_seconds=0)
    assert decode.calls == 6
    assert len(list(folder.iterdir())) == 2  # one for each size: what is out of date is not left behind


def test_what_decodes_fast_is_not_kept_and_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, empty_data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_or_compute("x", [], {}, Counter())
    assert not (empty_data_root.parent / "decoded").exists()
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CELM_CACHE", str(tmp_path / "file" / "cache"))
    assert set(load_or_compute("x", [], {}, Counter(), min_seconds=0)) == {"train"}
