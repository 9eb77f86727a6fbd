"""View models: which evidence and which settings the pages show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from celm.base.files import write_text
from celm.report.views import FederationView, RunView


def observe(folder: Path, **evidence: dict[str, list[float]] | None) -> RunView:
    """Take the rule's own evidence away, and give that of round 1 to observers."""
    path = folder / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["evidence"] = None
        line["observed"] = {
            name: {"weights": {}, "client_weights": {}, "scores": None, "diagnostics": {}}
            | {"evidence": rows if line["round"] == 1 else None}
            for name, rows in evidence.items()
        }
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = json.loads((folder / "result.json").read_text())
    result |= {"evidence": None, "observed": dict.fromkeys(evidence)}
    write_text(folder / "result.json", json.dumps(result))
    return RunView(folder)


def test_the_rule_comes_before_its_observers(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    view = RunView(handmade(tmp_path / "run"))
    assert (view.evidence, view.evidence_rule) == (view.result.evidence, None)
    assert view.evidence_settings == view.experiment.rule.options
    assert [record["accuracy"] for record in view.records] == [0.25, 0.5, 0.75]
    assert [start["cores"] for start in view.environments] == [2]
    assert view.probe_inputs() is None


def test_the_first_observer_with_evidence_is_shown(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    rows = {"client-2": [0.0, 1.0, 0.0, 2.0]}
    view = observe(handmade(tmp_path / "run"), shapfed=None, celm=rows)
    assert (view.evidence, view.evidence_rule) == (rows, "celm")
    nobody = observe(handmade(tmp_path / "other"), shapfed=None)
    assert (nobody.evidence, nobody.evidence_rule) == (None, None)


def test_a_federation_shows_its_last_probe_and_its_last_weights(
    tmp_path: Path, state: Callable[..., Path]
) -> None:
    view = FederationView(state(tmp_path / "state"))
    assert view.last_probed is not None
    assert view.last_probed.round == 2
    assert view.evidence == view.rounds[1].evidence
    assert view.weights == {"north": 0.5, "south": 0.4, "east": 0.1}
    assert view.classes == ["0", "1", "2", "3"]
    assert view.raw_settings["probe"] == {"steps": 200}
    assert "schema_version" not in view.raw_settings
