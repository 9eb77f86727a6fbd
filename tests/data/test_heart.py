"""Heart disease in four hospitals: the counts of its description, the encoding of a line by hand, and a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

import celm
from celm.data.sources import heart
from celm.data.sources.heart import Heart

# heart-disease.names: the number of instances with each grade.
GRADES = {
    "cleveland": [164, 55, 36, 35, 13],
    "hungarian": [188, 37, 26, 28, 15],
    "switzerland": [8, 48, 32, 30, 5],
    "va": [51, 56, 41, 42, 10],
}


def test_counts_are_those_of_the_description() -> None:
    description = Path(heart.__file__).parents[1] / "bundled" / "heart" / "heart-disease.names"
    text = " ".join(description.read_text().split())
    for hospital, (healthy, *diseased) in GRADES.items():
        assert " ".join(map(str, [healthy, *diseased, healthy + sum(diseased)])) in text
        grades = heart._read_hospital(hospital)[:, -1]
        assert int((grades == 0).sum()) == healthy
        assert int((grades > 0).sum()) == sum(diseased)


def test_every_patient_is_there_once_and_a_fifth_of_each_hospital_is_for_tests() -> None:
    data = Heart().load()
    assert len(data.train_labels) + len(data.test_labels) == 920
    assert data.client_ids is not None
    sizes = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    for hospital, count in Counter(data.client_ids).items():
        assert count == pytest.approx(0.8 * sizes[hospital], abs=3)
    assert data.train_inputs.isfinite().all()
    assert data.shape == Heart.info.shape
    assert (len(data.train_labels), len(data.test_labels)) == Heart.info.counts[0]


def test_a_line_is_encoded_as_by_hand() -> None:
    # 63,1,1,145,233,1,2,150,0,2.3,3,0,6,0
    first = heart._encode(heart._read_hospital("cleveland")[:1])[0].tolist()
    expected = [(63 - 53.5) / 9.4, (145 - 132.3) / 18.5, (233 - 246.8) / 58.5, (150 - 137.5) / 25.9]
    expected += [(2.3 - 0.88) / 1.09, (0 - 0.67) / 0.93, 1, 1, -1]
    expected += [1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0]
    assert first == pytest.approx(expected, abs=1e-6)
    # Cholesterol of Switzerland is 0 for all, which means that it is missing; vessels and scans are partly missing.
    swiss = heart._encode(heart._read_hospital("switzerland"))
    assert not swiss[:, 2].any()


def test_grades_are_five_classes() -> None:
    data = Heart(grades=True).load()
    assert len(data.classes) == 5
    assert torch.bincount(data.train_labels, minlength=5).min() > 0
    assert torch.equal(data.train_labels > 0, Heart().load().train_labels > 0)


def test_a_federation_of_hospitals_runs_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELM_DATA", str(tmp_path / "none"))
    run = celm.run(celm.Experiment(dataset="heart", rule="fedavg", rounds=20), tmp_path / "run")
    assert list(run.weights) == ["cleveland", "hungarian", "switzerland", "va"]
    assert run.metrics["split"] == "natural"
    assert run.accuracy > 0.72  # always "disease" has 0.55
