"""A finished (or half-finished) run, read from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from celm.base.errors import CelmError
from celm.federation.experiment import Experiment
from celm.federation.folder import Folder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from celm.federation.assembly import Federation


def summary(federation: Federation, records: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """The answer of a run: the last round's accuracy, the final weights, the last evidence."""
    experiment = federation.experiment
    last = records[-1]
    standing = next((r["standing"] for r in reversed(records) if r["standing"] is not None), None)
    evidence: dict[str, list[float]] = {}
    for record in records:
        evidence |= record["evidence"] or {}
    clients = federation.facts.clients
    return {
        "dataset": experiment.dataset.name,
        "split": experiment.split.name,
        "model": experiment.model.name,
        "rule": experiment.rule.name,
        "objective": experiment.objective.name,
        "seed": experiment.run.seed,
        "rounds": federation.rounds,
        "accuracy": last["accuracy"],
        "balanced_accuracy": last["balanced_accuracy"],
        "rare_class_accuracy": last["rare_class_accuracy"],
        "per_class": last["per_class"],
        "client_accuracy": last["client_accuracy"],
        "personal": federation.rule.personal,
        "weights": standing or dict.fromkeys(clients, 1 / len(clients)),
        "evidence": {name: evidence[name] for name in clients if name in evidence} or None,
        "excluded": {name: reason for r in records for name, reason in r["excluded"].items()},
        "unreadable": sorted({name for r in records for name in r["diagnostics"].get("unreadable", [])}),
        "observed": {name: last_standing(records, name) for name in federation.observers},
        "classes": list(federation.class_names),
        "counts": dict(federation.counts),
        "rare_classes": list(federation.dealing.rare_classes),
        "free_riders": list(federation.dealing.free_riders),
        "seconds": round(seconds, 3),
    }


def last_standing(records: Sequence[Mapping[str, Any]], observer: str) -> dict[str, float] | None:
    """The weights that a watching rule would have given, from the last round it saw."""
    seen = (record["observed"][observer]["standing"] for record in reversed(records) if "observed" in record)
    return next(seen, None)


@dataclass(frozen=True)
class Run:
    """What a run found. `metrics` is the summary that `celm run --format json` prints."""

    folder: Path
    experiment: Experiment
    metrics: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    """One record a round: metrics, weights, scores, evidence."""
    named: str | None = field(default=None, compare=False, repr=False)
    """The model's name where the caller gave it, and not the folder alone."""

    def __repr__(self) -> str:
        what = " ".join(str(self.metrics[name]) for name in ("rule", "dataset", "split"))
        told = ", ".join(f"{name} {weight:.3f}" for name, weight in self.weights.items())
        found = f"{self.metrics['rounds']} rounds, accuracy {self.accuracy:.4f}"
        return f"Run({what}: {found}; weights: {shorten(told, 200, placeholder=' …')})"

    @classmethod
    def read(cls, folder: Folder) -> Run:
        result = folder.result()
        if result is not None and len(folder.records()) != result["rounds"]:
            raise CelmError(f"{folder.records_path} is damaged: it does not hold {result['rounds']} rounds")
        if result is None:
            raise CelmError(
                f"{folder.path} is not finished", f"go on with it by: celm run --resume {folder.path}"
            )
        metrics = {"run": str(folder.path.resolve()), **result}
        return cls(folder.path, folder.settings(), metrics, folder.records())

    @property
    def weights(self) -> Mapping[str, float]:
        """Client to its final weight, over all known clients."""
        weights: Mapping[str, float] = self.metrics["weights"]
        return weights

    @property
    def evidence(self) -> Mapping[str, list[float]] | None:
        """Client to evidence by class, from the last probed round; None for rules without."""
        evidence: Mapping[str, list[float]] | None = self.metrics["evidence"]
        return evidence

    @property
    def accuracy(self) -> float:
        """On the test data, after the last round."""
        accuracy: float = self.metrics["accuracy"]
        return accuracy

    def model(self, model: str | None = None) -> nn.Module:
        """The global model, ready to use (in eval mode).

        Of a run that was only read, `model` repeats the name of a model of your own: the folder may be anybody's, and
        `package.module:factory` is code.
        """
        from celm.federation.architecture import Recipe, build_architecture
        from celm.models.state import load_state

        recipe, state = Recipe.of_file(self.folder / "model.safetensors", model or self.named)
        module = build_architecture(recipe).module
        load_state(module, state)
        return module.eval()

    def probe_inputs(self) -> dict[str, Tensor] | None:
        """Client to the inputs `[K, *shape]` its last probe ended at; None where nothing was probed."""
        from celm.base.files import read_tensors

        path = self.folder / "probes.safetensors"
        return read_tensors(path)[0] if path.exists() else None
