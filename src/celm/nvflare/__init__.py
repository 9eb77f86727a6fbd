"""Contribution estimation in NVFlare: a controller for the server, and a recipe (extra `nvflare`).

    from celm.nvflare import ContributionRecipe
    from nvflare.recipe import SimEnv

    recipe = ContributionRecipe(
        model=Net(), input_shape=(1, 28, 28), classes=10, min_clients=4, num_rounds=50, train_script="client.py"
    )
    recipe.execute(SimEnv(num_clients=5))

Sites run an ordinary PyTorch client script. The controller sends each site its own message, validates the results,
computes weights and aggregates, with the same server step and record as `celm.flower`.
"""

from __future__ import annotations

from importlib.util import find_spec

from celm.base.errors import CelmError

if find_spec("nvflare") is None:
    raise CelmError("celm.nvflare needs NVFlare", "pip install 'celm[nvflare]'")

from celm.nvflare.controller import ContributionController
from celm.nvflare.recipe import ContributionRecipe

__all__ = ["ContributionController", "ContributionRecipe"]
