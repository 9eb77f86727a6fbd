"""Figures and HTML pages, drawn from view models.

- `build`: the report of a folder; `run_page`, `federation_page`, `study_page` and `audit_page` fill its template
- `views`, `study_view`: view models, read through `celm.records`; no other module here reads a user's files
- `*_figures`, `split_bubbles`, `fidelity_panels`, `probe_images`: the figures below, which return matplotlib Axes
- `figure_layout`, `line_chart`, `style`, `svg`: layout and style of figures, and their conversion to inline SVG

Importing this package does not import matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.lazy import lazy_attributes

if TYPE_CHECKING:
    from celm.report.bar_figures import per_class_figure as per_class_figure
    from celm.report.bar_figures import scores_figure as scores_figure
    from celm.report.fidelity_panels import fidelity_figure as fidelity_figure
    from celm.report.heatmap_figures import evidence_figure as evidence_figure
    from celm.report.heatmap_figures import sensitivity_figure as sensitivity_figure
    from celm.report.heatmap_figures import shares_figure as shares_figure
    from celm.report.line_figures import accuracy_figure as accuracy_figure
    from celm.report.line_figures import rounds_figure as rounds_figure
    from celm.report.line_figures import threshold_figure as threshold_figure
    from celm.report.probe_images import probe_figure as probe_figure
    from celm.report.split_bubbles import split_figure as split_figure
    from celm.report.style import save_figure as save_figure
else:  # these modules import matplotlib
    __getattr__ = lazy_attributes(
        __name__,
        {
            "accuracy_figure": "celm.report.line_figures",
            "evidence_figure": "celm.report.heatmap_figures",
            "fidelity_figure": "celm.report.fidelity_panels",
            "per_class_figure": "celm.report.bar_figures",
            "probe_figure": "celm.report.probe_images",
            "rounds_figure": "celm.report.line_figures",
            "save_figure": "celm.report.style",
            "scores_figure": "celm.report.bar_figures",
            "sensitivity_figure": "celm.report.heatmap_figures",
            "shares_figure": "celm.report.heatmap_figures",
            "split_figure": "celm.report.split_bubbles",
            "threshold_figure": "celm.report.line_figures",
        },
    )

__all__ = [
    "accuracy_figure",
    "evidence_figure",
    "fidelity_figure",
    "per_class_figure",
    "probe_figure",
    "rounds_figure",
    "save_figure",
    "scores_figure",
    "sensitivity_figure",
    "shares_figure",
    "split_figure",
    "threshold_figure",
]
