"""The report of a run: what it says, from the run's folder only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import Any

import numpy as np
from markupsafe import Markup

from celm.report.accuracy_figure import accuracy_figure
from celm.report.evidence_figure import evidence_figure, shares_figure
from celm.report.fidelity_figure import fidelity_figure
from celm.report.inline import inline_svg
from celm.report.page import counted, percent, render, shown
from celm.report.per_class_figure import per_class_figure
from celm.report.probe_figure import drawable, probe_figure
from celm.report.reading import Told
from celm.report.repeating import arguments, command_parts
from celm.report.rounds_figure import rounds_figure
from celm.report.rounds_told import counted_in, excluded, frozen_after
from celm.report.sentences import answers, evidence_is, listed
from celm.report.split_figure import split_figure

Figures = dict[str, Markup]
FIGURES = (
    "evidence",
    "shares",
    "held",
    "fidelity",
    "split",
    "weights",
    "scores",
    "accuracy",
    "per_class",
    "probes",
)


def run_page(told: Told, probe_images: bool = False) -> str:
    result, evidence = told.result, told.evidence
    exclusions = excluded(told.rounds)
    left_out = Counter(client for record in told.rounds for client in record.excluded)
    counting = counted_in((record.clients, record.excluded) for record in told.rounds)
    probes = probe_grid(told) if probe_images else None
    context = {
        "title": f"{result.dataset}, {result.split}, {told.experiment.method}",
        "told": told,
        "result": result,
        "method": told.experiment.method,
        "answers": answers(
            result.weights,
            evidence,
            result.classes,
            left_out,
            rounds=counting,
            own=result.client_accuracy if result.personal else None,
        ),
        "evidence_is": evidence_is(told.probing),
        "unprobed": [client for client in result.weights if client not in (evidence or result.weights)],
        "heaviest": max(result.weights.values()) or 1.0,
        "totals": {client: sum(row) for client, row in (evidence or {}).items()},
        "taking_part": counting,
        "exclusions": exclusions,
        "figures": dict.fromkeys(FIGURES) | figures(told) | {"probes": probes},
        "probe_images": probe_images,
        "frozen": frozen_after(told.rounds),
        "worst": worst_class(told),
        "rare": listed([result.classes[k] for k in result.rare_classes]) if result.rare_classes else None,
        "command": command_parts(told.experiment),
        "needs_file": arguments(told.experiment) is None,
        "settings": told.experiment.to_toml(),
        "start": told.starts[-1] if told.starts else None,
    }
    return render("run.html", context, images=probes is not None)


def figures(told: Told) -> Figures:
    """The figures that this run has something for, with what they show in words."""
    result, records = told.result, told.records
    classes, made = result.classes, {}
    evidence = told.evidence
    counts = {client: [float(n) for n in row] for client, row in result.counts.items()}
    if evidence and any(map(sum, evidence.values())):
        size = size_of(evidence, classes)
        client, k, value = strongest(evidence)
        peak = f"Strongest: {shown(client, 24)} for class {shown(classes[k], 24)}, {value:.2f}."
        made["evidence"] = inline_svg(
            evidence_figure(evidence, classes), "evidence", f"Heatmap of evidence, {size}. {peak}"
        )
        made["shares"] = inline_svg(
            shares_figure(evidence, classes),
            "shares",
            f"Heatmap of each client's share of a class's evidence, {size}.",
        )
        if counts:
            made["held"] = inline_svg(
                evidence_figure(evidence, classes, counts),
                "held",
                f"Heatmap of evidence, {size}, with the classes truly held outlined. {agreement(evidence, counts)}",
            )
        if any(map(sum, counts.values())):
            made["fidelity"] = inline_svg(
                fidelity_figure(counts, evidence, classes),
                "fidelity",
                f"True and estimated distribution of samples, {size_of(counts, classes)}, with both marginals.",
            )
    if any(map(sum, counts.values())):
        made["split"] = inline_svg(
            split_figure(result.counts, classes),
            "split",
            f"Bubble plot of samples held, {size_of(counts, classes)}.",
        )
    final = ", ".join(f"{shown(c, 24)} {percent(w)}" for c, w in list(result.weights.items())[:12])
    for of, name in (("standing", "weights"), ("scores", "scores")):
        if sum(bool(record[of]) for record in records) > 1:
            made[name] = inline_svg(
                rounds_figure(records, of),  # type: ignore[arg-type]  # one of the literals, by the line above
                name,
                f"Lines of {name} over {counted(len(records), 'round')}, one a client."
                + (f" At the end: {final}." if name == "weights" else ""),
            )
    curves: dict[str, dict[int, list[dict[str, Any]]]] = {"all classes": {result.seed: records}}
    if result.rare_class_accuracy is not None:
        rare = [{"round": r["round"], "accuracy": r["rare_class_accuracy"]} for r in records]
        curves["rare classes"] = {result.seed: rare}
    if any(record["accuracy"] is not None for record in records):
        made["accuracy"] = inline_svg(
            accuracy_figure(curves),
            "accuracy",
            f"Accuracy over {counted(len(records), 'round')}, {percent(result.accuracy)} at the end.",
        )
    made["per_class"] = inline_svg(
        per_class_figure({told.experiment.method: result.per_class}, classes, result.rare_classes),
        "per_class",
        "Accuracy on each class: "
        + ", ".join(
            f"{shown(c, 24)} {percent(a)}" for c, a in list(zip(classes, result.per_class, strict=True))[:20]
        )
        + ".",
    )
    return made


def probe_grid(told: Told) -> Markup | None:
    """The probes' pictures; None where nothing was probed or the inputs are no pictures."""
    inputs = told.run.probe_inputs()
    classes = told.result.classes
    if not inputs:
        return None
    arrays = {name: tensor.float().numpy() for name, tensor in inputs.items()}
    if any(len(a) != len(classes) or not drawable(a.shape[1:]) for a in arrays.values()):
        return None
    known = {name: arrays[name] for name in told.result.weights if name in arrays} or arrays
    axes = probe_figure(known, classes, {c: [float(n) for n in row] for c, row in told.result.counts.items()})
    return inline_svg(
        axes,
        "probes",
        f"Grid of the inputs at which the probes ended, {size_of(known, classes)}; "
        "classes truly held are outlined.",
    )


def worst_class(told: Told) -> tuple[str, float] | None:
    """The class with the lowest accuracy, where there is just one."""
    known = [(a, k) for k, a in enumerate(told.result.per_class) if a is not None]
    if len(known) < 2:
        return None
    least = min(known)
    alone = sum(a == least[0] for a, _ in known) == 1
    return (told.result.classes[least[1]], least[0]) if alone else None


def size_of(table: Sized, classes: Sized) -> str:
    return f"{counted(len(table), 'client')} by {counted(len(classes), 'class')}"


def strongest(evidence: dict[str, list[float]]) -> tuple[str, int, float]:
    table = np.array(list(evidence.values()))
    row, k = np.unravel_index(int(table.argmax()), table.shape)
    return list(evidence)[int(row)], int(k), float(table[row, k])


def agreement(evidence: dict[str, list[float]], counts: dict[str, list[float]]) -> str:
    """How evidence and truth meet, in numbers."""
    pairs = [
        (value > 0, held > 0)
        for client, row in evidence.items()
        for value, held in zip(row, counts.get(client, [0.0] * len(row)), strict=True)
    ]
    truly = sum(held for _, held in pairs)
    found = sum(seen and held for seen, held in pairs)
    beyond = sum(seen and not held for seen, held in pairs)
    return f"Evidence for {found} of the {truly} holdings, and for {beyond} that are none."
