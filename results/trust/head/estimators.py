"""Run the estimators of the confirmation: CELM_DATA=... python results/trust/head/estimators.py [--seeds 50 51]

Each federation becomes one file of `--cells`: column to client to estimate. Columns that a file has are not run again,
so a new estimator is a line of RULES, and needs no retraining. CELM's weights freeze after the warm-up, so its runs end
there. The columns of VARIANTS come from the updates of the run `celm`; they take every client for one that trains.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from truths import ROUNDS, SEEDS, Cell, cells

from celm.base.files import dump_json, write_text
from celm.core.evidence import scores
from celm.core.head_evidence import HeadForm, head_evidence
from celm.core.weights import ClientWeights
from celm.engines.in_process import InProcessEngine
from celm.federation.build import build_federation
from celm.federation.client_trainer import ClientResult, ClientTask
from celm.federation.round import initial_state, run_round
from celm.models.state_dict import StateDict
from celm.rules.celm import CelmState

WARMUP = 5
Estimates = dict[str, dict[str, float]]
"""Column to client to estimate."""

RULES: dict[str, dict[str, Any]] = {
    "celm": {"name": "celm", "warmup": WARMUP},
    "calibrated": {"name": "celm", "warmup": WARMUP, "evidence": "calibrated", "scores_from": "head"},
    "head": {"name": "celm", "warmup": WARMUP, "evidence": "head"},
    "shapfed": {"name": "shapfed"},
    "cgsv": {"name": "cgsv", "protocol": "aggregation_only"},
    "rffl": {"name": "rffl"},
    "cffl": {"name": "cffl"},
    "fedce": {"name": "fedce"},
    "gtg_shapley": {"name": "gtg_shapley"},
    "coast": {"name": "coast"},
    "singleton": {"name": "singleton"},
    "in_run": {"name": "in_run"},
    "in_run, second order": {"name": "in_run", "order": 2},
}
"""Column to settings of the rule. A rule with `scores_from` also gives the column REPORTED."""
REPORTED = "calibrated, scores from head"


@dataclass(frozen=True)
class HeadRound:
    """The last layers of a round, client by client."""

    delivered: list[StateDict]
    trained: list[StateDict]

    def claims(self, head: str, form: HeadForm, agreement: float = 0.0) -> Tensor:
        """Return f `[N, K]`; the features of these models come after ReLU."""
        features = torch.ones(1, 1)
        return head_evidence(
            self.delivered, self.trained, head=head, features=features, form=form, agreement=agreement
        )


class HeadRecorder(InProcessEngine):
    """An engine that records the last layers that clients receive and return."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.rounds: list[HeadRound] = []

    def train(self, tasks: Sequence[ClientTask]) -> list[ClientResult]:
        results = super().train(tasks)
        self.rounds.append(
            HeadRound(
                [self._head(task.message.model) for task in tasks],
                [self._head(result.update.model) for result in results],
            )
        )
        return results

    def _head(self, state: StateDict) -> StateDict:
        prefix = f"{self.trainer.head}."
        return {name: tensor.clone() for name, tensor in state.items() if name.startswith(prefix)}


def smoothed(claims: Sequence[Tensor], clients: Sequence[str]) -> Mapping[str, float]:
    """Return weights as the rule computes them: mean claims so far, class shares, β = 1/2 from the second round on."""
    weights, total = ClientWeights().with_clients(clients), torch.zeros_like(claims[0])
    for number, f in enumerate(claims, start=1):
        total = total + f
        by_client = dict(zip(clients, scores(total / number).tolist(), strict=True))
        weights = weights.smooth(by_client, 0.5, reset=clients if number == 1 else ())
    return weights.by_client


def with_agreement(rounds: Sequence[HeadRound], head: str) -> list[Tensor]:
    """Return the claims of each round times v² of the first."""
    plain = rounds[0].claims(head, "ball")
    gate = torch.where(plain > 0, rounds[0].claims(head, "ball", agreement=2.0) / plain, 0.0)
    return [round.claims(head, "ball") * gate for round in rounds]


VARIANTS: dict[str, Callable[[Sequence[HeadRound], str], list[Tensor]]] = {
    "rows": lambda rounds, head: [round.claims(head, "rows") for round in rounds],
    "inversion": lambda rounds, head: [rounds[0].claims(head, "inversion")],
    "agreement": with_agreement,
}
"""Column to its claims in each round."""


def estimate(cell: Cell, column: str) -> Estimates:
    """Run one rule; return its column and those that come with it."""
    federation = build_federation(cell.resolve(rule=RULES[column]))
    engine, state = HeadRecorder(federation.trainer), initial_state(federation)
    record: dict[str, Any] = {}
    last_round = WARMUP if RULES[column]["name"] == "celm" else ROUNDS
    while state.round_number < last_round:
        result = run_round(federation, state, engine)
        state, record = result.state, result.record
    found: Estimates = {column: dict(record["client_weights"])}
    rule_state = state.server.rule
    if isinstance(rule_state, CelmState) and rule_state.reported is not None:
        found[REPORTED] = dict(rule_state.reported.weights.by_client)
    if column == "celm":
        clients, head = federation.context.clients, federation.trainer.head
        found |= {
            name: dict(smoothed(variant(engine.rounds, head), clients)) for name, variant in VARIANTS.items()
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--columns", nargs="+", default=list(RULES))
    parser.add_argument("--study", default="estimators", help="a study's name or file")
    parser.add_argument("--cells", type=Path, default=Path("runs/head/estimates"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.cells.mkdir(parents=True, exist_ok=True)
    for cell in cells(tuple(options.seeds), options.study):
        target = options.cells / f"{cell.name}.json"
        found: Estimates = json.loads(target.read_text()) if target.exists() else {}
        for column in options.columns:
            if column not in found:
                found |= estimate(cell, column)
                write_text(target, dump_json(found) + "\n")
                print(cell.name, column, flush=True)


if __name__ == "__main__":
    main()
