"""Audits from start to end: numbers, rounds, resuming, folders, settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from matplotlib.axes import Axes
from safetensors.torch import load_file, save_file

import celm
from auditing.conftest import (
    CLASSES,
    SETTINGS,
    SHAPE,
    WIDTHS,
    Uploads,
    audit_in_memory,
    random_state,
    save_rounds,
)
from celm.auditing.probe_cache import CachedProber
from celm.base.errors import CelmError
from celm.core.calibration import CalibratedLogits, calibrated_evidence
from celm.core.model_stack import ModelStack
from celm.core.probe import model_noise, probe
from celm.models import build_model


def test_files_and_models_in_memory_give_the_same(uploads: Uploads) -> None:
    result, other = uploads.audit_json(), audit_in_memory()
    for key in ("scores", "evidence", "shares", "weights", "holds", "probe_standard_errors"):
        assert result[key] == other.document[key], key


def test_scores_equal_those_of_the_core_functions() -> None:
    """Scores follow from the mean over starts of a plain probe by the paper's formulas."""
    module = build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES)
    starts = torch.stack([model_noise(42, f"start-{r}", CLASSES, SHAPE) for r in range(5)])
    logits = []
    for seed in range(4):
        runs = [
            probe(ModelStack(module, [random_state(seed)]), start[None], CLASSES, steps=4) for start in starts
        ]
        logits.append(torch.stack([run.logits[0] for run in runs]).double().mean(0))
    Q = celm.evidence(torch.stack(logits[1:]), logits[0])
    result = audit_in_memory(preset=None)
    torch.testing.assert_close(
        torch.tensor(list(result.evidence.values()), dtype=torch.float64), Q, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        torch.tensor(list(result.scores.values()), dtype=torch.float64), celm.scores(Q), rtol=1e-4, atol=1e-5
    )


def test_renaming_a_client_changes_no_score(uploads: Uploads) -> None:
    before = uploads.audit_json()
    (uploads.clients / "a.safetensors").rename(uploads.clients / "zebra.safetensors")
    after = uploads.audit_json()
    assert after["scores"]["zebra"] == pytest.approx(before["scores"]["a"], rel=1e-4)


def test_copies_of_the_global_model_and_of_a_client_are_flagged(uploads: Uploads) -> None:
    uploads.save("lazy", load_file(uploads.global_file))
    torch.save(
        {name: tensor.double() for name, tensor in random_state(1).items()}, uploads.clients / "thief.pt"
    )
    flags = uploads.audit_json()["flags"]
    assert flags["lazy"] == "returned the model it was given, unchanged"
    assert flags["thief"] == "sent the same tensors as a"
    assert flags["a"] == "sent the same tensors as thief"


def test_rounds_give_scores_over_time_and_smoothed_weights(uploads: Uploads) -> None:
    rounds_folder = save_rounds(uploads)
    (rounds_folder / "round-002" / "b.safetensors").write_bytes(b"x")
    result = celm.audit(uploads.global_file, rounds_folder, preset=None, **SETTINGS)
    assert [record["name"] for record in result.rounds] == ["round-001", "round-002", "round-003"]
    weights = dict.fromkeys("abc", 1 / 3)
    for record in result.rounds:
        held = sum(weights[name] for name in record["scores"])
        for name, score in record["scores"].items():
            weights[name] = 0.5 * weights[name] + 0.5 * held * score
        assert record["client_weights"] == pytest.approx(weights)
    assert result.weights == pytest.approx(weights)
    assert list(result.excluded) == ["b"]
    assert result.excluded["b"].startswith("round-002: ")
    assert isinstance(result.plot_rounds(), Axes)


def test_a_later_rounds_probe_starts_where_the_last_one_ended(uploads: Uploads) -> None:
    """Two rounds of the same files are one probe of twice as many steps, except for the state of Adam."""
    rounds_folder = uploads.folder / "rounds"
    for number in (1, 2):
        folder = rounds_folder / f"round-{number}"
        folder.mkdir(parents=True)
        save_file(random_state(0), folder / "global.safetensors")
        for seed, name in enumerate("ab", start=1):
            save_file(random_state(seed), folder / f"{name}.safetensors")
    result = celm.audit(uploads.global_file, rounds_folder, **SETTINGS)
    once = celm.audit(uploads.global_file, rounds_folder / "round-1", **SETTINGS)
    assert result.rounds[0]["scores"] == pytest.approx(once.scores, rel=1e-4)
    assert result.document["bias"] > once.document["bias"]  # the probe went further


@pytest.mark.parametrize("evidence", ["paper", "calibrated"])
def test_a_resumed_audit_gives_the_same_bytes(
    uploads: Uploads,
    monkeypatch: pytest.MonkeyPatch,
    kept_files: Callable[[Path], dict[str, bytes]],
    evidence: str,
) -> None:
    audit_settings = SETTINGS | {"evidence": evidence}
    rounds_folder = save_rounds(uploads)
    whole = uploads.folder / "whole"
    celm.audit(uploads.global_file, rounds_folder, out=whole, **audit_settings)
    stopped, probed = uploads.folder / "stopped", []
    run = CachedProber.run

    def until_the_third(self: CachedProber, *arguments: Any) -> Any:
        if len(probed) == 3:
            raise KeyboardInterrupt
        probed.append(1)
        return run(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CachedProber, "run", until_the_third)
        with pytest.raises(KeyboardInterrupt):
            celm.audit(uploads.global_file, rounds_folder, out=stopped, **audit_settings)
    assert not (stopped / "ledger.json").exists()
    done = []

    def counted(self: CachedProber, *arguments: Any) -> Any:
        done.append(1)
        return run(self, *arguments)

    monkeypatch.setattr(CachedProber, "run", counted)
    celm.audit(uploads.global_file, rounds_folder, out=stopped, **audit_settings)
    assert len(done) == 3  # three of six batches: in each of three rounds a global model and three clients
    assert kept_files(stopped) == kept_files(whole)


@pytest.mark.slow
def test_a_killed_audit_is_resumed(
    uploads: Uploads, start_celm: Callable[..., Any], celm_process: Any
) -> None:
    """`kill -9` after the first probe is saved; then the same command finishes."""
    out = uploads.folder / "audit"
    arguments = [*uploads.arguments("--out", out), "--set", "probe.steps=3000"]
    process = start_celm(*arguments)
    while not list(out.glob("probes/*.safetensors")):
        assert process.poll() is None, process.communicate()
    process.kill()
    process.wait()
    assert not (out / "ledger.json").exists()
    finished = celm_process(*arguments)
    assert finished.returncode == 0, finished.stderr
    assert celm_process("audit-verify", out).returncode == 0


@pytest.fixture
def celm_process(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("celm")


def test_few_models_are_in_memory_at_once(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celm.auditing.probe_cache.BATCH_BYTES", 1)
    batches = []
    run = CachedProber.run

    def counted(self: CachedProber, states: Any, *rest: Any) -> Any:
        batches.append(len(states))
        return run(self, states, *rest)

    monkeypatch.setattr(CachedProber, "run", counted)
    one_by_one = audit_in_memory()
    assert batches == [1, 1, 1, 1]
    monkeypatch.undo()
    assert one_by_one.scores == pytest.approx(audit_in_memory().scores, rel=1e-4)


def test_the_folder_of_another_audit_is_not_changed(uploads: Uploads, refused: Callable[..., str]) -> None:
    uploads.audit_json("--out", "audit")
    before = (uploads.folder / "audit" / "audit.json").read_bytes()
    assert "another audit" in refused(*uploads.arguments("--out", "audit", "--seed", "1"))
    uploads.save("b", random_state(77))
    assert "finished audit of other files" in refused(*uploads.arguments("--out", "audit"))
    assert (uploads.folder / "audit" / "audit.json").read_bytes() == before
    (uploads.folder / "mine").mkdir()
    (uploads.folder / "mine" / "thesis.txt").write_text("x")
    assert "not empty" in refused(*uploads.arguments("--out", "mine"))
    assert [path.name for path in (uploads.folder / "mine").iterdir()] == ["thesis.txt"]


def test_a_folder_in_use_by_another_process_is_refused(uploads: Uploads) -> None:
    out = uploads.folder / "audit"
    out.mkdir()
    with FileLock(out / "audit.lock"), pytest.raises(CelmError, match="in use"):
        celm.audit(uploads.global_file, uploads.clients, out=out, **SETTINGS)
    assert celm.audit(uploads.global_file, uploads.clients, out=out, **SETTINGS).excluded == {}


def test_the_same_command_twice_gives_the_same_bytes(
    uploads: Uploads, kept_files: Callable[[Path], dict[str, bytes]]
) -> None:
    uploads.audit_json("--out", "audit")
    before = kept_files(uploads.folder / "audit")
    uploads.audit_json("--out", "audit")
    assert kept_files(uploads.folder / "audit") == before


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "net.model."])
def test_the_prefix_of_a_wrapper_is_removed(uploads: Uploads, prefix: str) -> None:
    before = uploads.audit_json()
    uploads.save("b", {prefix + name: tensor for name, tensor in random_state(2).items()})
    assert uploads.audit_json()["scores"] == before["scores"]


def test_a_prefix_before_some_names_is_not_removed(uploads: Uploads) -> None:
    state = random_state(2)
    first = next(iter(state))
    uploads.save(
        "b", {(f"model.{name}" if name == first else name): tensor for name, tensor in state.items()}
    )
    assert "model." in uploads.audit_json(code=3)["excluded"]["b"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--input-shape", "3,x"), "is not a shape"),
        (("--model", "cnnn"), "did you mean 'cnn'"),
        (("--classes", "0"), "classes: 0"),
        (("--classes", "ten"), "classes: 'ten'"),
        (("--set", "nonsense"), "is not a setting"),
        (("--set", "probe.stepz=3"), "stepz"),
        (("--set", "strength=3"), "'strength'"),
        (("--num-starts", "0"), "starts"),
        (("--global", "missing.safetensors"), "missing.safetensors"),
        (("--clients", "missing"), "missing"),
    ],
)
def test_a_wrong_option_is_an_error_of_one_line(
    uploads: Uploads, refused: Callable[..., str], more: tuple[str, ...], reason: str
) -> None:
    assert reason in refused(*uploads.arguments(*more, "--out", "audit"))
    assert not (uploads.folder / "audit").exists()


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [("starts", "num_starts", 3), ("hold", "fixed_inputs", "x"), ("returns", "output", "logits")],
)
def test_a_renamed_setting_says_its_new_name(
    uploads: Uploads, refused: Callable[..., str], old: str, new: str, value: Any
) -> None:
    with pytest.raises(CelmError, match=f"'{old}'.*'{new}'"):
        audit_in_memory(**{old: value})
    assert f"'{new}'" in refused(*uploads.arguments("--set", f"{old}={value}"))


def test_progress_counts_every_model_once(uploads: Uploads) -> None:
    """Also a client that is excluded before the probe, and a client whose logits are not finite."""
    uploads.save("b", {name: torch.full_like(tensor, 3e38) for name, tensor in random_state(2).items()})
    (uploads.clients / "c.safetensors").write_bytes(b"x")
    calls: list[tuple[int, int]] = []
    result = celm.audit(
        uploads.global_file, uploads.clients, watch=lambda *call: calls.append(call), **SETTINGS
    )
    assert set(result.excluded) == {"b", "c"}
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


def scaled_head(state: dict[str, torch.Tensor], factor: float) -> dict[str, torch.Tensor]:
    return {name: factor * tensor if name.startswith("head.") else tensor for name, tensor in state.items()}


def test_a_scaled_head_does_not_raise_calibrated_scores(uploads: Uploads) -> None:
    clients = {name: random_state(i) for i, name in enumerate("abc", start=1)}
    loud = {**clients, "a": scaled_head(clients["a"], 50)}
    start = random_state(0)
    plain = [celm.audit(start, each, preset=None, **SETTINGS).scores["a"] for each in (clients, loud)]
    assert plain[1] > plain[0] + 0.2
    honest, cheating = (celm.audit(start, each, **SETTINGS) for each in (clients, loud))
    assert cheating.scores == pytest.approx(honest.scores, abs=1e-3)


def test_calibrated_evidence_equals_that_of_the_core_functions() -> None:
    module = build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES)
    start = model_noise(42, "start-0", CLASSES, SHAPE)
    states = [random_state(seed) for seed in (1, 2, 3)]
    starts = start.expand(3, *start.shape)
    result = probe(ModelStack(module, states), starts, CLASSES, steps=4, transform=CalibratedLogits(42))
    assert result.measurements is not None
    Q = calibrated_evidence(result.logits, result.measurements)
    ours = audit_in_memory(num_starts=1, evidence="calibrated")
    torch.testing.assert_close(
        torch.tensor(list(ours.evidence.values()), dtype=torch.float64), Q, rtol=1e-4, atol=1e-4
    )
