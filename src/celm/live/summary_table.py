"""The contributions of a federation as text for a log."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celm.core.class_holders import ClassClaims
from celm.live.node_names import printable_name
from celm.records.class_evidence import claims_from_records

_MAX_LISTED_CLASSES = 12
"""Further classes are counted, not named."""


def format_contributions(records: Sequence[Mapping[str, Any]], folder: Path | None) -> str:
    """Return one line per client, heaviest first, and how to get a report."""
    if not records:
        return "no round is finished yet"
    weights: Mapping[str, float] = records[-1]["client_weights"]
    earned: Mapping[str, float] = records[-1].get("earned", {})
    evidence = next((line["evidence"] for line in reversed(records) if line["evidence"]), None)
    claims = claims_from_records(records)
    heading = "  evidence for (not tested)" if claims is None else "  classes held"
    heaviest_first = sorted(weights, key=lambda name: -weights[name])
    width = max(len("client"), *(len(printable_name(name)) for name in weights))
    lines = [f"{'client':{width}}  weight  earned" + (heading if evidence else "")]
    for name in heaviest_first:
        class_text = f"  {_describe_classes(name, claims, evidence.get(name))}" if evidence else ""
        percents = f"{100 * weights[name]:4.1f} %  {100 * earned.get(name, 0):4.1f} %"
        lines.append(f"{printable_name(name):{width}}  {percents}{class_text}")
    lines.append(
        "for a page: "
        + (f"celm report {shlex.quote(str(folder))}" if folder else "set folder=... to keep a record")
    )
    return "\n".join(lines)


def _describe_classes(client: str, claims: ClassClaims | None, row: Sequence[float] | None) -> str:
    """Say which classes a client surely and possibly holds; without claims, for which its last probe has evidence.

    >>> claims = ClassClaims(3, {"a": (0, 2), "b": ()}, {"a": (), "b": (1,)}, {2: "a"})
    >>> [_describe_classes(client, claims, [0.5, 0.0, 2.0]) for client in ("a", "b", "c")]
    ['surely 2 of 3: 0 2; sole evidence for 2', 'surely 0 of 3; possibly 1', 'not tested']
    >>> [_describe_classes("a", None, row) for row in ([0.5, 0.0, 2.0], [0.0, 0.0], None)]
    ['2 of 3: 0 2', '0 of 2', 'not in the last probed round']
    """
    if claims is None:
        if row is None:
            return "not in the last probed round"
        return _count_classes([k for k, value in enumerate(row) if value > 0], len(row))
    if client not in claims.surely:
        return "not tested"
    text = f"surely {_count_classes(claims.surely[client], claims.num_classes)}"
    if possibly := claims.possibly[client]:
        text += f"; possibly {_list_classes(possibly)}"
    if sole_classes := claims.sole_classes(client):
        text += f"; sole evidence for {_list_classes(sole_classes)}"
    return text


def _count_classes(classes: Sequence[int], num_classes: int) -> str:
    return f"{len(classes)} of {num_classes}" + (f": {_list_classes(classes)}" if classes else "")


def _list_classes(classes: Sequence[int]) -> str:
    """List class numbers; many are cut short.

    >>> _list_classes(range(15))
    '0 1 2 3 4 5 6 7 8 9 10 11 and 3 more'
    """
    num_more = len(classes) - _MAX_LISTED_CLASSES
    listed = " ".join(map(str, classes[:_MAX_LISTED_CLASSES]))
    return f"{listed} and {num_more} more" if num_more > 0 else listed
