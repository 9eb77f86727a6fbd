"""Every line of what a client may put into the folder: one clear line, that client left out, the others audited."""

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

import celm
from auditing.conftest import Uploads, random_state
from celm.auditing import reading
from celm.base.errors import CelmError

FIRST = "fc1.weight"
MARK = "executed"


class Bomb:
    """Whoever unpickles this leaves a file behind."""

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
    """A PyTorch archive whose pickle runs code."""
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
    """An npz entry whose header claims terabytes."""
    entry = io.BytesIO()
    np.lib.format.write_array_header_1_0(entry, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(f"{FIRST}.npy", entry.getvalue() + bytes(8))
    return content.getvalue()


def symlink(uploads: Uploads) -> None:
    outside = uploads.place / "outside.safetensors"
    save_file(random_state(9), outside)
    (uploads.clients / "b.safetensors").unlink()
    (uploads.clients / "b.safetensors").symlink_to(outside)


def pipe(uploads: Uploads) -> None:
    (uploads.clients / "b.safetensors").unlink()
    os.mkfifo(uploads.clients / "b.safetensors")


def twice(uploads: Uploads) -> None:
    torch.save(random_state(2), uploads.clients / "b.pt")


WHOLE = save(random_state(2))
TERABYTES = header({FIRST: {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}) + bytes(64)
MISSING = {name: tensor for name, tensor in random_state(2).items() if name != "head.bias"}

CASES: dict[str, tuple[Callable[[Uploads], object], str]] = {
    "truncated": (write(WHOLE[:-5]), "is not a whole safetensors file"),
    "truncated header": (write(WHOLE[:20]), "is not a whole safetensors file"),
    "empty file": (write(b""), "is empty"),
    "corrupted header": (write(WHOLE[:8] + b"\xff" + WHOLE[9:]), "is not a whole safetensors file"),
    "bytes appended": (write(WHOLE + b"more"), "is not a whole safetensors file"),
    "header length of terabytes": (write(header({}, 1 << 42)), "is not a whole safetensors file"),
    "tensor of terabytes": (write(TERABYTES), "is not a whole safetensors file"),
    "far too large": (
        lambda uploads: os.truncate(uploads.clients / "b.safetensors", 1 << 32),
        "far more than the model needs",
    ),
    "pickle with code": (instead(".pt", pickle.dumps(Bomb())), "a bare pickle is never opened"),
    "archive with code": (instead(".pt", bomb_archive()), "names '__builtin__ getattr', which"),
    "whole module pickled": (
        instead(".pt", pytorch(torch.nn.Linear(2, 2))),
        "names 'torch.nn.modules.linear Linear'",
    ),
    "truncated archive": (instead(".pt", pytorch(random_state(2))[:-30]), "is not a whole archive"),
    "compressed archive": (instead(".pt", deflated_archive()), "is a compressed archive"),
    "no tensors in the archive": (
        instead(".pt", pytorch({"epoch": 3})),
        "'epoch': expected a tensor, got int",
    ),
    "not even a dict": (instead(".pt", pytorch([1, 2])), "expected named tensors, got list"),
    "objects in npz": (instead(".npz", npz(x=np.array([{}], dtype=object))), "holds Python objects"),
    "npz of terabytes": (instead(".npz", lying_array()), "claims more values than the file holds"),
    "truncated npz": (instead(".npz", npz(x=np.ones(3))[:-10]), "is not a whole archive"),
    "too few arrays": (
        instead(".npz", npz(arr_0=np.ones(3))),
        "holds 1 arrays in order, but the model has 4",
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
        "its logits are not finite under the probe",
    ),
    "zeros": (
        put({name: torch.zeros_like(tensor) for name, tensor in random_state(2).items()}),
        "every value of every tensor is zero",
    ),
    "integers": (
        put(changed(FIRST, torch.ones(4, 6, dtype=torch.int64))),
        f"'{FIRST}': expected floating values, got integer",
    ),
    "symlink out of the folder": (symlink, "is a symbolic link"),
    "a pipe": (pipe, "is not a regular file but a pipe"),
    "two files of one name": (twice, "several files claim this name: b.pt and b.safetensors"),
}


@pytest.mark.parametrize(("act", "reason"), CASES.values(), ids=CASES)
def test_a_bad_client_is_left_out_and_named(
    uploads: Uploads, act: Callable[[Uploads], object], reason: str
) -> None:
    act(uploads)
    found = uploads.found(code=3)
    assert list(found["scores"]) == ["a", "c"]
    assert list(found["excluded"]) == ["b"]
    assert reason in found["excluded"]["b"]
    assert len(found["excluded"]["b"]) < 400
    assert "\n" not in found["excluded"]["b"]
    assert not (uploads.place / MARK).exists()


@pytest.mark.parametrize(("act", "reason"), CASES.values(), ids=CASES)
def test_strict_stops_at_it_with_one_line(
    uploads: Uploads, refused: Callable[..., str], act: Callable[[Uploads], object], reason: str
) -> None:
    act(uploads)
    line = refused(*uploads.arguments("--strict", "--out", "audit"))
    assert line.startswith("error: b: ")
    assert not (uploads.place / MARK).exists()
    leftovers = uploads.place / "audit"
    assert not leftovers.exists() or not (leftovers / "ledger.json").exists()


def test_a_bomb_would_go_off_if_it_were_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Bomb()))
    assert Path(MARK).exists()


def test_float64_is_read_as_float32_and_said(uploads: Uploads) -> None:
    plain = uploads.found()
    uploads.save("b", {name: tensor.double() for name, tensor in random_state(2).items()})
    found = uploads.found()
    assert found["notes"] == {"b": f"tensor '{FIRST}' and 3 others: float64, read as float32"}
    assert found["scores"] == plain["scores"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("<script>alert(1)", True),
        ("$(reboot)", True),
        ("tab\there", False),
        ("esc\x1b[2J", False),
        ("bidi\u202e", False),
    ],
)
def test_hostile_names_of_files(uploads: Uploads, name: str, kept: bool) -> None:
    uploads.save(name, random_state(7))
    found = uploads.found("--out", "audit", code=0 if kept else 3)
    page = (uploads.place / "audit" / "report.html").read_text()
    assert "<script>alert" not in page
    if kept:
        assert name in found["scores"]
    else:
        ((shown, reason),) = found["excluded"].items()
        assert shown.isprintable()
        assert "cannot be shown" in reason


def test_a_file_name_that_is_not_text(uploads: Uploads) -> None:
    (uploads.clients / "b.safetensors").rename(
        os.fsdecode(os.fsencode(uploads.clients) + b"/\xff\xfe.safetensors")
    )
    found = uploads.found("--out", "audit", code=3)
    assert "cannot be shown" in next(iter(found["excluded"].values()))
    assert uploads.invoke("audit-verify", "audit").exit_code == 0


def test_names_that_differ_in_case_only_belong_to_nobody(uploads: Uploads) -> None:
    uploads.save("B", random_state(7))
    found = uploads.found(code=3)
    assert list(found["scores"]) == ["a", "c"]
    assert set(found["excluded"]) == {"b", "B"}
    assert all("in case only" in reason for reason in found["excluded"].values())


@pytest.mark.parametrize("name", ["../../x", "x" * 10_000, "a\nb", "", "/etc/passwd"])
def test_hostile_names_of_models_in_memory(tmp_path: Path, name: str) -> None:
    states = {"a": random_state(1), "c": random_state(3), name: random_state(2)}
    found = celm.audit(
        random_state(0),
        states,
        model="mlp",
        options={"widths": [4]},
        input_shape=(1, 2, 3),
        classes=3,
        probe={"steps": 2},
        out=tmp_path / "audit",
    )
    assert list(found.scores) == ["a", "c"]
    ((shown, reason),) = found.excluded.items()
    assert len(shown) <= 60
    assert "its name" in reason
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit"]


def test_an_empty_folder(uploads: Uploads, refused: Callable[..., str]) -> None:
    for file in uploads.clients.iterdir():
        file.unlink()
    assert "no client models in" in refused(*uploads.arguments("--out", "audit"))
    assert not (uploads.place / "audit").exists()


def test_one_client_is_audited_with_a_note(uploads: Uploads) -> None:
    for name in "bc":
        (uploads.clients / f"{name}.safetensors").unlink()
    found = uploads.found()
    assert found["scores"] == {"a": 1.0}
    assert found["flags"] == {}
    assert "is alone" in found["notes"]["a"]


def test_nobody_left_is_an_error(uploads: Uploads, refused: Callable[..., str]) -> None:
    for file in uploads.clients.iterdir():
        file.write_bytes(b"nonsense")
    assert "no client can be audited; the first, a: is not a whole safetensors" in refused(
        *uploads.arguments()
    )


@pytest.mark.parametrize("act", ["append", "shorten", "rewrite"])
def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(WHOLE)
    look, looks = os.fstat, []

    def meddling(handle: int) -> os.stat_result:
        """After the first look at the file, somebody changes it."""
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

    monkeypatch.setattr(reading.os, "fstat", meddling)
    with pytest.raises(CelmError, match="changed while it was read"):
        reading.take_snapshot(path, 1 << 20)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(WHOLE[:-5], "not a whole safetensors"), (save(MISSING), "'head.bias' is missing"), (b"", "is empty")],
)
def test_a_bad_global_model_ends_the_audit(
    uploads: Uploads, refused: Callable[..., str], content: bytes, reason: str
) -> None:
    uploads.start.write_bytes(content)
    line = refused(*uploads.arguments("--out", "audit"))
    assert "the global model" in line
    assert reason in line
    assert not (uploads.place / "audit").exists()


def test_links_that_the_operator_names_are_followed(uploads: Uploads) -> None:
    """A folder of the Hugging Face cache, or `latest`, is made of links."""
    plain = uploads.found()
    (uploads.place / "latest.safetensors").symlink_to(uploads.start)
    (uploads.place / "today").symlink_to(uploads.clients)
    linked = ("--global", "latest.safetensors", "--out", "audit", "--format", "json")
    arguments = list(uploads.arguments(*linked))
    arguments[arguments.index("--clients") + 1] = "today"
    result = uploads.invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["scores"] == plain["scores"]
    assert uploads.invoke("audit-verify", "audit", "--full").exit_code == 0


def test_what_a_hostile_pickle_makes_a_library_say_can_be_saved(uploads: Uploads) -> None:
    """The name of a class in a pickle may be no text at all: half of a surrogate pair."""
    name = "\ud800\x1b[2J".encode("utf-8", "surrogatepass")
    call = b"\x80\x02X" + struct.pack("<I", len(name)) + name + b"X\x01\x00\x00\x00x\x93."
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", call)
        archive.writestr("archive/version", "3\n")
    instead(".pt", content.getvalue())(uploads)
    found = uploads.found("--out", "audit", code=3)
    assert found["excluded"]["b"].isprintable()


def test_nothing_is_written_into_the_folder_of_clients(
    uploads: Uploads, kept_files: Callable[..., object]
) -> None:
    before = kept_files(uploads.clients)
    uploads.found("--out", "audit")
    assert kept_files(uploads.clients) == before
