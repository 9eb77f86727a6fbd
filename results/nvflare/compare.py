"""Run the three jobs and write comparison.json: accuracy, contributions, and what each member had to send."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from net import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.app_opt.pt.recipes.fedce import FedCERecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import SimEnv
from split import ROUNDS, make_federation

from celm.base.files import dump_json, write_text
from celm.engines.in_process import InProcessEngine
from celm.metrics.accuracy import compute_accuracy
from celm.nvflare import ContributionRecipe

HERE = Path(__file__).parent
METHODS = ("fedavg", "fedce", "celm")


def make_recipe(method: str, root: Path, input_shape: tuple[int, ...], classes: int) -> Any:
    common: dict[str, Any] = {
        "name": method,
        "model": Net(),
        "initial_ckpt": str(root / "initial.pt"),
        "min_clients": 5,
        "num_rounds": ROUNDS,
        "train_script": "member.py",
        "server_expected_format": ExchangeFormat.PYTORCH,
    }
    messages = root / f"{method}.jsonl"
    if method == "fedce":
        return FedCERecipe(**common, train_args=f"{messages} --fedce")
    if method == "fedavg":
        return FedAvgRecipe(**common, train_args=str(messages))
    state = str(root / "state")
    return ContributionRecipe(
        **common, train_args=str(messages), input_shape=input_shape, classes=classes, folder=state
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=HERE / "comparison.json")
    out = parser.parse_args().out.absolute()
    os.chdir(HERE)  # NVFlare packs the script and the modules that it imports
    federation = make_federation()
    facts = federation.context
    root = Path(tempfile.mkdtemp(prefix="celm-nvflare-"))
    torch.save(federation.initial_model, root / "initial.pt")
    result: dict[str, Any] = {
        "samples": {name: sum(counts) for name, counts in federation.counts.items()},
        "classes": {name: sum(map(bool, counts)) for name, counts in federation.counts.items()},
        "rounds": ROUNDS,
        "methods": {},
    }
    for method in METHODS:
        recipe = make_recipe(method, root, facts.input_shape, facts.classes)
        recipe.execute(SimEnv(clients=list(facts.clients), workspace_root=str(root / "work")))
        path = root / "work" / method / "server/simulate_job/app_server/FL_global_model.pt"
        model = torch.load(path, weights_only=True)["model"]
        state = {name: torch.as_tensor(value) for name, value in model.items()}
        confusion = InProcessEngine(federation.trainer).evaluate([state])[0]
        lines = [json.loads(line) for line in (root / f"{method}.jsonl").read_text().splitlines()]
        last = [line for line in lines if line["round"] == ROUNDS]
        contributions: Any = None
        if method == "fedce":
            contributions = last[0]["coefficients"]
        elif method == "celm":
            record = (root / "state" / "rounds.jsonl").read_text().splitlines()[-1]
            contributions = json.loads(record)["client_weights"]
        result["methods"][method] = {
            "accuracy": compute_accuracy(confusion, federation.partition.rare_classes).accuracy,
            "contributions": contributions,
            "received_bytes": last[0]["received_bytes"],
            "sent_bytes": last[0]["sent_bytes"],
            "further_values_sent": sorted(last[0]["scores"]),
        }
    write_text(out, dump_json(result) + "\n")
    print(dump_json(result), file=sys.stderr)


if __name__ == "__main__":
    main()
