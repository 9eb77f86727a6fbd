"""Client behaviours other than the agreed training. One behaviour per file.

`attacks` is the registry; `celm.attacks.attack` defines what an attack is. Three of them are honest variants of
training that look unusual: `overconfident`, `label_smoothed` and `temperature`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.registry import Registry

if TYPE_CHECKING:
    from celm.attacks.attack import Attack

__all__ = ["attacks"]

attacks: Registry[Attack] = Registry(
    "attack",
    {
        "scale_head": "celm.attacks.scale_head:ScaleHead",
        "scale_layer": "celm.attacks.scale_layer:ScaleLayer",
        "scale_norm": "celm.attacks.scale_norm:ScaleNorm",
        "shift_bias": "celm.attacks.shift_bias:ShiftBias",
        "random_weights": "celm.attacks.random_weights:RandomWeights",
        "fabricate_class": "celm.attacks.fabricate_class:FabricateClass",
        "claim_class": "celm.attacks.claim_class:ClaimClass",
        "invent_data": "celm.attacks.invent_data:InventData",
        "copy_global": "celm.attacks.copy_global:CopyGlobal",
        "replay_delta": "celm.attacks.replay_delta:ReplayDelta",
        "predict_update": "celm.attacks.predict_update:PredictUpdate",
        "idle_after_warmup": "celm.attacks.idle_after_warmup:IdleAfterWarmup",
        "sybil": "celm.attacks.sybil:Sybil",
        "replicate_data": "celm.attacks.replicate_data:ReplicateData",
        "flip_labels": "celm.attacks.flip_labels:FlipLabels",
        "overconfident": "celm.attacks.overconfident:Overconfident",
        "label_smoothed": "celm.attacks.label_smoothed:LabelSmoothed",
        "temperature": "celm.attacks.temperature:Temperature",
    },
)
