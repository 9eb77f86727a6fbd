"""Export contributions as a table: one row for each client in each round.

round, time        the round's number, and when it ended (federations)
client, key        the client's name, and the fingerprint of its key (federations with named nodes)
asked, answered    whether it was sent a model, and whether its reply arrived and had a usable form
weight, score      the client's weight after the round, and its score in it; empty if there is none
earned             what it has earned until this round (`celm.federation.earnings`)
flags              its flags with reasons
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import dump_json, write_bytes
from celm.base.text import csv_cell
from celm.operations.folder_record import FolderRecord, answered_clients, asked_clients
from celm.records.federation_records import FederationRound

_COLUMNS = ("round", "time", "client", "key", "asked", "answered", "weight", "score", "earned", "flags")


def contribution_rows(record: FolderRecord) -> list[dict[str, Any]]:
    """Return the rows, with the names of the columns as keys."""
    rows = []
    keys: dict[str, str] = {}
    for line in record.rounds:
        if isinstance(line, FederationRound):
            keys |= line.keys
        asked, answered = set(asked_clients(line)), set(answered_clients(line))
        weights, scores = line.client_weights or {}, line.scores or {}
        known = dict.fromkeys([*weights, *asked_clients(line), *line.excluded])
        for client in known:
            reasons = {**line.flags.get(client, {})}
            if client in line.excluded:
                reasons["excluded"] = line.excluded[client]
            values = (
                line.round,
                line.time if isinstance(line, FederationRound) else None,
                client,
                keys.get(client),
                client in asked,
                client in answered,
                weights.get(client),
                scores.get(client),
                line.earned.get(client),
                "; ".join(f"{kind}: {reason}" for kind, reason in reasons.items()),
            )
            rows.append(dict(zip(_COLUMNS, values, strict=True)))
    return rows


def write_contributions(record: FolderRecord, path: Path) -> None:
    """Write the rows as .csv, .json (a list of objects) or .parquet, by the suffix of `path`."""
    write_table(contribution_rows(record), path, record.digest)


def write_table(rows: Sequence[Mapping[str, Any]], path: Path, digest: str) -> None:
    """Write rows in the format of the suffix of `path`. A Parquet file has the digest as metadata `record`."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        content = to_csv(rows).encode()
    elif suffix == ".json":
        content = (dump_json(json_rows(rows), indent=2) + "\n").encode()
    elif suffix == ".parquet":
        content = _to_parquet(rows, digest)
    else:
        raise CelmError(f"cannot write {path}: unknown format", "use .csv, .json or .parquet")
    write_bytes(path, content)


def json_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with amounts as JSON numbers."""
    return [
        {name: float(value) if isinstance(value, Decimal) else value for name, value in row.items()}
        for row in rows
    ]


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows with equal keys as CSV, without text that a spreadsheet would run as a formula.

    >>> to_csv([{"client": "=1+1", "weight": 0.5, "score": None}]).splitlines()
    ['client,weight,score', "'=1+1,0.5,"]
    """
    lines = list(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(lines[0] if lines else ())
    writer.writerows([csv_cell(value) for value in line.values()] for line in lines)
    return text.getvalue()


def _to_parquet(rows: Sequence[Mapping[str, Any]], digest: str) -> bytes:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([dict(row) for row in rows])
    table = table.replace_schema_metadata({"record": digest})
    buffer = pyarrow.BufferOutputStream()
    parquet.write_table(table, buffer)
    content: bytes = buffer.getvalue().to_pybytes()
    return content
