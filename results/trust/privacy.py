"""What probe images give away: CELM_DATA=... python results/trust/privacy.py

Protocol, fixed before the first measurement:

- Two federations: FashionMNIST with the MLP, 10 rounds; CIFAR-10 with the CNN, 5 rounds. PLS split, 5 clients, seed
  42, rule celm with as many warm-up rounds as rounds, so that clients keep their own heads and every round is probed:
  the models are then as much their holder's own as they get, and probes go on from where they ended. All else is the
  default.
- Looked at are the inputs at which the last round's probes ended, of every client and every class of which it holds at
  least n = 100 samples. Members are n training images of that class and client, non-members n test images of that
  class, both drawn once at random; equal numbers, as the nearest of more is nearer. Noise is where the probes began.
- Measures of `celm.metrics.privacy`: nearest distance and highest structural similarity of the probe image to members
  and to non-members; of noise to members; of non-members to members (natural likeness within a class). If probes
  showed training images, the first would be nearer than the second.
- Membership tests, AUROC of n members against n non-members: by nearness to the probe image of their class and client
  (distance, and similarity), by nearness to noise, and for comparison by the loss of the client's own model, which is
  sent to the server anyway.
- Reported is the mean over all pairs of client and class with its standard error (pairs of one client are not
  independent of one another, so this understates the uncertainty). No claim is made from a difference below two
  standard errors.
- Added after the first two were measured, as their models turned out to remember nothing (AUROC by loss 0.5), so that
  there was nothing to give away: a third federation that overfits by design, FashionMNIST with 250 training images
  of each class dealt evenly (iid), 30 local epochs, 10 rounds, n = 40, and all else as above. A first try at it, PLS
  with 400 images of each class, left only 6 pairs and an AUROC by loss of 0.53 +- 0.03, too weak a test to keep.
- Images are compared as they are, also where training crops and flips them at random.

Writes privacy.json beside this file; what is there already is not measured again.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from celm.base.files import write_text
from celm.base.randomness import generator
from celm.engines.in_process import InProcess
from celm.federation.assembly import Federation, assemble, resolve
from celm.federation.experiment import Experiment
from celm.federation.jobs import Outcome
from celm.federation.rounds import begin, play
from celm.method.probe import model_noise
from celm.method.stacking import logits_of
from celm.metrics.privacy import auroc, distances, similarities
from celm.models.state import StateDict, load_state

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
"""n."""


class Recording(InProcess):
    """Keeps the model that each client sent last."""

    sent: dict[str, StateDict]

    def work(self, jobs: Any) -> list[Outcome]:
        done = super().work(jobs)
        self.sent = {job.client: outcome.update.model for job, outcome in zip(jobs, done, strict=True)}
        return done


def measure(tables: dict[str, Any], samples: int) -> dict[str, Any]:
    rounds = tables["run"]["rounds"]
    tables = {
        "split": {"name": "pls"},
        **tables,
        "rule": {"name": "celm", "warmup": rounds},
        "run": {"rounds": rounds, "seed": SEED, "workers": 0, "evaluate_every": rounds},
    }
    federation = assemble(resolve(Experiment.parse(tables)))
    engine, state = Recording(federation.workbench), begin(federation)
    while state.number < rounds:
        played = play(federation, state, engine)
        state = played.state
    assert played.inputs is not None
    pairs = [
        pair(federation, client, k, images[k], engine.sent[client], samples)
        for client, images in played.inputs.items()
        for k, count in enumerate(federation.counts[client])
        if count >= samples
    ]
    accuracy = played.record["accuracy"]
    return {
        "pairs": len(pairs),
        "accuracy": accuracy,
        **{name: mean([p[name] for p in pairs]) for name in pairs[0]},
    }


def pair(
    federation: Federation, client: str, k: int, image: Tensor, model: StateDict, samples: int
) -> dict[str, float]:
    """Every measure for the probe image of one client and class."""
    bench = federation.workbench
    holding = bench.holdings[client]
    members = bench.inputs[some(holding.rows[holding.labels == k], samples, f"members {client} {k}")]
    strangers = bench.test_inputs[
        some((bench.test_labels == k).nonzero().view(-1), samples, f"others {client} {k}")
    ]
    noise = model_noise(SEED, client, bench.classes, federation.facts.input_shape)[k]
    probe, start = image[None], noise[None]
    found: dict[str, float] = {}
    near = {
        "probe to members": (probe, members),
        "probe to non-members": (probe, strangers),
        "noise to members": (start, members),
        "non-members to members": (strangers, members),
    }
    for name, (one, other) in near.items():
        found[f"nearest distance, {name}"] = float(distances(one, other).amin(1).mean())
        found[f"highest similarity, {name}"] = float(similarities(one, other).amax(1).mean())
    found["AUROC, distance to the probe image"] = auroc(
        -distances(probe, members)[0], -distances(probe, strangers)[0]
    )
    found["AUROC, similarity to the probe image"] = auroc(
        similarities(probe, members)[0], similarities(probe, strangers)[0]
    )
    found["AUROC, distance to noise"] = auroc(-distances(start, members)[0], -distances(start, strangers)[0])
    found["AUROC, loss of the client's model"] = auroc(
        -losses(federation, model, members, k), -losses(federation, model, strangers, k)
    )
    return found


def some(rows: Tensor, count: int, purpose: str) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator(SEED, purpose))[:count]]


@torch.no_grad()
def losses(federation: Federation, model: StateDict, inputs: Tensor, k: int) -> Tensor:
    module = federation.workbench.module
    load_state(module, model)
    logits = logits_of(module.eval()(inputs))
    return F.cross_entropy(logits, torch.full((len(inputs),), k), reduction="none")


def mean(values: list[float]) -> dict[str, float]:
    found = torch.tensor(values, dtype=torch.float64)
    return {"mean": float(found.mean()), "standard_error": float(found.std() / len(values) ** 0.5)}


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
