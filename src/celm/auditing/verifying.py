"""Does a finished audit still belong to its files? Every digest again; if wanted, the whole audit again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celm.auditing.audit import audit
from celm.auditing.ledger import LEDGER, RESULT, changed, differences, read_ledger
from celm.auditing.settings import Settings
from celm.auditing.work import Watch
from celm.base.errors import CelmError
from celm.federation.folder import read_json
from celm.models import named_by_both

COMPARED = ("scores", "evidence", "weights", "holds", "sole_holders", "excluded")


def verify(
    folder: str | Path, full: bool = False, watch: Watch | None = None, model: str | None = None
) -> list[str]:
    """What is wrong with a finished audit, a line each; nothing where the report belongs to its files.

    Recomputes every digest. With `full` the audit itself is repeated from the files and its numbers are compared; then
    `model` repeats the name of a model of your own, since the ledger may be anybody's and `package.module:factory` is
    code.
    """
    place = Path(folder)
    known = read_ledger(place)
    problems = changed(place, known)
    if problems or not full:
        return problems
    inputs, how = known["inputs"], settings_of(place, known["settings"])
    start, clients = inputs.get("global"), inputs.get("clients")
    own = any(file["role"] == "global" for file in known["files"])
    if clients is None or (start is None and not own):
        raise CelmError(f"{place} is an audit of models in memory and cannot be repeated from files")
    if not isinstance(start, str | None) or not all(isinstance(each, str) for each in clients):
        raise CelmError(f"{place / LEDGER} is damaged: its inputs are no paths")
    named_by_both(how.model, model, place / LEDGER)
    begun = None if start is None else place / start
    again = audit(begun, [place / each for each in clients], watch=watch, **how.tables())
    before = read_json(place / RESULT)
    ours = {name: again.document[name] for name in COMPARED} | {"flags": sorted(again.flags)}
    theirs = {name: before.get(name) for name in COMPARED} | {"flags": sorted(before.get("flags", {}))}
    return [f"repeated, the audit differs: {line}" for line in differences(ours, theirs)[:10]]


def settings_of(place: Path, told: Mapping[str, Any]) -> Settings:
    """Those of the ledger: settings of an audit and nothing else that `audit` takes, such as a folder to write to."""
    try:
        return Settings.parse({"movement": False} | dict(told))  # ledgers without it are older than the look
    except CelmError as error:
        raise CelmError(f"{place / LEDGER} is damaged: {error}") from error
