"""Rounds, clients and global models in folders that others may write to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import celm
from auditing.conftest import (
    CLASSES,
    QUICK,
    SETTINGS,
    Uploads,
    random_state,
    save_rounds,
)
from celm.base.errors import CelmError


def save_pretrained(folder: Path, seed: int) -> Path:
    folder.mkdir(parents=True)
    save_file(random_state(seed), folder / "model.safetensors")
    return folder / "model.safetensors"


def test_a_global_file_among_the_clients_does_not_replace_the_named_one(uploads: Uploads) -> None:
    """A client that can write to the folder must not choose the model that evidence is relative to."""
    before = uploads.audit_json()
    uploads.save("global", random_state(55))
    after = uploads.audit_json()
    assert after["scores"] == before["scores"]
    assert after["ignored"] == ["global.safetensors"]


def test_the_named_global_model_among_the_clients_is_not_a_client(uploads: Uploads) -> None:
    before = uploads.audit_json()
    start = save_pretrained(uploads.clients / "global", 0)
    result = uploads.audit_json("--global", start)
    assert result["scores"] == before["scores"]
    assert result["ignored"] == []
    (uploads.clients / "global").rename(uploads.clients / "whatever")
    result = uploads.audit_json("--global", uploads.clients / "whatever" / "model.safetensors")
    assert result["scores"] == before["scores"]


def test_a_global_folder_among_the_clients_does_not_replace_the_named_one(uploads: Uploads) -> None:
    before = uploads.audit_json()
    save_pretrained(uploads.clients / "global", 55)
    after = uploads.audit_json()
    assert after["scores"] == before["scores"]
    assert after["ignored"] == ["global"]


def test_the_global_models_of_rounds_may_be_in_folders(uploads: Uploads) -> None:
    rounds_folder = save_rounds(uploads)
    files = celm.audit(uploads.global_file, rounds_folder, **SETTINGS)
    for folder in rounds_folder.iterdir():
        file = folder / "global.safetensors"
        (folder / "global").mkdir()
        file.rename(folder / "global" / "model.safetensors")
    folders = celm.audit(uploads.global_file, rounds_folder, **SETTINGS)
    assert folders.document == files.document


def test_rounds_with_global_models_need_no_other(uploads: Uploads) -> None:
    rounds_folder = save_rounds(uploads)
    options = ("--model", "mlp", "--input-shape", "1,2,3", "--classes", CLASSES, *QUICK)
    done = uploads.invoke("audit", "--clients", rounds_folder, *options, "--out", "audit", "--format", "json")
    assert done.exit_code == 0, done.output
    assert (
        json.loads(done.stdout)["scores"] == celm.audit(uploads.global_file, rounds_folder, **SETTINGS).scores
    )
    ledger = json.loads((uploads.folder / "audit" / "ledger.json").read_text())
    assert ledger["inputs"]["global"] is None
    again = uploads.invoke("audit-verify", "audit", "--full")
    assert again.exit_code == 0, again.output
    assert "the audit was repeated, and its numbers agree" in again.stdout


def test_a_round_without_a_global_model_is_refused(uploads: Uploads, refused: Callable[..., str]) -> None:
    rounds_folder = save_rounds(uploads)
    (rounds_folder / "round-002" / "global.safetensors").unlink()
    options = ("--model", "mlp", "--input-shape", "1,2,3", "--classes", CLASSES)
    error = refused("audit", "--clients", rounds_folder, *options)
    assert "round-002" in error
    assert "--global" in error


def test_a_missing_global_file_is_refused_even_if_no_round_needs_it(
    uploads: Uploads, refused: Callable[..., str]
) -> None:
    rounds_folder = save_rounds(uploads)
    error = refused(*uploads.arguments("--global", "nowhere.pt", "--clients", rounds_folder))
    assert "nowhere.pt" in error


def test_the_global_model_may_be_a_folder(uploads: Uploads, refused: Callable[..., str]) -> None:
    before = uploads.audit_json()
    save_pretrained(uploads.folder / "start", 0)
    assert uploads.audit_json("--global", uploads.folder / "start")["scores"] == before["scores"]
    assert "0 models" in refused(*uploads.arguments("--global", uploads.folder))


def test_an_error_without_clients_suggests_a_subfolder(uploads: Uploads, refused: Callable[..., str]) -> None:
    uploads.global_file.rename(uploads.folder / "global.pt")
    options = ("--model", "mlp", "--input-shape", "1,2,3", "--classes", CLASSES)
    error = refused("audit", "--global", "global.pt", "--clients", uploads.folder, *options)
    assert "did you mean" in error
    assert str(uploads.clients) in error


def test_a_round_with_two_global_models_is_refused(uploads: Uploads) -> None:
    rounds_folder = save_rounds(uploads, 1)
    save_pretrained(rounds_folder / "round-001" / "global", 1)
    with pytest.raises(
        CelmError, match=r"two global models.*global/model\.safetensors and .*global\.safetensors"
    ):
        celm.audit(uploads.global_file, rounds_folder, **SETTINGS)
    (rounds_folder / "round-001" / "global.safetensors").unlink()
    torch.save(random_state(1), rounds_folder / "round-001" / "global" / "pytorch_model.bin")
    with pytest.raises(CelmError, match=r"global: .*2 models"):
        celm.audit(uploads.global_file, rounds_folder, **SETTINGS)


def test_a_round_in_two_folders_with_two_global_models_is_refused(uploads: Uploads) -> None:
    rounds_folder = save_rounds(uploads, 1)
    other_folder = uploads.folder / "other"
    other_folder.mkdir()
    shutil.copytree(rounds_folder / "round-001", other_folder / "round-001")
    with pytest.raises(CelmError, match="two global models in round-001"):
        celm.audit(None, [rounds_folder, other_folder], **SETTINGS)


def test_a_link_as_the_global_model_of_a_round_is_refused(uploads: Uploads) -> None:
    rounds_folder = save_rounds(uploads, 1)
    (rounds_folder / "round-001" / "global.safetensors").unlink()
    (rounds_folder / "round-001" / "global").mkdir()
    (rounds_folder / "round-001" / "global" / "model.safetensors").symlink_to(
        uploads.clients / "a.safetensors"
    )
    with pytest.raises(CelmError, match="symbolic link"):
        celm.audit(uploads.global_file, rounds_folder, **SETTINGS)


def test_files_that_are_not_checkpoints_are_ignored_by_name(uploads: Uploads) -> None:
    (uploads.clients / "README.md").write_text("x")
    (uploads.clients / "d.h5").write_bytes(b"x")
    (uploads.clients / "e.pkl").write_bytes(b"x")
    (uploads.clients / "empty").mkdir()
    result = uploads.audit_json()
    assert result["ignored"] == ["d.h5", "e.pkl", "empty"]
