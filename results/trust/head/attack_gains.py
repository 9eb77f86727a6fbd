"""Measure what attackers gain in the warm-up under the preset trust: CELM_DATA=... python .../attack_gains.py

Protocol, fixed before the first measurement: FashionMNIST with 2,000 images a class, MLP, 5 clients, the 5 rounds of
the warm-up, in which all weights and contributions are decided; splits and attackers of results/trust/attacks.py, its
attacks (without those that begin after the warm-up) and seven more, of which five know head evidence (claim_class);
seeds 50 to 52. One run gives three columns:

calibrated   weight, as the preset `trust` has it today: calibrated evidence, clipped updates
head         contribution that `rule.scores_from=head` reports beside these weights
agreement    score of the last round with `rule.agreement=2`, also reported beside them

Gained: the attacker's value minus its value in the honest run of the same split and seed, in points. Sybils are summed,
and so are two colluders, in both runs.
All attacks are reported; a stopped script resumes from attack_gains.json beside this file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from celm.base.files import dump_json, write_text
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.experiment.overrides import apply_override
from celm.experiment.presets import with_preset
from celm.federation.build import build_federation, resolve_defaults
from celm.federation.round import initial_state, run_round

sys.path.insert(0, str(Path(__file__).parents[1]))
from attacks import ATTACKS, SPLITS

TARGET = Path(__file__).with_name("attack_gains.json")
SEEDS = (50, 51, 52)
ROUNDS = 5
COLUMNS = ("calibrated", "head", "agreement")
PARTNER = "client-3"
Results = dict[str, dict[str, dict[str, float]]]
"""Split, attack and seed -> column -> client -> value."""
MORE_ATTACKS = {
    "predict_update": ["attack.name=predict_update"],
    "replicate_data": ["attack.name=replicate_data"],
    "claim_class, shared": ["attack.name=claim_class", "attack.strength=2.0"],
    "claim_class, grow": ["attack.name=claim_class", "attack.rows=grow", "attack.strength=2.0"],
    "claim_class, bias": ["attack.name=claim_class", "attack.rows=bias", "attack.strength=2.0"],
    "claim_class, two colluders": [
        "attack.name=claim_class",
        "attack.strength=2.0",
        f"attack.partner={PARTNER}",
    ],
    "claim_class, bias of 7 to 9": ["attack.name=claim_class", "attack.rows=bias", "attack.classes=[7,8,9]"],
}
EVERY_ATTACK = {**ATTACKS, **MORE_ATTACKS}
MEASURED = [name for name in EVERY_ATTACK if name != "idle_after_warmup" and "5 rounds" not in name]


def measure(split: str, attack: str, seed: int) -> dict[str, dict[str, float]]:
    """Run a warm-up and return column to client to its value."""
    settings = ["dataset.name=fashion_mnist", "dataset.limit=2000", f"split.name={split}", f"run.seed={seed}"]
    settings += ["rule.name=celm", "rule.scores_from=head", "rule.agreement=2.0", "rule.warmup=5"]
    settings += ["run.rounds=30", "run.workers=0", "run.evaluate_every=30", *EVERY_ATTACK[attack]]
    if attack != "honest":
        settings.append(f"attack.client={SPLITS[split]}")
    tables: dict[str, Any] = {}
    for setting in settings:
        apply_override(tables, setting)
    federation = build_federation(resolve_defaults(Experiment.parse(with_preset(tables, "trust"))))
    engine, state = InProcessEngine(federation.trainer), initial_state(federation)
    record: dict[str, Any] = {}
    while state.round_number < ROUNDS:
        result = run_round(federation, state, engine)
        state, record = result.state, result.record
    return {
        "calibrated": dict(record["client_weights"]),
        "head": dict(state.server.rule.reported.weights.by_client),
        "agreement": dict(record["diagnostics"]["agreement_scores"]),
    }


def attackers_value(by_client: Mapping[str, float], split: str, attack: str) -> float:
    """Return the sum over the attacker, its Sybils and its partner."""
    client = SPLITS[split]
    partners = (PARTNER,) if "colluders" in attack else ()
    return sum(
        value
        for name, value in by_client.items()
        if name in (client, *partners) or name.startswith(f"{client}-sybil-")
    )


def format_table(results: Results) -> str:
    """Return the points gained by each attack, as means over the seeds that have it."""
    lines = [
        "| | seeds | " + " | ".join(f"{split}: {column}" for split, column in product(SPLITS, COLUMNS)) + " |"
    ]
    lines.append("|---" * (2 + len(SPLITS) * len(COLUMNS)) + "|")
    for attack in MEASURED[1:]:
        seeds = [seed for seed in SEEDS if all(f"{split}/{attack}/{seed}" in results for split in SPLITS)]
        if not seeds:
            continue
        cells = []
        for split, column in product(SPLITS, COLUMNS):
            gains = [
                100
                * (
                    attackers_value(results[f"{split}/{attack}/{seed}"][column], split, attack)
                    - attackers_value(results[f"{split}/honest/{seed}"][column], split, attack)
                )
                for seed in seeds
            ]
            cells.append(f"{mean(gains):+z.1f}")
        lines.append(f"| {attack} | {len(seeds)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    results: Results = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    for seed, attack, split in product(SEEDS, MEASURED, SPLITS):
        key = f"{split}/{attack}/{seed}"
        if key not in results:
            results[key] = measure(split, attack, seed)
            write_text(TARGET, dump_json(results, indent=1) + "\n")
            print(key, flush=True)
    write_text(TARGET.with_suffix(".md"), format_table(results))


if __name__ == "__main__":
    main()
