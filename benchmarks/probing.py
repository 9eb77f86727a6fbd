"""How fast models are probed: beside the plain loop over models, and beside the probe's own limit.

    CELM_DATA=... python benchmarks/probing.py [--repeats 7] [--quick]

Work: N + 1 models x 10 classes, from noise, one thread. The plain loop is what one writes first: for each model, all
classes in one batch, autograd, `torch.optim.Adam`. Both end at the same logits, which is checked. A plain
`nn.Sequential` of the user's own is probed as well: layers are recognised, not our classes.

Limit: the matrix products (or convolutions) of a step alone, forward and for the inputs, at the very shapes of the
batched probe and as many models at a time as it takes, nothing else; a step cannot be faster than that without
computing less.

Share of a run: the paper's FashionMNIST run (PLS, 5 clients, 100 rounds of which 5 are probed), from the medians of
probed and other rounds of one short run in the same minutes.

Targets: 4 x the loop, 0.5 of the limit, 3 % of a run with the cheaper probe.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from celm.base.files import dump_json, write_text
from celm.engines.launch import carry_out
from celm.federation.experiment import Experiment
from celm.federation.folder import Folder
from celm.method.probe import alike, noise, probe, within_cache
from celm.models import build_model
from timing import interleaved, machine, median_and_spread, timed

CLASSES, STEPS, RATE, L2 = 10, 20, 0.01, 1e-3
IMAGE, COLOUR = (1, 28, 28), (3, 32, 32)


def own_network() -> nn.Module:
    """Not one of ours."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )


def own_convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, CLASSES),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 784-128-64-10": (lambda: build_model("mlp", {}, IMAGE, CLASSES), IMAGE),
    "own nn.Sequential of linear layers": (own_network, IMAGE),
    "CNN, 3 convolutions, 32 px": (lambda: build_model("cnn", {}, COLOUR, CLASSES), COLOUR),
    "own nn.Sequential of convolutions": (own_convolutions, IMAGE),
}


def loop(models: Sequence[nn.Module], start: Tensor) -> Tensor:
    """The plain way: one model after the other."""
    reached = []
    for model, begin in zip(models, start, strict=True):
        model.eval()
        x = begin.clone().requires_grad_(True)
        optimiser = torch.optim.Adam([x], lr=RATE)
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss = -model(x).diagonal().sum() + L2 * x.square().sum()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            reached.append(model(x).diagonal())
    return torch.stack(reached)


def products(module: nn.Module, shape: tuple[int, ...], models: int) -> Callable[[], None]:
    """The products of a step for all models: forward, and back to the inputs."""
    calls: list[Callable[[], object]] = []
    sizes: list[tuple[nn.Module, torch.Size, torch.Size]] = []
    hooks = [
        part.register_forward_hook(lambda part, given, out: sizes.append((part, given[0].shape, out.shape)))
        for part in module.modules()
        if isinstance(part, (nn.Linear, nn.Conv2d))
    ]
    with torch.no_grad():
        module(torch.zeros(CLASSES, *shape))
    for hook in hooks:
        hook.remove()
    for part, before, after in sizes:
        if isinstance(part, nn.Linear):
            weight = torch.randn(models, part.in_features, part.out_features)
            x, error = torch.randn(models, *before), torch.randn(models, *after)
            y, back = torch.empty_like(error), torch.empty_like(x)
            calls.append(partial(torch.bmm, x, weight, out=y))
            calls.append(partial(torch.bmm, error, weight.mT, out=back))
        elif isinstance(part, nn.Conv2d):
            weight = torch.randn(models * part.out_channels, part.in_channels, *part.kernel_size)
            weight = weight.contiguous(memory_format=torch.channels_last)
            x, error = (
                torch.randn(size[0], models * size[1], *size[2:]).contiguous(
                    memory_format=torch.channels_last
                )
                for size in (before, after)
            )

            def forward(x: Tensor = x, weight: Tensor = weight, part: nn.Conv2d = part) -> object:
                return nn.functional.conv2d(x, weight, None, part.stride, part.padding, 1, models)

            def backward(
                x: Tensor = x, weight: Tensor = weight, error: Tensor = error, part: nn.Conv2d = part
            ) -> object:
                return torch.ops.aten.convolution_backward(
                    error, x, weight, None, part.stride, part.padding, (1, 1), False, (0, 0), models,
                    (True, False, False),
                )  # fmt: skip

            calls += [forward, backward]

    def step() -> None:
        for call in calls:
            call()

    return step


def measure(name: str, models: int, repeats: int) -> dict[str, Any]:
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    several = [build() for _ in range(models)]
    start = torch.stack(list(noise(0, models, CLASSES, shape)))
    together = min(models, within_cache(alike(several)[0]))
    limit = products(several[0], shape, together)

    def ours() -> Tensor:
        return probe(several, start, CLASSES, steps=STEPS, lr=RATE, l2=L2).logits

    def alone() -> float:
        _, seconds = timed(lambda: [limit() for _ in range(STEPS)])
        return seconds * models / together

    torch.testing.assert_close(ours(), loop(several, start), rtol=1e-3, atol=1e-3)
    cases = {
        "loop": lambda: timed(loop, several, start)[1],
        "celm": lambda: timed(ours)[1],
        "limit": torch.no_grad()(alone),
    }
    seconds = interleaved(cases, repeats)
    ratios = [plain / mine for plain, mine in zip(seconds["loop"], seconds["celm"], strict=True)]
    parts = [least / mine for least, mine in zip(seconds["limit"], seconds["celm"], strict=True)]
    return {
        "network": name,
        "models": models,
        "celm_ms_per_step": 1000 * median(seconds["celm"]) / STEPS,
        "times_the_loop": median_and_spread(ratios),
        "of_the_limit": median_and_spread(parts),
    }


def share_of_a_run(probe_settings: str, rounds: int) -> dict[str, float]:
    """Of 100 rounds with 5 probed ones, from a run of a few rounds of each kind."""
    experiment = Experiment.parse(
        {
            "dataset": "fashion_mnist",
            "split": "pls",
            "rule": {"name": "celm", "warmup": rounds},
            "probe": probe_settings,
            "run": {"rounds": 2 * rounds},
        }
    )
    with TemporaryDirectory() as place:
        run = carry_out(Folder.create(Path(place) / "run", experiment))
        times = Folder(run.folder).times()
    # The first round also waits for parts of torch to load.
    probed, others = times[1:rounds], times[rounds:]
    extra = median(line["server_seconds"] for line in probed) - median(
        line["server_seconds"] for line in others
    )
    plain = median(line["seconds"] for line in others)
    return {"probe_seconds": extra, "round_seconds": plain, "share": 5 * extra / (100 * plain + 5 * extra)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="fewer models and repeats, no run")
    parser.add_argument("--out", type=Path, default=Path("results/bench/probing.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine()
    found = []
    for name in list(NETWORKS)[:: 2 if given.quick else 1]:
        for models in (6,) if given.quick else (6, 21):
            found.append(measure(name, models, 3 if given.quick else given.repeats))
            row = found[-1]
            print(
                f"{name}, {models} models: {row['times_the_loop']['median']:.1f} x the loop,"
                f" {row['of_the_limit']['median']:.2f} of the limit",
                flush=True,
            )
    shares = {} if given.quick else {name: share_of_a_run(name, 4) for name in ("exact", "fast")}
    for name, share in shares.items():
        print(f"{name} probe: {100 * share['share']:.1f} % of a FashionMNIST run", flush=True)
    write_text(given.out, dump_json({"machine": facts, "probes": found, "share_of_a_run": shares}) + "\n")


if __name__ == "__main__":
    main()
