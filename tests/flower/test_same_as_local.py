"""The strategy plays the same federation as the local engine, with clients that know nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import ArrayRecord, Message

import celm
from celm.federation.assembly import Federation, assemble, resolve
from celm.federation.jobs import Job
from celm.flower import CelmStrategy, ContributionStrategy
from celm.rules.exchange import Delivery
from flower.small_grid import SmallGrid, reply

ROUNDS = 4


def experiment(rule: str, **options: Any) -> celm.Experiment:
    return celm.Experiment.parse(
        {
            "dataset": {"name": "digits", "limit": 20},
            "rule": {"name": rule, **options},
            "probe": {"steps": 10},
            "run": {"rounds": ROUNDS, "workers": 0},
        }
    )


def federation_of(wanted: celm.Experiment) -> Federation:
    return assemble(resolve(wanted))


def ordinary(federation: Federation, name: str, unnamed: bool = False) -> Any:
    """A Flower client: loads the arrays it gets into its model, trains, returns arrays."""
    bench = federation.workbench

    def train(message: Message) -> Message:
        arrays: ArrayRecord = message.content["arrays"]
        sent = dict(zip(federation.initial, map(torch.from_numpy, arrays.to_numpy_ndarrays()), strict=True))
        number = message.content["config"]["server-round"]
        job = Job(name, number, federation.experiment.train.rate(number), Delivery(sent))
        update = bench.work(job).update
        back = (
            ArrayRecord(update.model)
            if not unnamed
            else ArrayRecord([t.numpy() for t in update.model.values()])
        )
        return reply(message, back, num_examples=update.size)

    return train


def strategy_for(federation: Federation, **more: Any) -> ContributionStrategy:
    facts = federation.facts
    return ContributionStrategy(
        federation.rule,
        facts.module,
        facts.input_shape,
        facts.classes,
        probe={"steps": 10},
        fraction_evaluate=0.0,
        **more,
    )


@pytest.mark.parametrize("rule", ["celm", "fedavg", "shapfed", "cgsv", "rffl", "standalone"])
def test_weights_and_model_are_those_of_the_local_engine(tmp_path: Path, rule: str) -> None:
    local = celm.run(experiment(rule), out=tmp_path / "local")
    federation = federation_of(experiment(rule))
    grid = SmallGrid({name: ordinary(federation, name) for name in federation.facts.clients})
    result = strategy_for(federation).start(grid, ArrayRecord(federation.initial), num_rounds=ROUNDS)
    for record, ours in zip(local.rounds, result.records, strict=True):
        assert ours["standing"] == pytest.approx(record["standing"], abs=1e-9)
    found = result.arrays.to_torch_state_dict()
    for name, tensor in local.model().state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("table", "chosen"),
    [
        ("filter", {"name": "clip_norm"}),
        ("filter", {"name": "krum", "selected": 3}),
        ("combine", {"name": "trimmed_mean"}),
    ],
)
def test_robust_aggregation_is_that_of_the_local_engine(
    tmp_path: Path, table: str, chosen: dict[str, Any]
) -> None:
    wanted = celm.Experiment.parse(
        {**experiment("celm", warmup=2, evidence="calibrated").tables(), table: chosen}
    )
    local = celm.run(wanted, out=tmp_path / "local")
    plain = celm.run(experiment("celm", warmup=2, evidence="calibrated"), out=tmp_path / "plain")
    federation = federation_of(wanted)
    grid = SmallGrid({name: ordinary(federation, name) for name in federation.facts.clients})
    facts = federation.facts
    strategy = CelmStrategy(
        facts.module,
        facts.input_shape,
        facts.classes,
        rule_options={"warmup": 2, "evidence": "calibrated"},
        probe={"steps": 10},
        fraction_evaluate=0.0,
        **{table: chosen},
    )
    result = strategy.start(grid, ArrayRecord(federation.initial), num_rounds=ROUNDS)
    for record, ours in zip(local.rounds, result.records, strict=True):
        assert ours["standing"] == pytest.approx(record["standing"], abs=1e-6)
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
    grid = SmallGrid({name: ordinary(federation, name, unnamed=True) for name in federation.facts.clients})
    unnamed = ArrayRecord([tensor.numpy() for tensor in federation.initial.values()])
    facts = federation.facts
    strategy = CelmStrategy(
        facts.module,
        facts.input_shape,
        facts.classes,
        rule_options={"warmup": 2, "evidence": "calibrated"},
        probe={"steps": 10},
        fraction_evaluate=0.0,
    )
    result = strategy.start(grid, unnamed, num_rounds=ROUNDS)
    assert list(result.arrays) == list(unnamed)
    assert result.contributions[ROUNDS] == pytest.approx(local.weights, abs=1e-9)
    assert {name: result.evidence[2][name] for name in local.evidence or {}} == {
        name: pytest.approx(row, abs=1e-6) for name, row in (local.evidence or {}).items()
    }


def test_nodes_in_part_are_drawn_as_the_local_engine_draws_them() -> None:
    tables = {**experiment("fedavg").tables(), "run": {"rounds": ROUNDS, "workers": 0, "participation": 0.4}}
    wanted = celm.Experiment.parse(tables)
    federation = federation_of(wanted)
    grid = SmallGrid({name: ordinary(federation, name) for name in federation.facts.clients})
    strategy = strategy_for(federation, fraction_train=0.4)
    result = strategy.start(grid, ArrayRecord(federation.initial), num_rounds=ROUNDS)
    from celm.federation.rounds import participants

    assert [record["asked"] for record in result.records] == [
        participants(federation, number) for number in range(1, ROUNDS + 1)
    ]
