"""Run the job in NVFlare's simulator: `job.py FOLDER WORKSPACE ROUNDS [--bad]`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from net import Net
from nvflare.recipe import SimEnv

from celm.federation.build import build_federation, resolve_defaults
from celm.nvflare import ContributionRecipe
from experiment import CLIENTS, PROBE, RULE, experiment


def main() -> None:
    folder, workspace, rounds, *options = sys.argv[1:]
    federation = build_federation(resolve_defaults(experiment()))
    checkpoint = Path(workspace) / "initial.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    torch.save(federation.initial_model, checkpoint)
    recipe = ContributionRecipe(
        model=Net(),
        input_shape=federation.context.input_shape,
        classes=federation.context.classes,
        min_clients=2,
        num_rounds=int(rounds),
        train_script="client.py",
        train_args=" ".join(options),
        initial_ckpt=str(checkpoint),
        folder=folder,
        preset=None,
        controller_options={"rule_options": RULE, "probe": PROBE, "retries": 0, "train_timeout": 60},
    )
    recipe.execute(SimEnv(clients=list(CLIENTS), workspace_root=workspace))


if __name__ == "__main__":
    main()
