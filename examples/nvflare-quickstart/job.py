"""The job: NVFlare's FedAvg recipe, with celm's in its place."""

import argparse
from pathlib import Path

from net import Net
from nvflare.recipe import SimEnv

from celm.nvflare import ContributionRecipe


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--folder", help="absolute path of the state folder; a job that stopped continues from it"
    )
    parser.add_argument("--workspace", default=str(Path("workspace").absolute()))
    options = parser.parse_args()
    recipe = ContributionRecipe(
        name="digits",
        model=Net(),
        input_shape=(1, 8, 8),
        classes=10,
        folder=options.folder,
        min_clients=4,
        num_rounds=options.rounds,
        train_script="client.py",
        train_args="--lr 0.05",
    )
    recipe.execute(SimEnv(num_clients=5, workspace_root=options.workspace))


if __name__ == "__main__":
    main()
