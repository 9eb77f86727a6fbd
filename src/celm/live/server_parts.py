"""The server of a live federation, from the arguments of a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from logging import WARNING
from typing import Any

from celm.base.errors import CelmError
from celm.experiment.config import Experiment
from celm.experiment.presets import not_exclusive_warning, text_evidence_warning, with_preset
from celm.federation.server import Server
from celm.live.logger import log
from celm.models.adapter_settings import AdapterSettings
from celm.rules import rules
from celm.rules.robust import aggregators, filters
from celm.rules.rule import AnyRule, ProbeSettings, ServerContext

Settings = Mapping[str, Any] | str | None
"""A table of settings, the name of a component, or None for the default."""


def build_server(
    rule: str | AnyRule,
    rule_options: Mapping[str, Any],
    preset: str | None,
    probe: Settings,
    filter: Settings,
    aggregator: Settings,
    context: ServerContext,
    adapters: AdapterSettings,
) -> Server:
    """Build the server's parts; a preset fills in what is not set.

    A rule that is passed as an object has its own settings, so the preset does not change it. Calibrated evidence
    needs classes that exclude one another, and those of a sigmoid do not. It also failed on text models, which are
    probed at a layer. In both cases the preset keeps the paper's evidence.
    """
    tables: dict[str, Any] = {"probe": probe or {}, "filter": filter, "aggregator": aggregator}
    tables = {table: value for table, value in tables.items() if value is not None}
    tables["rule"] = {**rule_options, "name": rule if isinstance(rule, str) else type(rule).__name__}
    tables = with_preset(tables, preset)
    settings = tables.pop("rule")
    from_preset = "evidence" in settings and "evidence" not in rule_options
    if from_preset and (warning := _unsuited_evidence_warning(str(preset), adapters)):
        settings["evidence"] = "paper"
        log(WARNING, "%s", warning)
    built_rule = rules.build(settings.pop("name"), settings) if isinstance(rule, str) else rule
    for kind in {getattr(built_rule, "evidence", "paper"), getattr(built_rule, "scores_from", None)}:
        _check_evidence(kind, adapters)
    experiment = Experiment.parse(tables)
    context = replace(context, probe=ProbeSettings(**experiment.probe.model_dump()))
    server = Server(built_rule, context)
    if experiment.filter:
        server = replace(server, filter=filters.build(experiment.filter.name, experiment.filter.options))
    if experiment.aggregator:
        robust = aggregators.build(experiment.aggregator.name, experiment.aggregator.options)
        server = replace(server, aggregator=robust)
    return server


def _unsuited_evidence_warning(preset: str, adapters: AdapterSettings) -> str | None:
    """Return why a preset's calibrated evidence does not suit the model, None if it does."""
    if adapters.output == "sigmoid":
        return not_exclusive_warning(preset)
    if adapters.layer is not None:
        return text_evidence_warning(preset, f"layer={adapters.layer!r}")
    return None


def _check_evidence(kind: str | None, adapters: AdapterSettings) -> None:
    """Raise CelmError if this kind of evidence has no meaning for the model, and warn if it is known to be weak."""
    hint = 'set rule_options={"evidence": "paper"}'
    if adapters.output == "sigmoid" and kind in ("calibrated", "head"):
        raise CelmError(f"output=sigmoid: {kind} evidence needs classes that exclude one another", hint)
    if adapters.layer is not None and kind == "calibrated":
        log(
            WARNING,
            "layer=%r: calibrated evidence did not find who holds which class of the text models that were tried "
            "(docs/flower.md; %s)",
            adapters.layer,
            hint,
        )
