"""Tables of results as pandas data frames. pandas is optional."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError

if TYPE_CHECKING:
    import pandas as pd


def import_pandas() -> ModuleType:
    try:
        import pandas
    except ImportError as error:
        raise CelmError("to_dataframe needs pandas", "pip install 'celm[frames]'") from error
    module: ModuleType = pandas
    return module


def make_frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows as a data frame that has its columns even if there are no rows."""
    return import_pandas().DataFrame([dict(row) for row in rows], columns=list(columns))


def rounds_frame(
    records: Sequence[Mapping[str, Any]], classes: Sequence[str], selected_key: str
) -> pd.DataFrame:
    """Return one row per round and client from the records of a run or a live federation.

    `selected_key` names the list of the clients that were selected in a round. A value that a round does not have is
    missing. `accuracy` is that of the global model after the round.
    """
    clients = natural_sorted({client for record in records for client in _clients_of(record, selected_key)})
    observers = list(dict.fromkeys(name for record in records for name in record.get("observed") or {}))
    has_evidence = any(record.get("evidence") for record in records)
    evidence_columns = [f"evidence of {k}" for k in classes] if has_evidence else []
    rows = []
    for record in records:
        for client in clients:
            evidence = (record.get("evidence") or {}).get(client) or [None] * len(classes)
            observed = {
                f"weight by {name}": ((record.get("observed") or {}).get(name) or {}).get("client_weights")
                for name in observers
            }
            rows.append(
                {
                    "round": record["round"],
                    "client": client,
                    "selected": client in record[selected_key],
                    "weight": (record.get("client_weights") or {}).get(client),
                    "round_weight": (record.get("weights") or {}).get(client),
                    "score": (record.get("scores") or {}).get(client),
                    **{name: (weights or {}).get(client) for name, weights in observed.items()},
                    "excluded": (record.get("excluded") or {}).get(client),
                    "flags": "; ".join((record.get("flags") or {}).get(client, {}).values()) or None,
                    "accuracy": record.get("accuracy"),
                    **dict(zip(evidence_columns, evidence, strict=bool(evidence_columns))),
                }
            )
    columns = ["round", "client", "selected", "weight", "round_weight", "score"]
    columns += [f"weight by {name}" for name in observers]
    frame = make_frame(rows, [*columns, "excluded", "flags", "accuracy", *evidence_columns])
    numbers = [name for name in frame.columns if name not in ("client", "selected", "excluded", "flags")]
    return frame.astype({name: "int64" if name == "round" else "float64" for name in numbers})


def _clients_of(record: Mapping[str, Any], selected_key: str) -> set[str]:
    return {*record[selected_key], *(record.get("client_weights") or {}), *(record.get("excluded") or {})}
