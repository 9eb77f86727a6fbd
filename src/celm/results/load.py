"""Load any result folder as an object. Nothing is continued, written or imported from the folder."""

from __future__ import annotations

import os
from pathlib import Path

from celm.auditing.audit_folder import read_audit
from celm.auditing.result import Audit
from celm.base.errors import CelmError
from celm.records.federation_files import is_state_folder
from celm.records.run_files import RunFiles
from celm.records.study_records import read_study_manifest
from celm.results.federation import Federation
from celm.runs.run import Run
from celm.study.grid_result import Comparison, Study


def load(path: str | os.PathLike[str]) -> Run | Comparison | Study | Audit | Federation:
    """Return the result in a folder, read-only. A folder that is not finished is loaded as far as it got.

    A folder of `celm run` is a `Run`, of `celm compare` a `Comparison`, of `celm study` a `Study`, of `celm audit` an
    `Audit`, and the folder of a live strategy a `Federation`. `celm.resume` continues a run. Raise CelmError if the
    folder is none of these, or is damaged.
    """
    if not isinstance(path, str | os.PathLike):
        raise CelmError(f"cannot load {path!r:.80}: it is not a path")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise CelmError(
            f"cannot load {folder}: it {'is not a folder' if folder.exists() else 'does not exist'}"
        )
    if (folder / "study.json").is_file() or (folder / "table.json").is_file():
        manifest = read_study_manifest(folder / "study.json")
        return Comparison(folder) if manifest and manifest.command[1] == "compare" else Study(folder)
    if (folder / "settings.toml").is_file():
        return Run.read_any(RunFiles.open(folder))
    if (folder / "result.json").is_file() and (folder / "times.jsonl").is_file():
        raise CelmError(f"cannot load {folder}: its settings.toml is missing", "restore it from a copy")
    if is_state_folder(folder):
        try:
            return Federation(folder)
        except CelmError as error:
            if str(folder) in str(error):
                raise
            raise CelmError(f"cannot load {folder}: {error}") from error
    if any((folder / name).exists() for name in ("ledger.json", "audit.json", "probes")):
        return read_audit(folder)
    if next(folder.glob("*/settings.toml"), None):
        return Comparison(folder)
    if next(folder.glob("cells/*/settings.toml"), None):
        return Study(folder)
    raise CelmError(
        f"cannot load {folder}: nothing in it is of celm",
        "give a folder of celm run, compare, study or audit, or of a Flower strategy",
    )
