"""Who contributed what, as a few lines of text for a log."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celm.flower.identity import clean

LISTED = 12
"""So many classes are named; the rest is counted."""


def contribution_table(records: Sequence[Mapping[str, Any]], folder: Path | None) -> str:
    """The heaviest first; and how to see more, where the record was kept in `folder`."""
    if not records:
        return "no round is done yet"
    weights: Mapping[str, float] = records[-1]["standing"]
    evidence = next((line["evidence"] for line in reversed(records) if line["evidence"]), None)
    heaviest_first = sorted(weights, key=lambda name: -weights[name])
    width = max(len("client"), *(len(clean(name)) for name in weights))
    told = [f"{'client':{width}}  weight" + ("  classes with evidence" if evidence else "")]
    for name in heaviest_first:
        held = f"  {classes(evidence.get(name))}" if evidence else ""
        told.append(f"{clean(name):{width}}  {100 * weights[name]:4.1f} %{held}")
    told.append(
        "for a page: "
        + (f"celm report {shlex.quote(str(folder))}" if folder else "folder=... keeps a record")
    )
    return "\n".join(told)


def classes(row: Sequence[float] | None) -> str:
    """
    >>> classes([0.5, 0.0, 2.0]), classes([0.0, 0.0]), classes(None)
    ('2 of 3: 0 2', '0 of 2', 'not among those last probed')
    >>> classes([1.0] * 15)
    '15 of 15: 0 1 2 3 4 5 6 7 8 9 10 11 and 3 more'
    """
    if row is None:
        return "not among those last probed"
    held = [str(k) for k, value in enumerate(row) if value > 0]
    rest = f" and {len(held) - LISTED} more" if len(held) > LISTED else ""
    return f"{len(held)} of {len(row)}" + (f": {' '.join(held[:LISTED])}{rest}" if held else "")
