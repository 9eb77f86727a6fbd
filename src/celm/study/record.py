"""What was asked for, kept beside the table for its report: `study.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from celm import __version__
from celm.base.errors import CelmError
from celm.base.files import dump_json, write_text
from celm.report.reading import Asked, Standing, read_asked
from celm.study.declaration import Study
from celm.study.grid import Cell, Outcome
from celm.study.scales import Scale, seeds_at

NAME = "study.json"


def record_study(
    study: Study, name: str, scale: Scale, out: Path, cells: Iterable[Cell], only: str = ""
) -> None:
    """`name` is what the study was asked for by: its own name or a file; `cells` are all of the study's."""
    asked = Asked(
        command=["celm", "study", name, "--scale", scale.value],
        title=study.title + scale.note,
        about=study.about,
        study=name,
        scale=scale.value,
        seeds=seeds_at(study.seeds, scale),
        version=__version__,
        cells=standings(cells, out),
    )
    save(asked.model_copy(update={"only": parts(out, asked, only.strip())}), out)


def record_comparison(
    command: Sequence[str], title: str, outcomes: Mapping[tuple[str, int], Outcome], out: Path
) -> None:
    """Also its errors; those of earlier comparisons in the folder are not of this table."""
    told = [replace(outcome, cell=by_split(outcome.cell)) for outcome in outcomes.values()]
    asked = Asked(
        command=[*command],
        title=title,
        seeds=list(dict.fromkeys(seed for _, seed in outcomes)),
        version=__version__,
        cells=standings((outcome.cell for outcome in told), out),
    )
    save(asked, out)
    errors = {asked.cells[place_in(out, o.cell)].key: o.error for o in told if o.error}
    write_text(out / "errors.json", dump_json(errors, indent=2) + "\n")


def by_split(cell: Cell) -> Cell:
    """In a row that names the split, too: a folder may come to hold several."""
    return replace(cell, row=f"{cell.experiment.dataset.name}, {cell.experiment.split.name}")


def parts(out: Path, asked: Asked, only: str) -> list[str]:
    """Also those that earlier commands have asked for; none where one of them asked for the whole."""
    try:
        before = read_asked(out / NAME)
    except CelmError:
        before = None
    if before is None or before.command != asked.command:
        return [only] if only else []
    return list(dict.fromkeys([*before.only, only])) if before.only and only else []


def standings(cells: Iterable[Cell], out: Path) -> dict[str, Standing]:
    return {
        place_in(out, cell): Standing(row=cell.row, method=cell.method, seed=cell.experiment.run.seed)
        for cell in cells
    }


def place_in(out: Path, cell: Cell) -> str:
    return cell.place.relative_to(out).as_posix()


def save(asked: Asked, out: Path) -> None:
    write_text(out / NAME, dump_json(asked.model_dump(), indent=2) + "\n")
