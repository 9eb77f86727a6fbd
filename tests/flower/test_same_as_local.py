"""The strategy plays the same federation as the local engine, with clients that know nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import ArrayRecord, Message

import celm
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.federation.client_trainer import ClientTask
from celm.flower import CelmStrategy, ContributionStrategy
from celm.rules.messages import ServerMessage
from support.small_grid import SmallGrid, reply

ROUNDS = 4


def experiment(rule: str, **options: Any) -> celm.Experiment:
    return celm.Experiment.parse(
        {
            "dataset": {"name": "digits", "limit": 20},
            "split": {"name": "pls"},
            "rule": {"name": rule, **options},
            "probe": {"steps": 10},
            "run": {"rounds": ROUNDS, "workers": 0},
        }
    )


def federation_of(wanted: celm.Experiment) -> Federation:
    return build_federation(resolve_defaults(wanted))


def ordinary(federation: Federation, name: str, unnamed: bool = False) -> Any:
    """A Flower client: loads the arrays it gets into its model, trains, returns arrays."""
    bench = federation.trainer

    def train(message: Message) -> Message:
        arrays: ArrayRecord = message.content["arrays"]
        sent = dict(
            zip(federation.initial_model, map(torch.from_numpy, arrays.to_numpy_ndarrays()), strict=True)
        )
        number = message.content["config"]["server-round"]
        job = ClientTask(name, number, federation.experiment.train.lr_at(number), ServerMessage(sent))
        update = bench.train(job).update
        back = (
            ArrayRecord(update.model)
            if not unnamed
            else ArrayRecord([t.numpy() for t in update.model.values()])
        )
        return reply(message, back, num_examples=update.num_examples)

    return train


def strategy_for(federation: Federation, **more: Any) -> ContributionStrategy:
    facts = federation.context
    return ContributionStrategy(
        federation.rule,
        facts.module,
        facts.input_shape,
        facts.classes,
        probe={"steps": 10},
        preset=None,
        fraction_evaluate=0.0,
        **more,
    )


@pytest.mark.parametrize("rule", ["celm", "fedavg", "shapfed", "cgsv", "rffl", "standalone"])
def test_weights_and_model_are_those_of_the_local_engine(tmp_path: Path, rule: str) -> None:
    local = celm.run(experiment(rule), out=tmp_path / "local")
    federation = federation_of(experiment(rule))
    grid = SmallGrid({name: ordinary(federation, name) for name in federation.context.clients})
    result = strategy_for(federation).start(grid, ArrayRecord(federation.initial_model), num_rounds=ROUNDS)
    for record, ours in zip(local.rounds, result.records, strict=True):
        assert ours["client_weights"] == pytest.approx(record["client_weights"], abs=1e-9)
    found = result.arrays.to_torch_state_dict()
    for name, tensor in local.model().state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("table", "chosen"),
    [
        ("filter", {"name": "clip_norm"}),
        ("filter", {"name": "krum", "selected": 3}),
        ("aggregator", {"name": "trimmed_mean"}),
    ],
)
def test_robust_aggregation_is_that_of_the_local_engine(
    tmp_path: Path, table: str, chosen: dict[str, Any]
) -> None:
    wanted = celm.Experiment.parse(
        {**experiment("celm", warmup=2, evidence="calibrated").to_dict(), table: chosen}
    )
    local = celm.run(wanted, out=tmp_path / "local")
    plain = celm.run(experiment("celm", warmup=2, evidence="calibrated"), out=tmp_path / "plain")
    federation = federation_of(wanted)
    grid = SmallGrid({name: ordinary(federation, name) for name in federation.context.clients})
    facts = federation.context
    strategy = CelmStrategy(
        facts.module,
        facts.input_shape,
        facts.classes,
        rule_options={"warmup": 2, "evidence": "calibrated"},
        probe={"steps": 10},
        preset=None,
        fraction_evaluate=0.0,
        **{table: chosen},
    )
    result = strategy.start(grid, ArrayRecord(federation.initial_model), num_rounds=ROUNDS)
    for record, ours in zip(local.rounds, result.records, strict=True):
        assert ours["client_weights"] == pytest.approx(record["client_weights"], abs=1e-6)
        assert ours["excluded"] == record["excluded"]
        assert ours["asked"] == list(facts.clients)
    found = result.arrays.to_torch_state_dict()
    unlike = 0.0
    for name, tensor in local.model().state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5)
        unlike = max(unlike, float((tensor - plain.model().state_dict()[name]).abs().max()))
    assert unlike > 1e-3


def test_arrays_without_names_make_no_difference(tmp_path: Path) -> None:
    wanted = experiment("celm", warmup=2, evidence="calibrated")
    local = celm.run(wanted, out=tmp_path / "local")
    federation = federation_of(wanted)
    grid = SmallGrid({name: ordinary(federation, name, unnamed=True) for name in federation.context.clients})
    unnamed = ArrayRecord([tensor.numpy() for tensor in federation.initial_model.values()])
    facts = federation.context
    strategy = CelmStrategy(
        facts.module,
        facts.input_shape,
        facts.classes,
        rule_options={"warmup": 2, "evidence": "calibrated"},
        probe={"steps": 10},
        preset=None,
        fraction_evaluate=0.0,
    )
    result = strategy.start(grid, unnamed, num_rounds=ROUNDS)
    assert list(result.arrays) == list(unnamed)
    assert result.contributions[ROUNDS] == pytest.approx(local.weights, abs=1e-9)
    assert {name: result.evidence[2][name] for name in local.evidence or {}} == {
        name: pytest.approx(row, abs=1e-6) for name, row in (local.evidence or {}).items()
    }


def test_nodes_in_part_are_drawn_as_the_local_engine_draws_them() -> None:
    tables = {**experiment("fedavg").to_dict(), "run": {"rounds": ROUNDS, "workers": 0, "participation": 0.4}}
    wanted = celm.Experiment.parse(tables)
    federation = federation_of(wanted)
    grid = SmallGrid({name: ordinary(federation, name) for name in federation.context.clients})
    strategy = strategy_for(federation, fraction_train=0.4)
    result = strategy.start(grid, ArrayRecord(federation.initial_model), num_rounds=ROUNDS)
    from celm.federation.round import select_clients

    assert [record["asked"] for record in result.records] == [
        select_clients(federation, number) for number in range(1, ROUNDS + 1)
    ]
