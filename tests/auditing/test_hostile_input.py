"""Hostile files of a client: the client is excluded with one clear line, and the others are audited."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from auditing.conftest import Uploads, random_state
from celm.auditing import checkpoint_reader
from celm.base.errors import CelmError

FIRST = "fc1.weight"
MARK = "executed"


class Bomb:
    """An object that writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return Path.write_text, (Path(MARK), "x")


def changed(name: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    return random_state(2) | {name: value}


def header(claims: dict[str, object], length: int | None = None) -> bytes:
    text = json.dumps(claims).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def write(content: bytes) -> Callable[[Uploads], object]:
    return lambda uploads: (uploads.clients / "b.safetensors").write_bytes(content)


def put(state: dict[str, torch.Tensor]) -> Callable[[Uploads], object]:
    return lambda uploads: uploads.save("b", state)


def instead(suffix: str, content: bytes) -> Callable[[Uploads], object]:
    def act(uploads: Uploads) -> None:
        (uploads.clients / "b.safetensors").unlink()
        (uploads.clients / f"b{suffix}").write_bytes(content)

    return act


def pytorch(value: object) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def npz(**arrays: object) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def bomb_archive() -> bytes:
    """Return a PyTorch archive whose pickle runs code."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(), 2))
        archive.writestr("archive/version", "3\n")
    return content.getvalue()


def deflated_archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1000))
    return content.getvalue()


def lying_array() -> bytes:
    """Return an npz archive with a header that claims terabytes."""
    entry = io.BytesIO()
    np.lib.format.write_array_header_1_0(entry, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(f"{FIRST}.npy", entry.getvalue() + bytes(8))
    return content.getvalue()


def symlink(uploads: Uploads) -> None:
    outside = uploads.folder / "outside.safetensors"
    save_file(random_state(9), outside)
    (uploads.clients / "b.safetensors").unlink()
    (uploads.clients / "b.safetensors").symlink_to(outside)


def pipe(uploads: Uploads) -> None:
    (uploads.clients / "b.safetensors").unlink()
    os.mkfifo(uploads.clients / "b.safetensors")


def twice(uploads: Uploads) -> None:
    torch.save(random_state(2), uploads.clients / "b.pt")


def many_entries(count: int) -> bytes:
    """Return a safetensors file with `count` tensors of no values."""
    entries = ",".join(f'"{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(count))
    return struct.pack("<Q", len(entries) + 2) + f"{{{entries}}}".encode()


def duplicate_key(content: bytes) -> bytes:
    """Return a safetensors file whose first tensor is declared twice."""
    length = int.from_bytes(content[:8], "little")
    text = content[8 : 8 + length].rstrip()
    entry = json.dumps({FIRST: json.loads(text)[FIRST]})[1:-1].encode()
    text = text[:-1] + b"," + entry + b"}"
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


WHOLE = save(random_state(2))
TERABYTES = header({FIRST: {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}) + bytes(64)
MISSING = {name: tensor for name, tensor in random_state(2).items() if name != "head.bias"}

CASES: dict[str, tuple[Callable[[Uploads], object], str]] = {
    "truncated": (write(WHOLE[:-5]), "invalid safetensors file"),
    "truncated header": (write(WHOLE[:20]), "invalid safetensors file"),
    "empty file": (write(b""), "file is empty"),
    "corrupted header": (write(WHOLE[:8] + b"\xff" + WHOLE[9:]), "invalid safetensors file"),
    "bytes appended": (write(WHOLE + b"more"), "invalid safetensors file"),
    "header length of terabytes": (write(header({}, 1 << 42)), "invalid safetensors file"),
    "a million tensors": (write(many_entries(1_000_000)), "header of 57,888,891 bytes, at most"),
    "three thousand tensors": (write(many_entries(3000)), "3,000 tensors, at most 1,008 for this model"),
    "long metadata": (write(header({"__metadata__": {"x": "y" * (3 << 20)}})), "header of 3,145,"),
    "duplicate tensor": (write(duplicate_key(WHOLE)), f"duplicate key '{FIRST}'"),
    "header nested deeply": (
        write(struct.pack("<Q", 100_000) + b"[" * 100_000),
        "its header is not JSON",
    ),
    "two thousand arrays": (
        instead(".npz", npz(**{str(i): np.empty(0) for i in range(2000)})),
        "2,000 arrays, at most 1,008",
    ),
    "tensor of terabytes": (write(TERABYTES), "invalid safetensors file"),
    "far too large": (
        lambda uploads: os.truncate(uploads.clients / "b.safetensors", 1 << 32),
        "file is too large",
    ),
    "pickle with code": (instead(".pt", pickle.dumps(Bomb())), "not a PyTorch archive"),
    "archive with code": (instead(".pt", bomb_archive()), "'__builtin__ getattr'"),
    "whole module pickled": (
        instead(".pt", pytorch(torch.nn.Linear(2, 2))),
        "'torch.nn.modules.linear Linear'",
    ),
    "truncated archive": (instead(".pt", pytorch(random_state(2))[:-30]), "invalid archive"),
    "compressed archive": (instead(".pt", deflated_archive()), "compressed archive"),
    "no tensors in the archive": (
        instead(".pt", pytorch({"epoch": 3})),
        "'epoch': expected a tensor, got int",
    ),
    "not even a dict": (instead(".pt", pytorch([1, 2])), "expected named tensors, got list"),
    "objects in npz": (instead(".npz", npz(x=np.array([{}], dtype=object))), "Python objects"),
    "npz of terabytes": (instead(".npz", lying_array()), "claims more values"),
    "truncated npz": (instead(".npz", npz(x=np.ones(3))[:-10]), "invalid archive"),
    "too few arrays": (
        instead(".npz", npz(arr_0=np.ones(3))),
        "the model has 4 tensors",
    ),
    "wrong shape": (put(changed(FIRST, torch.ones(4, 5))), f"'{FIRST}': expected shape (4, 6), got (4, 5)"),
    "wrong name": (put(MISSING | {"head.bas": torch.ones(3)}), "tensor 'head.bias' is missing"),
    "missing tensor": (put(MISSING), "tensor 'head.bias' is missing"),
    "extra tensor": (put(changed("more", torch.ones(2))), "unexpected tensor 'more'"),
    "hostile tensor name": (put(changed("../../x\n<script>", torch.ones(2))), r"'../../x\n<script>'"),
    "endless tensor name": (put(changed("x" * 10_000, torch.ones(2))), "unexpected tensor 'xxx"),
    "nan": (put(changed(FIRST, torch.full((4, 6), torch.nan))), "24 of 24 values are not finite"),
    "inf": (put(changed(FIRST, torch.full((4, 6), torch.inf))), "24 of 24 values are not finite"),
    "beyond float32": (
        put(changed(FIRST, torch.full((4, 6), 1e300, dtype=torch.float64))),
        "24 of 24 values are not finite",
    ),
    "overflow under the probe": (
        put({name: torch.full_like(tensor, 3e38) for name, tensor in random_state(2).items()}),
        "logits are not finite",
    ),
    "zeros": (
        put({name: torch.zeros_like(tensor) for name, tensor in random_state(2).items()}),
        "are zero",
    ),
    "integers": (
        put(changed(FIRST, torch.ones(4, 6, dtype=torch.int64))),
        f"'{FIRST}': expected floating values, got integer",
    ),
    "symlink out of the folder": (symlink, "symbolic link"),
    "a pipe": (pipe, "not a regular file: a pipe"),
    "two files of one name": (twice, "several files claim this name: b.pt and b.safetensors"),
}


@pytest.mark.parametrize(("act", "reason"), CASES.values(), ids=CASES)
def test_a_bad_client_is_excluded_with_a_reason(
    uploads: Uploads, act: Callable[[Uploads], object], reason: str
) -> None:
    act(uploads)
    document = uploads.audit_json(code=3)
    assert list(document["scores"]) == ["a", "c"]
    assert list(document["excluded"]) == ["b"]
    assert reason in document["excluded"]["b"]
    assert len(document["excluded"]["b"]) < 400
    assert "\n" not in document["excluded"]["b"]
    assert not (uploads.folder / MARK).exists()


@pytest.mark.parametrize(("act", "reason"), CASES.values(), ids=CASES)
def test_strict_stops_at_a_bad_client_with_one_line(
    uploads: Uploads, refused: Callable[..., str], act: Callable[[Uploads], object], reason: str
) -> None:
    act(uploads)
    line = refused(*uploads.arguments("--strict", "--out", "audit"))
    assert line.startswith("error: b: ")
    assert not (uploads.folder / MARK).exists()
    leftovers = uploads.folder / "audit"
    assert not leftovers.exists() or not (leftovers / "ledger.json").exists()


def test_the_bomb_runs_code_if_it_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Bomb()))
    assert Path(MARK).exists()


def test_float64_is_read_as_float32_with_a_note(uploads: Uploads) -> None:
    plain = uploads.audit_json()
    uploads.save("b", {name: tensor.double() for name, tensor in random_state(2).items()})
    document = uploads.audit_json()
    assert document["notes"] == {"b": f"tensor '{FIRST}' and 3 others: float64, read as float32"}
    assert document["scores"] == plain["scores"]


def test_an_empty_folder(uploads: Uploads, refused: Callable[..., str]) -> None:
    for file in uploads.clients.iterdir():
        file.unlink()
    assert "no client models in" in refused(*uploads.arguments("--out", "audit"))
    assert not (uploads.folder / "audit").exists()


def test_one_client_is_audited_with_a_note(uploads: Uploads) -> None:
    for name in "bc":
        (uploads.clients / f"{name}.safetensors").unlink()
    document = uploads.audit_json()
    assert document["scores"] == {"a": 1.0}
    assert document["flags"] == {}
    assert "only client" in document["notes"]["a"]


def test_an_audit_without_usable_clients_is_an_error(uploads: Uploads, refused: Callable[..., str]) -> None:
    for file in uploads.clients.iterdir():
        file.write_bytes(b"nonsense")
    assert "no client can be audited" in refused(*uploads.arguments())


@pytest.mark.parametrize("act", ["append", "shorten", "rewrite"])
def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(WHOLE)
    look, looks = os.fstat, []

    def meddling(handle: int) -> os.stat_result:
        """Change the file after the first call."""
        seen = look(handle)
        if not looks:
            looks.append(seen)
            with path.open("r+b") as file:
                if act == "append":
                    file.seek(0, os.SEEK_END)
                    file.write(b"more")
                elif act == "shorten":
                    file.truncate(len(WHOLE) // 2)
                else:
                    file.write(b"x")
            os.utime(path, ns=(1, 1))
        return seen

    monkeypatch.setattr(checkpoint_reader.os, "fstat", meddling)
    with pytest.raises(CelmError, match="changed while it was read"):
        checkpoint_reader.take_snapshot(path, 1 << 20)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(WHOLE[:-5], "invalid safetensors"), (save(MISSING), "'head.bias' is missing"), (b"", "empty")],
)
def test_a_bad_global_model_ends_the_audit(
    uploads: Uploads, refused: Callable[..., str], content: bytes, reason: str
) -> None:
    uploads.global_file.write_bytes(content)
    line = refused(*uploads.arguments("--out", "audit"))
    assert "global model" in line
    assert reason in line
    assert not (uploads.folder / "audit").exists()


def test_links_that_the_operator_names_are_followed(uploads: Uploads) -> None:
    """A folder of the Hugging Face cache, or `latest`, contains links."""
    plain = uploads.audit_json()
    (uploads.folder / "latest.safetensors").symlink_to(uploads.global_file)
    (uploads.folder / "today").symlink_to(uploads.clients)
    linked = ("--global", "latest.safetensors", "--out", "audit", "--format", "json")
    arguments = list(uploads.arguments(*linked))
    arguments[arguments.index("--clients") + 1] = "today"
    result = uploads.invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["scores"] == plain["scores"]
    assert uploads.invoke("audit-verify", "audit", "--full").exit_code == 0


def test_an_unprintable_name_in_a_pickle_is_escaped(uploads: Uploads) -> None:
    """The name of a class in a pickle may be half of a surrogate pair."""
    name = "\ud800\x1b[2J".encode("utf-8", "surrogatepass")
    call = b"\x80\x02X" + struct.pack("<I", len(name)) + name + b"X\x01\x00\x00\x00x\x93."
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", call)
        archive.writestr("archive/version", "3\n")
    instead(".pt", content.getvalue())(uploads)
    document = uploads.audit_json("--out", "audit", code=3)
    assert document["excluded"]["b"].isprintable()


def test_nothing_is_written_into_the_folder_of_clients(
    uploads: Uploads, kept_files: Callable[..., object]
) -> None:
    before = kept_files(uploads.clients)
    uploads.audit_json("--out", "audit")
    assert kept_files(uploads.clients) == before


OWN_MODEL = """
import sys

from torch import nn

class Model(nn.Sequential):
    def forward(self, inputs):
        {forward}
        return super().forward(inputs)

def make():
    {make}
    return Model(nn.Flatten(), nn.Linear(6, 3))
"""


def audit_own_model(
    uploads: Uploads, name: str, make: str = "pass", forward: str = "pass"
) -> tuple[object, ...]:
    """Write a factory and files of its models, and return the arguments of their audit."""
    (uploads.folder / f"{name}.py").write_text(OWN_MODEL.format(make=make, forward=forward))
    for seed, path in enumerate([uploads.global_file, *sorted(uploads.clients.iterdir())]):
        generator = torch.Generator().manual_seed(seed)
        save_file({"1.weight": torch.randn(3, 6, generator=generator), "1.bias": torch.zeros(3)}, path)
    options = ("--input-shape", "1,2,3", "--classes", 3, "--set", "probe.steps=2", "--out", "audit")
    return (
        "audit",
        "--global",
        uploads.global_file,
        "--clients",
        uploads.clients,
        "--model",
        f"{name}:make",
        *options,
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [("exiting_make", {"make": "sys.exit()"}), ("exiting_forward", {"forward": "sys.exit(0)"})],
)
def test_a_model_that_exits_is_an_error(
    uploads: Uploads, refused: Callable[..., str], name: str, code: dict[str, str]
) -> None:
    assert "SystemExit" in refused(*audit_own_model(uploads, name, **code))
    assert not (uploads.folder / "audit" / "ledger.json").exists()


def test_a_model_that_prints_does_not_change_the_output(uploads: Uploads) -> None:
    arguments = audit_own_model(uploads, "printing", make="print('made')", forward="print('called')")
    result = uploads.invoke(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)["scores"]) == set("abc")
    assert "made" in result.stderr
