"""Replicated data: what the client holds, takes and reports, beside what it would have honestly."""

from __future__ import annotations

import numpy as np
import pytest

from celm.attacks.replicate_data import ReplicateData
from celm.data.split import Partition
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.federation.client_trainer import ClientTask
from celm.rules.messages import ServerMessage


def test_its_samples_and_labels_are_repeated_and_nobody_elses() -> None:
    before = Partition(
        {"client-0": np.array([3, 1]), "client-1": np.array([7])},
        relabelled={"client-0": np.array([0, 9]), "client-1": np.array([4])},
    )
    after = ReplicateData(strength=2).transform_partition(before)
    assert after.clients["client-0"].tolist() == [3, 1, 3, 1, 3, 1]
    assert after.relabelled["client-0"].tolist() == [0, 9, 0, 9, 0, 9]
    assert after.clients["client-1"].tolist() == [7]
    assert after.relabelled["client-1"].tolist() == [4]
    assert before.clients["client-0"].tolist() == [3, 1]


@pytest.mark.parametrize("strength", [0, 3])
def test_it_trains_as_many_times_as_long_and_reports_the_copies(strength: int) -> None:
    federations = [
        build_federation(
            resolve_defaults(
                Experiment.parse(
                    {
                        "dataset": {"name": "digits", "limit": 40},
                        "split": {"name": "iid", "clients": 4},
                        "train": {"batch": 5},
                        "model": {"name": "mlp", "widths": [6]},
                        "run": {"rounds": 1, "workers": 0},
                        **attack,
                    }
                )
            )
        )
        for attack in ({}, {"attack": {"name": "replicate_data", "strength": strength}})
    ]
    updates = [
        federation.trainer.train(
            ClientTask("client-0", 1, 0.1, ServerMessage(federation.initial_model))
        ).update
        for federation in federations
    ]
    honest, copied = updates
    assert honest.num_examples == 95
    assert copied.num_examples == (strength + 1) * 95
    assert copied.num_steps == (strength + 1) * honest.num_steps
    assert federations[1].counts["client-1"] == federations[0].counts["client-1"]
