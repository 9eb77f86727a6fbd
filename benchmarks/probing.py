"""Compare the speed of the probe with a plain loop over models, and with its lower limit.

    CELM_DATA=... python benchmarks/probing.py [--repeats 7] [--quick]

Work: N + 1 models x 10 classes, from noise, one thread. The plain loop is the simplest code: for each model, all
classes in one batch, autograd, `torch.optim.Adam`. A check ensures that both give the same logits. An
`nn.Sequential` of a user is probed, too: the probe recognises layers, not celm's model classes.

Limit: only the matrix products or convolutions of a step, forward and for the inputs. They have the shapes of the
batched probe and the same number of models at a time. A step cannot be faster without computing less.

Share of a run: the paper's FashionMNIST run (PLS, 5 clients, 100 rounds of which 5 are probed). It is computed from the
medians of probed and other rounds of one short run.

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
from celm.core.model_stack import group_by_architecture
from celm.core.probe import initial_noise, models_per_batch, probe
from celm.experiment.config import Experiment
from celm.models import build_model
from celm.runs.run_folder import RunFolder
from celm.runs.runner import continue_run
from timing import describe_machine, interleaved, median_and_spread, timed

CLASSES, STEPS, PROBE_LR, L2 = 10, 20, 0.01, 1e-3
IMAGE, COLOUR = (1, 28, 28), (3, 32, 32)


def user_mlp() -> nn.Module:
    """Build an MLP that is not a model class of celm."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )


def user_cnn() -> nn.Module:
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
    "own nn.Sequential of linear layers": (user_mlp, IMAGE),
    "CNN, 3 convolutions, 32 px": (lambda: build_model("cnn", {}, COLOUR, CLASSES), COLOUR),
    "own nn.Sequential of convolutions": (user_cnn, IMAGE),
}


def probe_by_loop(models: Sequence[nn.Module], start: Tensor) -> Tensor:
    """Probe one model after the other."""
    logits = []
    for model, initial in zip(models, start, strict=True):
        model.eval()
        x = initial.clone().requires_grad_(True)
        optimiser = torch.optim.Adam([x], lr=PROBE_LR)
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss = -model(x).diagonal().sum() + L2 * x.square().sum()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            logits.append(model(x).diagonal())
    return torch.stack(logits)


def make_step_products(module: nn.Module, shape: tuple[int, ...], models: int) -> Callable[[], None]:
    """Return a function that computes the products of a step for all models: forward, and back to the inputs."""
    calls: list[Callable[[], object]] = []
    sizes: list[tuple[nn.Module, torch.Size, torch.Size]] = []
    hooks = [
        part.register_forward_hook(lambda part, inputs, out: sizes.append((part, inputs[0].shape, out.shape)))
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
    networks = [build() for _ in range(models)]
    start = torch.stack(list(initial_noise(0, models, CLASSES, shape)))
    models_together = min(models, models_per_batch(group_by_architecture(networks)[0]))
    limit = make_step_products(networks[0], shape, models_together)

    def probe_with_celm() -> Tensor:
        return probe(networks, start, CLASSES, steps=STEPS, lr=PROBE_LR, l2=L2).logits

    def time_limit() -> float:
        _, seconds = timed(lambda: [limit() for _ in range(STEPS)])
        return seconds * models / models_together

    torch.testing.assert_close(probe_with_celm(), probe_by_loop(networks, start), rtol=1e-3, atol=1e-3)
    cases = {
        "loop": lambda: timed(probe_by_loop, networks, start)[1],
        "celm": lambda: timed(probe_with_celm)[1],
        "limit": torch.no_grad()(time_limit),
    }
    seconds = interleaved(cases, repeats)
    ratios = [
        loop_seconds / celm_seconds
        for loop_seconds, celm_seconds in zip(seconds["loop"], seconds["celm"], strict=True)
    ]
    fractions = [
        limit_seconds / mine for limit_seconds, mine in zip(seconds["limit"], seconds["celm"], strict=True)
    ]
    return {
        "network": name,
        "models": models,
        "celm_ms_per_step": 1000 * median(seconds["celm"]) / STEPS,
        "times_the_loop": median_and_spread(ratios),
        "of_the_limit": median_and_spread(fractions),
    }


def measure_run_share(probe_settings: str, rounds: int) -> dict[str, float]:
    """Return the share of the probe in 100 rounds with 5 probed ones, from a run of a few rounds of each kind."""
    experiment = Experiment.parse(
        {
            "dataset": "fashion_mnist",
            "split": "pls",
            "rule": {"name": "celm", "warmup": rounds},
            "probe": probe_settings,
            "run": {"rounds": 2 * rounds},
        }
    )
    with TemporaryDirectory() as temporary:
        run = continue_run(RunFolder.create(Path(temporary) / "run", experiment))
        times = RunFolder(run.folder).times()
    # The first round also loads parts of torch.
    probed, others = times[1:rounds], times[rounds:]
    extra = median(line["server_seconds"] for line in probed) - median(
        line["server_seconds"] for line in others
    )
    round_seconds = median(line["seconds"] for line in others)
    return {
        "probe_seconds": extra,
        "round_seconds": round_seconds,
        "share": 5 * extra / (100 * round_seconds + 5 * extra),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="fewer models and repeats, no run")
    parser.add_argument("--out", type=Path, default=Path("results/bench/probing.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine_info = describe_machine()
    rows = []
    for name in list(NETWORKS)[:: 2 if options.quick else 1]:
        for models in (6,) if options.quick else (6, 21):
            rows.append(measure(name, models, 3 if options.quick else options.repeats))
            row = rows[-1]
            print(
                f"{name}, {models} models: {row['times_the_loop']['median']:.1f} x the loop,"
                f" {row['of_the_limit']['median']:.2f} of the limit",
                flush=True,
            )
    shares = {} if options.quick else {name: measure_run_share(name, 4) for name in ("exact", "fast")}
    for name, share in shares.items():
        print(f"{name} probe: {100 * share['share']:.1f} % of a FashionMNIST run", flush=True)
    write_text(
        options.out, dump_json({"machine": machine_info, "probes": rows, "share_of_a_run": shares}) + "\n"
    )


if __name__ == "__main__":
    main()
