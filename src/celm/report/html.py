"""The report of a run, a study or a Flower federation as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import explained, write_text
from celm.federation.chain import is_state

NAME = "report.html"
ENDINGS = (".html", ".htm")


def report(path: Path, probe_images: bool = False, home: Path | None = None) -> str:
    """The page of the folder `path`. `home` is where it will be kept, for its links; by default there."""
    if (path / "table.json").is_file():
        from celm.report.study_page import study_page

        return study_page(path, home or path)
    if (path / "settings.toml").is_file():
        from celm.report.reading import Told
        from celm.report.run_page import run_page

        return run_page(Told(path), probe_images)
    if is_state(path):
        from celm.report.reading import ToldState
        from celm.report.state_page import state_page

        return state_page(ToldState(path))
    if (path / "cells").is_dir():
        raise CelmError(
            f"{path} has no table yet: the study was stopped before its first, or goes on still",
            "the same celm study command goes on with what is missing; a run under cells/ has a report of its own",
        )
    if (path / "ledger.json").is_file() and (path / NAME).is_file():
        raise CelmError(f"{path} is an audit, whose report is there already: {path / NAME}")
    missing = (
        "there is no such folder"
        if not path.is_dir()
        else "it has no settings.toml, table.json or rounds.jsonl"
    )
    raise CelmError(
        f"{path} is neither a run nor a study nor the state of a federation: {missing}",
        "give a folder that celm run, celm compare, celm study or a Flower strategy made",
    )


def write_report(path: Path, out: Path | None = None, probe_images: bool = False) -> Path:
    """Write the report, wholly or not at all; into the folder itself unless told otherwise. Returns where it is."""
    place = out or path / NAME
    if place.suffix.lower() not in ENDINGS:
        raise CelmError(f"cannot write {place}: a report is an HTML file", "let its name end in .html")
    with explained(place, "write"):
        if place.is_dir():
            raise CelmError(f"cannot write {place}: it is a folder", "name a file, as in report.html")
    write_text(place, report(path, probe_images, home=place.parent))
    return place
