"""Measure how much probe images reveal of training images: CELM_DATA=... python results/trust/privacy.py

Protocol, fixed before the first measurement:

- Two federations: FashionMNIST with the MLP, 10 rounds; CIFAR-10 with the CNN, 5 rounds. PLS split, 5 clients, seed
  42, rule celm. All rounds are warm-up rounds, so clients keep their own heads and every round is probed. This makes
  client models as individual as possible, and each probe starts where the last one ended. All else is the default.
- Probe images are the final inputs of the last round's probes, for every client and class with at least n = 100
  samples. Members are n training images of that class and client; non-members are n test images of that class. Both
  are drawn once at random. The numbers are equal, because the nearest of more images is nearer. Noise is the initial
  input of the probe.
- Measures of image_metrics.py: nearest distance and highest structural similarity of the probe image to members
  and to non-members; of noise to members; of non-members to members (natural similarity within a class). If probes
  showed training images, the first would be nearer than the second.
- Membership tests, AUROC of n members against n non-members, use three kinds of scores: nearness to the probe image of
  the class and client (distance, and similarity), nearness to noise, and the loss of the client's own model. The loss
  is a comparison: that model is sent to the server anyway.
- Reported is the mean over all pairs of client and class, with its standard error. Pairs of one client are not
  independent, so this understates the uncertainty. No claim is made from a difference below two standard errors.
- Added after the first two were measured: a third federation that overfits by design. The models of the first two did
  not remember training images (AUROC by loss 0.5), so they had nothing to reveal. The third has FashionMNIST with 250
  training images of each class on the iid split, 30 local epochs, 10 rounds and n = 40. All else is as above. A first
  version, PLS with 400 images of each class, left only 6 pairs and an AUROC by loss of 0.53 +- 0.03. That test was too
  weak.
- Images are compared without augmentation, also if training crops and flips them at random.

The script writes privacy.json beside this file. Federations that the file contains are not measured again.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from image_metrics import image_distances, image_similarities, membership_auroc
from torch import Tensor
from torch.nn import functional as F

from celm.base.files import write_text
from celm.base.randomness import make_generator
from celm.core.model_stack import extract_logits
from celm.core.probe import model_noise
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.federation.client_trainer import ClientResult
from celm.federation.round import initial_state, run_round
from celm.models.state_dict import StateDict, load_state

HERE = Path(__file__).parent
SEED = 42
FEDERATIONS: dict[str, dict[str, Any]] = {
    "FashionMNIST, MLP": {"dataset": {"name": "fashion_mnist"}, "run": {"rounds": 10}},
    "CIFAR-10, CNN": {"dataset": {"name": "cifar10"}, "run": {"rounds": 5}},
    "FashionMNIST, MLP, overfitted": {
        "dataset": {"name": "fashion_mnist", "limit": 250},
        "split": {"name": "iid"},
        "train": {"epochs": 30},
        "run": {"rounds": 10},
    },
}
SAMPLES = dict(zip(FEDERATIONS, (100, 100, 40), strict=True))
"""Federation to n."""


class ModelRecorder(InProcessEngine):
    """In-process engine that records the last model of each client."""

    sent: dict[str, StateDict]

    def train(self, tasks: Any) -> list[ClientResult]:
        results = super().train(tasks)
        self.sent = {task.client: result.update.model for task, result in zip(tasks, results, strict=True)}
        return results


def measure(tables: dict[str, Any], samples: int) -> dict[str, Any]:
    rounds = tables["run"]["rounds"]
    tables = {
        "split": {"name": "pls"},
        **tables,
        "rule": {"name": "celm", "warmup": rounds},
        "run": {"rounds": rounds, "seed": SEED, "workers": 0, "evaluate_every": rounds},
    }
    federation = build_federation(resolve_defaults(Experiment.parse(tables)))
    engine, state = ModelRecorder(federation.trainer), initial_state(federation)
    while state.round_number < rounds:
        round_result = run_round(federation, state, engine)
        state = round_result.state
    assert round_result.probe_inputs is not None
    pairs = [
        measure_pair(federation, client, k, images[k], engine.sent[client], samples)
        for client, images in round_result.probe_inputs.items()
        for k, count in enumerate(federation.counts[client])
        if count >= samples
    ]
    accuracy = round_result.record["accuracy"]
    return {
        "pairs": len(pairs),
        "accuracy": accuracy,
        **{name: mean_and_error([p[name] for p in pairs]) for name in pairs[0]},
    }


def measure_pair(
    federation: Federation, client: str, k: int, image: Tensor, model: StateDict, samples: int
) -> dict[str, float]:
    """Return all measures for the probe image of one client and class."""
    trainer = federation.trainer
    client_data = trainer.client_data[client]
    members = trainer.inputs[
        sample_rows(client_data.rows[client_data.labels == k], samples, f"members {client} {k}")
    ]
    non_members = trainer.test_inputs[
        sample_rows((trainer.test_labels == k).nonzero().view(-1), samples, f"others {client} {k}")
    ]
    noise = model_noise(SEED, client, trainer.classes, federation.context.input_shape)[k]
    probe, start = image[None], noise[None]
    measures: dict[str, float] = {}
    comparisons = {
        "probe to members": (probe, members),
        "probe to non-members": (probe, non_members),
        "noise to members": (start, members),
        "non-members to members": (non_members, members),
    }
    for name, (first, second) in comparisons.items():
        measures[f"nearest distance, {name}"] = float(image_distances(first, second).amin(1).mean())
        measures[f"highest similarity, {name}"] = float(image_similarities(first, second).amax(1).mean())
    measures["AUROC, distance to the probe image"] = membership_auroc(
        -image_distances(probe, members)[0], -image_distances(probe, non_members)[0]
    )
    measures["AUROC, similarity to the probe image"] = membership_auroc(
        image_similarities(probe, members)[0], image_similarities(probe, non_members)[0]
    )
    measures["AUROC, distance to noise"] = membership_auroc(
        -image_distances(start, members)[0], -image_distances(start, non_members)[0]
    )
    measures["AUROC, loss of the client's model"] = membership_auroc(
        -losses(federation, model, members, k), -losses(federation, model, non_members, k)
    )
    return measures


def sample_rows(rows: Tensor, count: int, purpose: str) -> Tensor:
    return rows[torch.randperm(len(rows), generator=make_generator(SEED, purpose))[:count]]


@torch.no_grad()
def losses(federation: Federation, model: StateDict, inputs: Tensor, k: int) -> Tensor:
    module = federation.trainer.module
    load_state(module, model)
    logits = extract_logits(module.eval()(inputs))
    return F.cross_entropy(logits, torch.full((len(inputs),), k), reduction="none")


def mean_and_error(values: list[float]) -> dict[str, float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    return {"mean": float(tensor.mean()), "standard_error": float(tensor.std() / len(values) ** 0.5)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = HERE / "privacy.json"
    results = json.loads(target.read_text()) if target.exists() else {}
    for name, tables in FEDERATIONS.items():
        if name not in results:
            started = time.perf_counter()
            results[name] = measure(tables, SAMPLES[name])
            write_text(target, json.dumps(results, indent=1) + "\n")
            print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
