"""What a client may do to its upload or its data instead of honest work. One behaviour per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.registry import Registry

if TYPE_CHECKING:
    from celm.attacks.attack import Attack

attacks: Registry[Attack] = Registry(
    "attack",
    {
        "copy_global": "celm.attacks.copy_global:CopyGlobal",
        "replay_delta": "celm.attacks.replay_delta:ReplayDelta",
        "flip_labels": "celm.attacks.flip_labels:FlipLabels",
    },
)
