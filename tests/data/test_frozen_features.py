"""The cache of a frozen stage's outputs: what makes it new, damaged files, several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.data.dataset import Dataset
from celm.data.frozen_features import encode_dataset


class Counting(nn.Module):
    """Doubles its inputs and counts them."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor), requires_grad=False)
        self.samples = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.samples += len(inputs)
        return inputs * self.factor


class Shifted(Counting):
    """The same weights and the same text as `Counting`, but another function."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + 1

    def _get_name(self) -> str:
        return "Counting"


def dataset(samples: int = 300, pad_value: Tensor | None = None) -> Dataset:
    inputs = torch.arange(samples * 6.0).view(samples, 2, 3)
    labels = torch.zeros(samples, dtype=torch.int64)
    return Dataset("toy", inputs, labels, inputs[:50] + 1, labels[:50], ("a", "b"), pad_value=pad_value)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CELM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def cached_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.safetensors"))


def test_outputs_replace_inputs_and_are_computed_once(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = Counting(), Counting()
    encoded = encode_dataset(dataset(), first)
    torch.testing.assert_close(encoded.train_inputs, dataset().train_inputs * 2)
    torch.testing.assert_close(encoded.test_inputs, dataset().test_inputs * 2)
    assert first.samples >= 350
    assert "300 samples: 0.00 GB" in capfd.readouterr().err
    again = encode_dataset(dataset(), second)
    assert second.samples <= 10  # the comparison with the cached file
    assert torch.equal(again.train_inputs, encoded.train_inputs)
    assert capfd.readouterr().err == ""
    assert len(cached_files(cache)) == 2


def test_other_weights_data_or_code_are_computed_anew(cache: Path) -> None:
    encode_dataset(dataset(), Counting())
    other_weights = encode_dataset(dataset(), Counting(3.0))
    torch.testing.assert_close(other_weights.train_inputs, dataset().train_inputs * 3)
    assert len(cached_files(cache)) == 4
    fewer = encode_dataset(dataset(299), Counting())
    assert len(fewer.train_inputs) == 299
    other_code = encode_dataset(dataset(), Shifted())
    torch.testing.assert_close(other_code.train_inputs, dataset().train_inputs * 2 + 1)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_damaged_file_is_made_again(cache: Path, damage: str) -> None:
    expected = encode_dataset(dataset(), Counting())
    for path in cached_files(cache):
        content = bytearray(path.read_bytes())
        if damage == "flipped":
            content[-5] ^= 0xFF
        path.write_bytes(
            {"cut": content[: len(content) // 2], "flipped": content, "empty": b"", "text": b"no"}[damage]
        )
    stage = Counting()
    assert torch.equal(encode_dataset(dataset(), stage).train_inputs, expected.train_inputs)
    assert stage.samples >= 350
    repaired = Counting()
    encode_dataset(dataset(), repaired)
    assert repaired.samples <= 10


def test_without_a_writable_folder_outputs_are_computed_and_reported(
    cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cache.write_text("a file where the folder would be")
    encoded = encode_dataset(dataset(), Counting())
    torch.testing.assert_close(encoded.train_inputs, dataset().train_inputs * 2)
    assert "are not cached" in capfd.readouterr().err


def test_augmented_images_cannot_be_cached() -> None:
    with pytest.raises(CelmError, match=r"run\.cache_frozen.*dataset\.augment=false"):
        encode_dataset(dataset(pad_value=torch.zeros(2)), Counting())


@pytest.mark.slow
def test_two_processes_compute_a_file_once(cache: Path, tmp_path: Path) -> None:
    script = tmp_path / "encode.py"
    script.write_text(
        "import sys, time, torch\n"
        "from torch import nn\n"
        "from celm.data.dataset import Dataset\n"
        "from celm.data.frozen_features import encode_dataset\n"
        "class Slow(nn.Module):\n"
        "    def forward(self, x):\n"
        "        time.sleep(1.0 if len(x) > 10 else 0)\n"
        "        return x + 1\n"
        "y = torch.zeros(64, dtype=torch.int64)\n"
        "data = Dataset('toy', torch.ones(64, 2), y, torch.zeros(64, 2), y, ('a', 'b'))\n"
        "assert encode_dataset(data, Slow()).train_inputs.eq(2).all()\n"
    )
    processes = [
        subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    messages = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], messages
    assert (
        sum(message.count("cached outputs") for message in messages) == 2
    )  # one for each part, by one process
