"""Figures of a run that show the truth, which only a simulation knows: samples, fidelity, frames around probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from celm.report.fidelity_panels import fidelity_figure
from celm.report.formatting import describe_size
from celm.report.group_figures import group_figure
from celm.report.heatmap_figures import evidence_figure
from celm.report.many_clients import MAX_LISTED, order_rows
from celm.report.probe_images import is_image_shape, probe_figure
from celm.report.split_bubbles import split_figure
from celm.report.svg import inline_svg
from celm.report.views import RunView


def draw_truth(
    evidence: Mapping[str, Sequence[float]], counts: Mapping[str, Sequence[int]], classes: Sequence[str]
) -> dict[str, Markup | None]:
    """Draw the samples, and the evidence beside them; None for figures without data or with too many clients."""
    has_counts = any(map(sum, counts.values()))
    has_evidence = any(map(sum, evidence.values()))
    size = describe_size(counts, classes)
    figures: dict[str, Markup | None] = {"split": None, "evidence_and_truth": None, "fidelity": None}
    if len(counts) > MAX_LISTED:
        if has_counts:
            label = f"Heatmap of samples, {size}, in groups of clients with similar weight."
            if has_evidence:
                label += f" {_describe_agreement(evidence, counts)}"
            figures["split"] = inline_svg(group_figure(counts, classes, "mean samples"), "split", label)
        return figures
    if has_counts:
        label = f"Bubble plot of samples, {size}."
        figures["split"] = inline_svg(split_figure(counts, classes), "split", label)
    if has_evidence and counts:
        label = (
            f"Heatmap of evidence, {describe_size(evidence, classes)}, with the classes truly held outlined. "
            f"{_describe_agreement(evidence, counts)}"
        )
        figure = evidence_figure(evidence, classes, counts)
        figures["evidence_and_truth"] = inline_svg(figure, "evidence_and_truth", label)
    if has_evidence and has_counts:
        label = f"True and estimated distribution of samples, {size}, with both marginals."
        figures["fidelity"] = inline_svg(fidelity_figure(counts, evidence, classes), "fidelity", label)
    return figures


def draw_probes(view: RunView, order: Sequence[str]) -> Markup | None:
    """Draw the inputs at the end of the probes; None if there are no probes or the inputs are not images.

    Of many clients, the heaviest are drawn.
    """
    inputs = view.probe_inputs()
    classes = view.result.classes
    if not inputs:
        return None
    arrays = {name: tensor.float().numpy() for name, tensor in inputs.items()}
    if any(len(a) != len(classes) or not is_image_shape(a.shape[1:]) for a in arrays.values()):
        return None
    client_arrays = {name: arrays[name] for name in view.result.weights if name in arrays} or arrays
    client_arrays = dict(list(order_rows(client_arrays, order).items())[:MAX_LISTED])
    return inline_svg(
        probe_figure(client_arrays, classes, view.result.counts),
        "probes",
        f"Grid of the inputs at the end of the probes, {describe_size(client_arrays, classes)}; "
        "classes truly held are outlined.",
    )


def _describe_agreement(
    evidence: Mapping[str, Sequence[float]], counts: Mapping[str, Sequence[float]]
) -> str:
    """Count the client-class pairs with evidence among those with samples, and among the others."""
    pairs = [
        (value > 0, count > 0)
        for client, row in evidence.items()
        for value, count in zip(row, counts.get(client, [0.0] * len(row)), strict=True)
    ]
    num_true = sum(is_true for _, is_true in pairs)
    num_matched = sum(has_evidence and is_true for has_evidence, is_true in pairs)
    num_false = sum(has_evidence and not is_true for has_evidence, is_true in pairs)
    return (
        f"Evidence for {num_matched} of {num_true} client-class pairs with samples, "
        f"and for {num_false} without samples."
    )
