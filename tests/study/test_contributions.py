"""Contributions and paired differences of a comparison, against independent computations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import ttest_rel

from celm.experiment.config import Experiment
from celm.study.paired import paired_difference, paired_differences, save_differences
from celm.study.plan import GridKey, plan_comparison
from celm.study.results import RunOutcome
from celm.study.study_tables import build_compare_table, build_contribution_table
from support.run_results import make_result

COUNTS = {"north": [30, 0], "south": [10, 20]}
EVIDENCE = {1: {"north": [3.0, 0.0], "south": [1.0, 2.0]}, 2: {"north": [1.0, 1.0], "south": [1.0, 1.0]}}
ACCURACY = {"fedavg": {1: 0.5, 2: 0.6, 3: 0.9}, "celm": {1: 0.75, 2: 0.5, 3: 1.0}}


@pytest.fixture
def outcomes(tmp_path: Path) -> dict[GridKey, RunOutcome]:
    specs = plan_comparison(Experiment(), ["fedavg", "celm"], [1, 2, 3], tmp_path, None)
    found = {}
    for (method, seed), spec in specs.items():
        result = make_result(
            accuracy=ACCURACY[method][seed],
            weights={"north": 0.25 * seed, "south": 1 - 0.25 * seed},
            counts=COUNTS,
            evidence=EVIDENCE.get(seed) if method == "celm" else None,
        )
        found["", method, seed] = RunOutcome(spec, result)
    return found


def test_weights_are_means_over_seeds(outcomes: dict[GridKey, RunOutcome]) -> None:
    table = build_contribution_table(outcomes, "digits")
    assert table.columns == ["north", "south", "Jensen-Shannon distance", "Hellinger distance"]
    north = table.ours["celm", "north"]
    assert (north.mean, north.std) == (pytest.approx(0.5), pytest.approx(0.25))
    assert table.rank("celm", "north") == 0


def test_fidelity_is_the_distance_from_the_true_distribution(outcomes: dict[GridKey, RunOutcome]) -> None:
    found = build_contribution_table(outcomes, "digits").ours["celm", "Jensen-Shannon distance"]
    true = np.ravel(list(COUNTS.values())) / 60
    distances = [
        jensenshannon(true, np.ravel(list(q.values())) / np.sum(list(q.values()))) for q in EVIDENCE.values()
    ]
    assert distances[0] == pytest.approx(0)
    assert found.mean == pytest.approx(np.mean(distances))
    assert found.is_incomplete
    assert ("fedavg", "Jensen-Shannon distance") not in build_contribution_table(outcomes, "digits").ours


def test_paired_differences_are_those_of_a_paired_test(
    outcomes: dict[GridKey, RunOutcome], tmp_path: Path
) -> None:
    differences = paired_differences(outcomes)
    found = next(d for d in differences if d.metric == "accuracy")
    assert (found.method, found.baseline, found.seeds) == ("celm", "fedavg", 3)
    celm, fedavg = (list(ACCURACY[name].values()) for name in ("celm", "fedavg"))
    assert found.difference == pytest.approx(np.mean(np.subtract(celm, fedavg)))
    assert found.standard_error is not None
    assert found.difference / found.standard_error == pytest.approx(ttest_rel(celm, fedavg).statistic)
    assert found.format() == "+8.33 ± 10.14 (3 seeds)"
    save_differences(differences, "digits", tmp_path)
    assert "+8.33 ± 10.14 (3 seeds)" in (tmp_path / "differences.md").read_text()
    assert r"+8.33 $\pm$ 10.14 (3 seeds)" in (tmp_path / "differences.tex").read_text()
    assert "celm,fedavg,accuracy,0.083" in (tmp_path / "differences.csv").read_text()


def test_only_common_seeds_are_paired() -> None:
    assert paired_difference({1: 0.5, 4: 0.9}, {1: 0.25, 2: 0.1}) == (0.25, None, 1)
    assert paired_difference({1: 0.5}, {2: 0.5}) is None


def test_the_best_is_marked_from_three_seeds(outcomes: dict[GridKey, RunOutcome]) -> None:
    runs = {(method, seed): outcome for (_, method, seed), outcome in outcomes.items()}
    assert build_compare_table(runs, "three").rank("celm", "accuracy") == 1
    two = {key: outcome for key, outcome in runs.items() if key[1] < 3}
    assert build_compare_table(two, "two").rank("celm", "accuracy") == 0
    assert "**6" not in build_compare_table(two, "two").to_markdown()
