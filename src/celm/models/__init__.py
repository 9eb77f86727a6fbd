"""Models: built by name or by the user's factory, and as state dicts.

- `registry`: `build_model`, the registered models `mlp`, `cnn`, `cnn1d` and `vit`, and the base class `ModelFactory`
- `staged`: a model whose first stage is frozen
- `vit_backbones`: pretrained image backbones of transformers
- `user_model`, `hugging_face`: models from `pkg.module:factory` and from a Hugging Face configuration folder
- `hugging_face_limits`: limits on an untrusted configuration
- `heads`: head, backbone and features of any `nn.Module`
- `state_dict`: state dicts, and the check of a client's upload
- `state_ops`: differences, sums and norms of state dicts
- `averaging`: the weighted mean of state dicts

Importing this package does not import torch: names are checked and listed without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.lazy import lazy_attributes
from celm.models.registry import (
    ModelFactory,
    build_model,
    check_model_name,
    models,
    require_confirmed_factory,
)

if TYPE_CHECKING:
    from celm.models.averaging import weighted_mean as weighted_mean
    from celm.models.heads import find_head as find_head
    from celm.models.staged import StagedModel as StagedModel
    from celm.models.state_dict import StateDict as StateDict
    from celm.models.state_dict import describe_mismatch as describe_mismatch
    from celm.models.state_dict import get_state as get_state
    from celm.models.state_dict import load_state as load_state
else:  # these modules import torch
    __getattr__ = lazy_attributes(
        __name__,
        {
            "StagedModel": "celm.models.staged",
            "StateDict": "celm.models.state_dict",
            "describe_mismatch": "celm.models.state_dict",
            "find_head": "celm.models.heads",
            "get_state": "celm.models.state_dict",
            "load_state": "celm.models.state_dict",
            "weighted_mean": "celm.models.averaging",
        },
    )

__all__ = [
    "ModelFactory",
    "StagedModel",
    "StateDict",
    "build_model",
    "check_model_name",
    "describe_mismatch",
    "find_head",
    "get_state",
    "load_state",
    "models",
    "require_confirmed_factory",
    "weighted_mean",
]
