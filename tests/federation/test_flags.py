from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from celm.federation.flags import MIN_CLIP_FACTOR, round_flags
from celm.federation.server import step_record
from celm.rules.messages import ClientUpdate, RoundData
from celm.rules.robust.clip_norm import ClipNorm
from celm.rules.robust.filter import Filter, FilterResult
from support.server_steps import make_server, step


def model(*values: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor([[values[0]]]), "bias": torch.tensor([values[1]])}


def test_every_kind_has_a_reason_and_clients_are_in_order() -> None:
    diagnostics = {"idle": ["client-2"], "no_evidence": ["client-10"], "nonfinite": [], "movement": {"x": 1}}
    flags = round_flags(["client-2"], diagnostics, {"client-1": "no reply in time"}, {"client-3": 0.9})
    assert list(flags) == ["client-1", "client-2", "client-10"]
    assert flags["client-1"] == {"excluded": "no reply in time"}
    assert set(flags["client-2"]) == {"unchanged", "idle"}
    assert all(reason for kinds in flags.values() for reason in kinds.values())


def test_the_reason_names_the_clipping_that_caused_it() -> None:
    flags = round_flags([], {"idle": ["a"], "no_evidence": ["b"]}, {}, {"a": 0.04})
    assert "clipped to 4 %" in flags["a"]["idle"]
    assert "clipped" not in flags["b"]["no_evidence"]
    assert set(flags["a"]) == {"idle", "clipped"}


def test_slight_clipping_is_recorded_and_not_flagged() -> None:
    server, state = make_server(filter=ClipNorm(norm=1.0))
    done = step(
        server,
        state,
        a=ClientUpdate(model(1.0 + 2.0, 0.0), 1, 10),  # norm 2: clipped to a half
        b=ClientUpdate(model(1.0 + 10.0, 0.0), 1, 10),  # norm 10: clipped to a tenth
    )
    record = step_record(done)
    assert record["clipped"] == {"a": 0.5, "b": 0.1}
    assert MIN_CLIP_FACTOR < 0.5
    assert list(record["flags"]) == ["b"]
    assert done.state.model["weight"].item() == 2.0


@dataclass(frozen=True)
class RefuseAll(Filter):
    def apply(self, round: RoundData) -> FilterResult:
        return FilterResult(replace(round, updates={}), dict.fromkeys(round.updates, "refused"))


def test_an_unchanged_upload_is_flagged_if_the_filter_refuses_all() -> None:
    server, state = make_server(filter=RefuseAll())
    sent, trained = ClientUpdate(dict(state.model), 1, 10), ClientUpdate(model(3.0, 0.0), 1, 10)
    done = step(server, state, a=sent, b=trained)
    assert done.result is None
    assert {name: set(kinds) for name, kinds in done.flags.items()} == {
        "a": {"excluded", "unchanged"},
        "b": {"excluded"},
    }
