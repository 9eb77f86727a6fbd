"""Small models, and audits of two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import celm

SHAPE = (3, 4, 4)
INPUTS = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))


def network(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, outputs))


def made(seed: int, build: Callable[[], nn.Module] = network) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().eval()


def audited(build: Callable[[], nn.Module], shape: tuple[int, ...] = SHAPE, **more: Any) -> celm.Audit:
    states = {name: made(seed, build).state_dict() for seed, name in enumerate("ab", start=1)}
    settings = {"classes": 3, "probe": {"steps": 3}} | more
    return celm.audit(made(0, build), states, input_shape=shape, **settings)


def squashed(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*network(), layer())
