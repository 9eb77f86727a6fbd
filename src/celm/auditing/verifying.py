"""Does a finished audit still belong to its files? Every digest again; if wanted, the whole audit again."""

from __future__ import annotations

from pathlib import Path

from celm.auditing.audit import audit
from celm.auditing.ledger import RESULT, changed, differences, read_ledger
from celm.auditing.work import Watch
from celm.base.errors import CelmError
from celm.federation.folder import read_json

COMPARED = ("scores", "evidence", "weights", "holds", "sole_holders", "excluded")


def verify(folder: str | Path, full: bool = False, watch: Watch | None = None) -> list[str]:
    """What is wrong with a finished audit, a line each; nothing where the report belongs to its files.

    Recomputes every digest. With `full` the audit itself is repeated from the files and its numbers are compared.
    """
    place = Path(folder)
    known = read_ledger(place)
    problems = changed(place, known)
    if problems or not full:
        return problems
    inputs, settings = known["inputs"], dict(known["settings"])
    if inputs.get("global") is None or inputs.get("clients") is None:
        raise CelmError(f"{place} is an audit of models in memory and cannot be repeated from files")
    again = audit(
        place / inputs["global"],
        [place / each for each in inputs["clients"]],
        classes=settings.pop("classes"),
        input_shape=settings.pop("input_shape"),
        model=settings.pop("model", None),
        watch=watch,
        **settings,
    )
    before = read_json(place / RESULT)
    ours = {name: again.document[name] for name in COMPARED} | {"flags": sorted(again.flags)}
    theirs = {name: before.get(name) for name in COMPARED} | {"flags": sorted(before.get("flags", {}))}
    return [f"repeated, the audit differs: {line}" for line in differences(ours, theirs)[:10]]
