"""The result of a run, as an object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from celm.base.errors import CelmError
from celm.experiment.config import Experiment
from celm.experiment.differences import run_title_parts
from celm.experiment.objects import give_objects
from celm.records.run_files import RunFiles
from celm.records.run_records import CHECKSUM_FIELDS, RunResult
from celm.report.contribution_views import ContributionViews
from celm.report.formatting import pluralise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from celm.federation.build import Federation

_ACCURACIES = ("accuracy", "balanced_accuracy", "rare_class_accuracy", "per_class", "client_accuracy")


def summarise_run(federation: Federation, records: Sequence[Mapping[str, Any]], seconds: float) -> RunResult:
    """Return the result of a run: the last round's accuracy, the final weights, the last evidence."""
    experiment = federation.experiment
    last = records[-1]
    client_weights = next(
        (r["client_weights"] for r in reversed(records) if r["client_weights"] is not None), None
    )
    evidence: dict[str, list[float]] = {}
    for record in records:
        evidence |= record["evidence"] or {}
    clients = federation.context.clients
    return RunResult(
        dataset=experiment.dataset.name,
        split=experiment.split.name,
        model=experiment.model.name,
        rule=experiment.rule.name,
        objective=experiment.objective.name,
        seed=experiment.run.seed,
        rounds=federation.rounds,
        accuracy=last["accuracy"],
        balanced_accuracy=last["balanced_accuracy"],
        rare_class_accuracy=last["rare_class_accuracy"],
        per_class=last["per_class"],
        client_accuracy=last["client_accuracy"],
        personal=federation.rule.personal,
        weights=client_weights or dict.fromkeys(clients, 1 / len(clients)),
        evidence={name: evidence[name] for name in clients if name in evidence} or None,
        excluded={name: reason for r in records for name, reason in r["excluded"].items()},
        nonfinite=sorted({name for r in records for name in r["diagnostics"].get("nonfinite", [])}),
        observed={name: _last_observer_weights(records, name) for name in federation.server.observers},
        classes=list(federation.class_names),
        counts=dict(federation.counts),
        rare_classes=list(federation.partition.rare_classes),
        free_riders=list(federation.partition.free_riders),
        seconds=round(seconds, 3),
    )


def _last_observer_weights(records: Sequence[Mapping[str, Any]], observer: str) -> dict[str, float] | None:
    """Return the weights of an observer in the last round that it observed."""
    weights = (
        record["observed"][observer]["client_weights"] for record in reversed(records) if "observed" in record
    )
    return next(weights, None)


def _partial_metrics(experiment: Experiment, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys of a result for a run that is not finished: the state after its last round, else None."""
    evaluated: Mapping[str, Any] = next((r for r in reversed(records) if r.get("accuracy") is not None), {})
    weighted: Mapping[str, Any] = next((r for r in reversed(records) if r["client_weights"] is not None), {})
    evidence: dict[str, list[float]] = {}
    for record in records:
        evidence |= record["evidence"] or {}
    observers = dict.fromkeys(name for record in records for name in record.get("observed") or {})
    known = {
        **{
            name: getattr(experiment, name).name
            for name in ("dataset", "split", "model", "rule", "objective")
        },
        **{name: evaluated.get(name) for name in _ACCURACIES},
        "seed": experiment.run.seed,
        "rounds": len(records),
        "weights": weighted.get("client_weights") or {},
        "evidence": evidence or None,
        "excluded": {name: reason for r in records for name, reason in r["excluded"].items()},
        "nonfinite": sorted({name for r in records for name in r["diagnostics"].get("nonfinite", [])}),
        "observed": {name: _last_observer_weights(records, name) for name in observers},
    }
    names = [name for name in RunResult.model_fields if name not in CHECKSUM_FIELDS]
    return dict.fromkeys(names) | {"schema_version": RunResult.current_version()} | known


@dataclass(frozen=True)
class Run(ContributionViews):
    """A run, as far as it got. `celm run --format json` prints the `metrics` of a finished run."""

    folder: Path
    experiment: Experiment
    metrics: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    """The lines of rounds.jsonl: metrics, weights, scores, evidence."""
    confirmed_model: str | None = field(default=None, compare=False, repr=False)
    """The model's name if the caller gave it; the name in the folder alone is not trusted."""
    finished: bool = True
    """Whether all rounds are done. If not, metrics that need the end of the run are None."""

    def __repr__(self) -> str:
        weights_text = ", ".join(f"{name} {weight:.3f}" for name, weight in self.weights.items())
        return f"Run({self._headline()}; weights: {shorten(weights_text, 200, placeholder=' …')})"

    @classmethod
    def read(cls, files: RunFiles, check_model: bool = True) -> Run:
        """Read a finished run. Raise CelmError if it is damaged or not finished.

        `check_model` includes the model, which takes time if it is large.
        """
        finished = files.read_finished(check_model)
        metrics = {"run": str(files.path.resolve()), **finished.result.metrics}
        return cls(files.path, finished.experiment, metrics, finished.records)

    @classmethod
    def read_any(cls, files: RunFiles) -> Run:
        """Read a run as far as it got. Raise CelmError if it is damaged."""
        if files.result() is not None:
            return cls.read(files)
        experiment, records = files.settings(), files.records()
        metrics = {"run": str(files.path.resolve()), **_partial_metrics(experiment, records)}
        return cls(files.path, experiment, metrics, records, finished=False)

    @property
    def weights(self) -> Mapping[str, float]:
        """Client to final weight, over all known clients."""
        weights: Mapping[str, float] = self.metrics["weights"]
        return weights

    @property
    def evidence(self) -> Mapping[str, list[float]] | None:
        """Client to evidence by class, when it was last probed; None for rules without evidence."""
        evidence: Mapping[str, list[float]] | None = self.metrics["evidence"]
        return evidence

    @property
    def earned(self) -> Mapping[str, float]:
        """Client to what it has earned so far (`celm.federation.earnings`); empty before the first round."""
        earned: Mapping[str, float] = self.rounds[-1].get("earned", {}) if self.rounds else {}
        return earned

    @property
    def accuracy(self) -> float:
        """Accuracy on the test data after the last round."""
        accuracy: float | None = self.metrics["accuracy"]
        return math.nan if accuracy is None else accuracy

    def plot_accuracy(self, title: str | None = None) -> Axes:
        """Draw the accuracy over the rounds, on all classes and on rare classes."""
        from celm.report.line_figures import accuracy_figure

        curves = {"all classes": {0: self.rounds}}
        if any(record.get("rare_class_accuracy") is not None for record in self.rounds):
            rare = [{"round": r["round"], "accuracy": r.get("rare_class_accuracy")} for r in self.rounds]
            curves["rare classes"] = {0: rare}
        return accuracy_figure(curves, title=title)

    def plot_per_class(self, title: str | None = None) -> Axes:
        """Draw the last accuracy on each class."""
        from celm.report.bar_figures import per_class_figure

        if self.metrics["per_class"] is None:
            raise CelmError(f"cannot draw the accuracy by class: no round of {self.folder} was evaluated")
        rare = self.metrics["rare_classes"] or ()
        return per_class_figure(
            {self._headline(): self.metrics["per_class"]}, self._class_names(), rare, title
        )

    def plot_fidelity(self, title: str | None = None) -> Axes:
        """Draw the estimated beside the true distribution over clients and classes."""
        from celm.report.fidelity_panels import fidelity_figure

        if self.metrics["counts"] is None:
            raise CelmError(f"{self.folder} is not finished", f"resume it: celm run --resume {self.folder}")
        return fidelity_figure(self.metrics["counts"], self._require_evidence(), self._class_names(), title)

    def _history(self) -> Sequence[Mapping[str, Any]]:
        return self.rounds

    def _class_names(self) -> Sequence[str]:
        if self.metrics["classes"] is not None:
            return list(self.metrics["classes"])
        rows = (
            row for r in self.rounds for row in (r.get("per_class"), *(r["evidence"] or {}).values()) if row
        )
        return [str(k) for k in range(len(next(rows, ())))]

    def _final_weights(self) -> Mapping[str, float]:
        return self.weights

    def _headline(self) -> str:
        title = " ".join([self.experiment.rule.name, *run_title_parts(self.experiment)])
        rounds = f"{self.metrics['rounds']} rounds"
        if not self.finished:
            rounds = f"{self.metrics['rounds']} of {pluralise(self.experiment.run.rounds or 0, 'round')}"
        accuracy = "" if math.isnan(self.accuracy) else f", accuracy {self.accuracy:.4f}"
        return f"{title}: {rounds}{accuracy}"

    def model(self, model: Any = None) -> nn.Module:
        """Build the global model, in eval mode.

        If the run was read from a folder and has a model of your own, repeat its name in `model`:
        `package.module:factory` is code, and the folder is not trusted. If it was an object, give the object.
        """
        if model is not None and not isinstance(model, str):
            give_objects(self.experiment, {"model": model}, self.folder)
            model = None
        from celm.federation.model_spec import ModelSpec, build_from_spec
        from celm.models.state_dict import load_state

        RunFiles(self.folder).check_model_file()
        spec, state = ModelSpec.from_file(self.folder / "model.safetensors", model or self.confirmed_model)
        module = build_from_spec(spec).module
        load_state(module, state)
        return module.eval()

    def probe_inputs(self) -> dict[str, Tensor] | None:
        """Return client to the inputs `[K, *shape]` at which its last probe ended; None if nothing was probed."""
        return RunFiles(self.folder).probe_inputs()
