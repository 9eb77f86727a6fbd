"""Presets: named groups of settings. A setting of the experiment itself takes precedence.

`trust` is for live federations and audits, whose members may cheat: evidence that scaling cannot raise, a check of
which clients still train, clipped updates, and a warm-up that is long enough to judge members by. With rules other
than `celm` it sets the filter only.

The library's defaults follow each method's own source. `paper` has the settings that the CELM paper's comparison seems
to have used, if they differ. A comment beside each setting says how strong the evidence for it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from celm.base.errors import CelmError, suggest_name

_PRESETS: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "trust": {
        "rule": {"celm": {"evidence": "calibrated", "idle_check": "on-drift", "min_warmup": 5}},
    },
    "paper": {
        "rule": {
            # Client models that are never reset explain the collapsed column; no variant fits every cell.
            "cgsv": {"protocol": "keep"},
            # sinh on the reputation, as in CFFL's code, gives one client of five all the weight. sinh on the round's
            # share reproduces the paper's figures. It was chosen after seeing them: weak evidence (results/rivals).
            "cffl": {"sharpen": "share"},
        },
        "objective": {
            # FedProx below FedAvg suggests a large proximal term; 1 comes close, 0.1 does not.
            "fedprox": {"mu": 1.0},
            # The same architecture as every other row of its table.
            "moon": {"projection": 0},
        },
    },
}
"""Preset -> table -> component -> settings."""
_PRESET_COMPONENTS = {"trust": {"filter": "clip_norm"}}
"""Preset -> table -> component to use if the experiment names none."""
_DEFAULT_COMPONENTS = {"rule": "celm"}
"""Table -> component of an experiment without that table."""


_AUDIT_PRESETS: dict[str, dict[str, Any]] = {"trust": {"evidence": "calibrated", "movement": True}}
"""Preset -> settings of the audit."""


def with_audit_preset(settings: Mapping[str, Any], preset: str | None) -> tuple[dict[str, Any], str | None]:
    """Return the settings of an audit with a preset's added, and a warning if the preset does not fit them.

    Settings that are given take precedence. `trust` needs classes that exclude one another. If the settings say that
    they do not, the audit uses the paper's evidence, and the warning says so.

    >>> with_audit_preset({"seed": 1}, "trust")
    ({'evidence': 'calibrated', 'movement': True, 'seed': 1}, None)
    >>> with_audit_preset({"output": "sigmoid"}, "trust")[0]
    {'output': 'sigmoid'}
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if preset is None:
        return given, None
    if preset not in _AUDIT_PRESETS:
        raise CelmError(
            f"unknown preset '{preset}' of the audit", suggest_name(preset, [*_AUDIT_PRESETS, "none"])
        )
    if given.get("output") == "sigmoid" and "evidence" not in given:
        return given, not_exclusive_warning(preset)
    return {**_AUDIT_PRESETS[preset], **given}, None


def not_exclusive_warning(preset: str) -> str:
    """Return the warning that a preset's evidence is not used, because classes do not exclude one another."""
    return (
        f"preset {preset}: the outputs of a sigmoid are not exclusive classes, so the paper's evidence is used, "
        "which a client can raise by scaling its model (preset none avoids this line)"
    )


def text_evidence_warning(preset: str, setting: str) -> str:
    """Return the warning that a preset's evidence is not used, because it failed on texts, which `setting` implies."""
    return (
        f"preset {preset}: {setting}: calibrated evidence did not find the holders of classes on text models, so "
        "the paper's evidence is used, which a client can raise by scaling its model (docs/flower.md)"
    )


def with_preset(tables: Mapping[str, Any], preset: str | None) -> dict[str, Any]:
    """Return the tables with a preset's settings added; settings that the tables already have take precedence."""
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()}
    if preset is None:
        return merged
    if preset not in _PRESETS:
        raise CelmError(f"unknown preset '{preset}'", suggest_name(preset, _PRESETS))
    for table, components in _PRESETS[preset].items():
        table_value = merged.get(table)
        name = table_value if isinstance(table_value, str) else (table_value or {}).get("name")
        name = name or _DEFAULT_COMPONENTS.get(table)
        if name in components:
            given = table_value if isinstance(table_value, dict) else {}
            added = dict(components[name])
            if "evidence" in added and "evidence" not in given and _takes_texts(merged.get("model")):
                del added["evidence"]
                warnings.warn(text_evidence_warning(preset, "model hf"), stacklevel=2)
            merged[table] = {"name": name, **added, **given}
    for table, component in _PRESET_COMPONENTS.get(preset, {}).items():
        merged.setdefault(table, component)
    return merged


def _takes_texts(model: Any) -> bool:
    """Return whether the settings of a model, or its name, are those of a text classifier."""
    name = model.get("name") if isinstance(model, Mapping) else model
    return isinstance(name, str) and (name == "hf" or name.startswith("hf:"))
