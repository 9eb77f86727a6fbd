"""What a client may do to its upload, its data or its training instead of honest work. One behaviour per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.registry import Registry

if TYPE_CHECKING:
    from celm.attacks.attack import Attack

attacks: Registry[Attack] = Registry(
    "attack",
    {
        "scale_head": "celm.attacks.scale_head:ScaleHead",
        "scale_layer": "celm.attacks.scale_layer:ScaleLayer",
        "scale_norm": "celm.attacks.scale_norm:ScaleNorm",
        "shift_bias": "celm.attacks.shift_bias:ShiftBias",
        "random_weights": "celm.attacks.random_weights:RandomWeights",
        "fabricate_class": "celm.attacks.fabricate_class:FabricateClass",
        "invent_data": "celm.attacks.invent_data:InventData",
        "copy_global": "celm.attacks.copy_global:CopyGlobal",
        "replay_delta": "celm.attacks.replay_delta:ReplayDelta",
        "idle_after_warmup": "celm.attacks.idle_after_warmup:IdleAfterWarmup",
        "sybil": "celm.attacks.sybil:Sybil",
        "flip_labels": "celm.attacks.flip_labels:FlipLabels",
        "overconfident": "celm.attacks.overconfident:Overconfident",
        "label_smoothed": "celm.attacks.label_smoothed:LabelSmoothed",
        "temperature": "celm.attacks.temperature:Temperature",
    },
)
