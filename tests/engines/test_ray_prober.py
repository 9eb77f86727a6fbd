"""Probes on a Ray cluster: what the local probe finds, however models are cut and whoever is killed on the way."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.core.calibration import CalibratedLogits
from celm.core.model_stack import ModelStack
from celm.core.probe import ProbeResult, ProbeTransform, prepare_probe, probe
from celm.engines import ray_prober
from celm.engines.ray_prober import (
    RayProber,
    Shard,
    concat_results,
    make_shards,
    remote_probe,
    serialise_module,
)
from celm.models import build_model

with_ray = pytest.mark.skipif(
    not importlib.util.find_spec("ray"), reason="Ray is not installed: pip install 'celm[ray]'"
)
Working = Callable[[int, str], list[int]]
CLASSES, SHAPE = 3, (1, 22, 22)
QUICK = {"steps": 6, "lr": 0.05, "seed": 5}


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """A shard is probed on one thread; in a worker that is for good."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def models(name: str, count: int) -> list[nn.Module]:
    options = {"mlp": {"widths": [12]}, "cnn": {"channels": [2, 3, 3], "hidden": 5}}[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return [build_model(name, options, SHAPE, CLASSES) for _ in range(count)]


def stack(name: str, count: int) -> ModelStack:
    made = models(name, count)
    return ModelStack(made[0], [model.state_dict() for model in made])


def agree(found: ProbeResult, expected: ProbeResult) -> None:
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.inputs, expected.inputs)
    assert (found.measurements is None) == (expected.measurements is None)
    if found.measurements is not None:
        for part in ("mean", "std", "rms_std"):
            torch.testing.assert_close(
                getattr(found.measurements, part), getattr(expected.measurements, part)
            )


def in_shards(
    probed: Any, inputs: Any, classes: Any, width: int, seed: int = 0, transform: Any = None, **settings: Any
) -> tuple[ProbeResult, int]:
    """As on a cluster of this width, but in this process; also the number of shards."""
    stacks, targets, start = prepare_probe(probed, inputs, classes, seed)
    options = {"classes": targets, "seed": seed, "transform": transform, **settings}
    parts = [
        remote_probe(serialise_module(shard.stack.module), *shard.to_cpu_copies(), options, version("celm"))
        for shard in make_shards(stacks, start, width)
    ]
    return concat_results(parts, start[0].device, transform), len(parts)


@with_ray
@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("transform", [None, CalibratedLogits(5)])
@pytest.mark.parametrize(
    ("count", "width", "shards"), [(1, 4, 1), (4, 3, 2), (5, 1, 1), (5, 5, 5), (3, 99, 3)]
)
def test_shards_find_what_the_whole_does(
    name: str, transform: ProbeTransform | None, count: int, width: int, shards: int
) -> None:
    probed = stack(name, count)
    found, made = in_shards(probed, SHAPE, CLASSES, width, transform=transform, **QUICK)
    assert made == shards
    agree(found, probe(probed, SHAPE, CLASSES, transform=transform, **QUICK))


@with_ray
def test_models_of_several_architectures_given_starts_and_some_classes_only() -> None:
    probed = [*models("mlp", 3), *models("cnn", 2), nn.Sequential(nn.Flatten(), nn.Linear(22 * 22, CLASSES))]
    start = torch.randn(6, 2, *SHAPE, generator=torch.Generator().manual_seed(0))
    found, shards = in_shards(probed, start, [2, 0], 3, transform=CalibratedLogits(), chunk=2, steps=6)
    assert shards == 4
    agree(found, probe(probed, start, [2, 0], transform=CalibratedLogits(), chunk=2, steps=6))


def test_a_shard_is_no_larger_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    probed, start = stack("mlp", 6), torch.zeros(6, CLASSES, *SHAPE)
    one = start[0].nbytes + sum(tensor.nbytes for tensor in probed.states[0].values())
    for most, sizes in ((2 * one, [2, 2, 2]), (2 * one - 1, [1] * 6), (1, [1] * 6), (99 * one, [3, 3])):
        monkeypatch.setattr(ray_prober, "MAX_SHARD_BYTES", most)
        shards = list(make_shards([probed], start, 2))
        assert [len(shard.stack) for shard in shards] == sizes
        assert [len(shard.initial_inputs) for shard in shards] == sizes


def test_only_the_shard_travels_and_not_what_its_tensors_are_a_view_of() -> None:
    storage = torch.zeros(1000, 4)
    states, start = Shard(
        ModelStack(nn.Linear(4, 1), [{"weight": storage[:1]}]), storage[None, 3:5]
    ).to_cpu_copies()
    assert states[0]["weight"].untyped_storage().nbytes() == 4 * 4
    assert start.untyped_storage().nbytes() == 2 * 4 * 4


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 2)
        self.lock = threading.Lock()


@with_ray
def test_what_cannot_travel_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CelmError, match=r"^the model cannot be sent to a Ray cluster: TypeError: .*lock"):
        serialise_module(Locked())
    module = ModuleType("only_here")
    exec("from torch import nn\nclass Net(nn.Linear): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    content = serialise_module(module.Net(4, 2))
    monkeypatch.delitem(sys.modules, "only_here")
    start = torch.zeros(1, 2, 4)
    with pytest.raises(CelmError, match=r"cannot load the model: ModuleNotFoundError: .*only_here"):
        remote_probe(content, [nn.Linear(4, 2).state_dict()], start, {"classes": 2}, version("celm"))
    with pytest.raises(CelmError, match=rf"a node of the cluster has celm {version('celm')}, not 9"):
        remote_probe(serialise_module(nn.Linear(4, 2)), [], start, {"classes": 2}, "9")


def test_without_ray_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    audit = ("audit", "--global=g", "--clients=c", "--model=mlp", "--classes=2", "--input-shape=4")
    for command in (("run",), ("run", "--engine", "flower"), audit):
        stderr = refused(*command, "--probe-engine", "ray")
        assert stderr == "error: --probe-engine ray needs Ray (pip install 'celm[ray]')\n"
    assert list(tmp_path.iterdir()) == []


@with_ray
def test_a_cluster_that_is_not_there_is_one_line_and_leaves_nothing(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    ray = ("--probe-engine", "ray")
    assert "cannot reach a Ray cluster at 127.0.0.1:1" in refused("run", *ray, "--address", "127.0.0.1:1")
    assert "Ray Client" in refused("run", *ray, "--address", "ray://here:1")
    assert "--address needs --probe-engine ray" in refused("run", "--address", "auto")
    assert "--engine flower" in refused("run", *ray, "--engine", "flower", "--address", "auto")
    assert list(tmp_path.iterdir()) == []


# --- on a real Ray ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    address: str
    pid: int


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A Ray of three workers, in processes of its own."""
    pytest.importorskip("ray")
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    start = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"
    options = [f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=3", "--include-dashboard=false"]
    # Any free ports: by default every cluster takes those from 10002 on, and whoever joins one ends if they are taken.
    options += ["--min-worker-port=0", "--max-worker-port=0"]
    with (
        TemporaryDirectory(prefix="ray-") as place,  # where no other test looks for a cluster
        subprocess.Popen(
            [sys.executable, "-c", start, "start", "--head", "--block", f"--temp-dir={place}", *options],
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Host(f"127.0.0.1:{port}", process.pid)
        finally:
            os.killpg(process.pid, signal.SIGTERM)


@pytest.fixture
def prober(host: Host) -> Iterator[RayProber]:
    """One that has joined, as soon as there is something to join."""
    deadline = time.monotonic() + 200
    while True:
        try:
            made = RayProber(host.address)
            made.connect()
            break
        except CelmError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    with made:
        yield made


@pytest.mark.slow
def test_a_cluster_of_three_finds_what_this_process_does(prober: RayProber) -> None:
    assert prober.parallelism == 3
    for name, count, transform in (
        ("mlp", 4, None),
        ("cnn", 7, CalibratedLogits(5)),
        ("mlp", 1, CalibratedLogits(5)),
    ):
        probed = stack(name, count)
        found = prober(probed, SHAPE, CLASSES, transform=transform, **QUICK)
        agree(found, probe(probed, SHAPE, CLASSES, transform=transform, **QUICK))
    with torch.inference_mode():
        result = prober(models("mlp", 4), SHAPE, CLASSES, **QUICK)
    agree(result, probe(models("mlp", 4), SHAPE, CLASSES, **QUICK))
    assert not result.inputs.is_inference()
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        prober(probed, SHAPE, CLASSES, chunk=0)


class Idle:
    def ready(self) -> bool:
        return True


@pytest.mark.slow
def test_a_guest_needs_no_cpu_of_its_own_and_leaves_the_cluster_as_it_was(
    host: Host, prober: RayProber
) -> None:
    """As in Flower's simulation, whose nodes hold all CPUs for as long as it lives."""
    ray = prober.connect().ray
    actors = [ray.remote(num_cpus=1)(Idle).remote() for _ in range(3)]
    assert all(ray.get([actor.ready.remote() for actor in actors]))
    with RayProber() as guest:
        result = guest(stack("mlp", 4), SHAPE, CLASSES, **QUICK)
    agree(result, probe(stack("mlp", 4), SHAPE, CLASSES, **QUICK))
    assert all(ray.get([actor.ready.remote() for actor in actors]))
    with pytest.raises(CelmError, match="already connected to a Ray cluster"):
        RayProber(host.address).connect()


class Deadly(nn.Module):
    """Kills the worker that probes it, once for each file in a folder; the test's own process survives."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.folder, self.survivor = folder, os.getpid()

    def forward(self, inputs: Tensor) -> Tensor:
        if os.getpid() != self.survivor:
            for path in sorted(self.folder.iterdir()):
                path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        logits: Tensor = self.linear(inputs)
        return logits


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(prober: RayProber, tmp_path: Path) -> None:
    (tmp_path / "kill-1").touch()
    probed = [Deadly(tmp_path) for _ in range(5)]
    result = prober(probed, (4,), 2, steps=40)
    assert list(tmp_path.iterdir()) == []
    agree(result, probe(probed, (4,), 2, steps=40))


@pytest.mark.slow
def test_a_shard_that_is_lost_three_times_is_one_line_and_the_next_probe_goes_on(
    prober: RayProber, tmp_path: Path
) -> None:
    for kill in range(4):
        (tmp_path / f"kill-{kill}").touch()
    with pytest.raises(CelmError, match=r"^the Ray worker was lost 3 times: [^\n]+$"):
        prober([Deadly(tmp_path)], (4,), 2, steps=40)
    assert len(list(tmp_path.iterdir())) == 1
    result = prober(stack("mlp", 2), SHAPE, CLASSES, **QUICK)
    agree(result, probe(stack("mlp", 2), SHAPE, CLASSES, **QUICK))


NETS = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, features, classes):
        super().__init__(nn.Flatten(), nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, classes))

def make(input_shape, classes):
    return Net(input_shape[0] * input_shape[1] * input_shape[2], classes)
"""
RAY = ("--probe-engine", "ray", "--address", "local")


class Killer(threading.Thread):
    """Kills so many of the workers that probe, as they come."""

    def __init__(self, ancestor: int, working: Working, count: int) -> None:
        super().__init__(daemon=True)
        self.ancestor, self.working, self.count = ancestor, working, count
        self.killed: set[int] = set()

    def run(self) -> None:
        deadline = time.monotonic() + 200
        while len(self.killed) < self.count and time.monotonic() < deadline:
            for pid in self.working(self.ancestor, "remote_probe"):
                if pid not in self.killed and len(self.killed) < self.count:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.killed.add(pid)
            time.sleep(0.01)


def close(one: Any, other: Any) -> bool:
    """The same names, and the same numbers up to rounding."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float):
        return bool(one == pytest.approx(other, rel=1e-4, abs=1e-6))
    return bool(one == other)


def rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.slow
@with_ray
def test_a_run_whose_probes_are_on_a_cluster_is_the_local_run_also_with_a_model_of_ones_own_and_a_killed_worker(
    tmp_path: Path, start_celm: Callable[..., Any], ray_workers: Working
) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    run = ("run", "--model", "nets:make", "--rounds", "3", "--set", "probe.steps=3000", "--format", "json")
    for out, more in (("local", ()), ("ray", RAY)):
        process = start_celm(*run, "--set", "rule.warmup=2", "--out", out, *more)
        if more:
            killer = Killer(process.pid, ray_workers, 1)
            killer.start()
        printed, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
        if more:
            assert len(killer.killed) == 1, stderr
        assert json.loads(printed)["rounds"] == 3
    assert close(rounds(tmp_path / "ray"), rounds(tmp_path / "local"))


@pytest.mark.slow
@with_ray
def test_flowers_simulation_probes_on_its_own_ray(tmp_path: Path, celm: Callable[..., Any]) -> None:
    pytest.importorskip("flwr")
    run = ("run", "--rounds", "2", "--set", "probe.steps=20", "--set", "rule.warmup=2", "--format", "json")
    for out, more in (("local", ()), ("ray", ("--engine", "flower", "--probe-engine", "ray"))):
        done = celm(*run, "--out", out, *more)
        assert done.returncode == 0, done.stderr
    assert close(rounds(tmp_path / "ray"), rounds(tmp_path / "local"))


@pytest.mark.slow
@with_ray
def test_an_audit_whose_probes_are_on_a_cluster_is_the_local_audit(
    tmp_path: Path, celm: Callable[..., Any]
) -> None:
    for i, model in enumerate(models("mlp", 6)):
        (tmp_path / "uploads").mkdir(exist_ok=True)
        torch.save(model.state_dict(), tmp_path / (f"uploads/client-{i}.pt" if i else "global.pt"))
    shape = ",".join(map(str, SHAPE))
    audit = ("audit", "--global=global.pt", "--clients=uploads", "--model=mlp", f"--input-shape={shape}")
    quick = (
        f"--classes={CLASSES}",
        "--set",
        "probe.steps=20",
        "--set",
        "options.widths=[12]",
        "--format=json",
    )
    documents = []
    for more in ((), RAY):
        done = celm(*audit, *quick, *more)
        assert done.returncode == 0, done.stderr
        documents.append(json.loads(done.stdout))
    assert close(*documents)


@pytest.mark.slow
def test_a_strategy_probes_on_the_cluster_that_its_process_is_in(prober: RayProber) -> None:
    pytest.importorskip("flwr")
    from celm.flower import CelmStrategy
    from support.small_grid import SmallGrid, initial, learner, network

    def contributions(engine: str) -> Any:
        strategy = CelmStrategy(
            network(),
            (6,),
            CLASSES,
            rule_options={"warmup": 2},
            probe={"steps": 20},
            probe_engine=engine,
            fraction_evaluate=0.0,
        )
        grid = SmallGrid({"a": learner(0.1), "b": learner(-0.2), "c": learner(0.3)})
        strategy.summary()
        return strategy.start(grid, initial(), num_rounds=2).contributions

    assert close(contributions("ray"), contributions("local"))
