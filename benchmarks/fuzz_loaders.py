"""Fuzz the loaders of untrusted checkpoints, guided by coverage, with atheris.

    pip install atheris     # beside celm; Python 3.11 to 3.13 on Linux
    python benchmarks/fuzz_loaders.py pt --corpus fuzz/pt -max_total_time=600 -rss_limit_mb=1500 -timeout=5

The formats are safetensors, pt and npz. Every input must be read as finite tensors of the model's shapes, or refused by
one printable line. A file is mutated inside: its header, or an entry of an archive, is changed. Then the file is
written again with the right lengths and checksums, so that the fuzzer reaches the code that reads them. Inputs that
reach new code are saved in the corpus. The options after the corpus are libFuzzer's.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

_MAX_BYTES = 1 << 20
_MAX_REASON = 600
_RAW_SHARE = 0.2
"""Share of mutations that change the bytes of an archive instead of an entry."""


def example_state() -> dict[str, Tensor]:
    """Return the tensors of a tiny model; also the shapes that inputs are matched to."""
    return {
        "fc.weight": torch.arange(6.0).reshape(2, 3) / 7,
        "fc.bias": torch.tensor([0.5, -0.5]),
        "steps": torch.tensor(3),
    }


def example_files() -> dict[str, bytes]:
    """Return a valid file of each format."""
    program, arrays = io.BytesIO(), io.BytesIO()
    torch.save(example_state(), program)
    np.savez(arrays, **{name: tensor.numpy() for name, tensor in example_state().items()})  # type: ignore[arg-type]
    return {"safetensors": save(example_state()), "pt": program.getvalue(), "npz": arrays.getvalue()}


def check_input(content: bytes, suffix: str) -> None:
    """Read a file as an audit does, and check what comes of it."""
    from celm.auditing.checkpoint_reader import parse_checkpoint
    from celm.base.errors import CelmError
    from celm.models.state_matching import match_state

    reference = example_state()
    try:
        state = match_state(parse_checkpoint(content, suffix, _MAX_BYTES), reference, {}, {}).state
    except CelmError as error:
        reason = str(error)
        if len(reason) > _MAX_REASON or not reason.isprintable():
            raise AssertionError(f"not one printable line: {reason!r}") from error
        return
    if {name: tensor.shape for name, tensor in state.items()} != {n: t.shape for n, t in reference.items()}:
        raise AssertionError("a tensor has not the model's shape")
    if not all(bool(tensor.isfinite().all()) for tensor in state.values()):
        raise AssertionError("a tensor is not finite")


def mutate_safetensors(content: bytes, max_size: int, seed: int, mutate: Any) -> bytes:
    """Change the header of a file and write its length; sometimes change any bytes."""
    if Random(seed).random() < _RAW_SHARE:
        return bytes(mutate(content, max_size))
    length = int.from_bytes(content[:8], "little")
    header, tensors = content[8 : 8 + length], content[8 + length :]
    header = bytes(mutate(header, max(len(header) + 64, 64)))
    return (len(header).to_bytes(8, "little") + header + tensors)[:max_size]


def mutate_archive(content: bytes, max_size: int, seed: int, mutate: Any) -> bytes:
    """Change one entry of an archive and write the archive again; sometimes change any bytes."""
    random = Random(seed)
    try:
        if random.random() < _RAW_SHARE:
            return bytes(mutate(content, max_size))
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()[:50]]
        chosen = random.randrange(len(entries))
        name, old = entries[chosen]
        entries[chosen] = (name, bytes(mutate(old, max(len(old) + 64, 64))))
        rewritten = io.BytesIO()
        with zipfile.ZipFile(rewritten, "w") as archive:
            for entry_name, entry_content in entries:
                archive.writestr(entry_name, entry_content)
        return rewritten.getvalue()[:max_size]
    except Exception:  # the input is not an archive, in any of the ways that zipfile knows
        return bytes(mutate(content, max_size))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("format", choices=sorted(example_files()))
    parser.add_argument("--corpus", type=Path, required=True, help="folder of inputs; new ones are added")
    options, fuzzer_options = parser.parse_known_args()
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=["celm.auditing", "celm.models", "zipfile", "pickletools"]):
        import_module("celm.auditing.checkpoint_reader")
        import_module("celm.models.state_matching")
    options.corpus.mkdir(parents=True, exist_ok=True)
    (options.corpus / "valid").write_bytes(example_files()[options.format])
    torch.set_num_threads(1)
    suffix = f".{options.format}"
    arguments = [sys.argv[0], *fuzzer_options, str(options.corpus)]
    mutate = mutate_safetensors if options.format == "safetensors" else mutate_archive

    def mutator(content: bytes, max_size: int, seed: int) -> bytes:
        return mutate(content, max_size, seed, atheris.Mutate)

    atheris.Setup(arguments, lambda content: check_input(content, suffix), custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
