"""Audits from start to end: rounds, resuming, copies, folders, results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from safetensors.torch import load_file, save_file
from typer.testing import Result

import celm
from auditing.conftest import CLASSES, QUICK, SHAPE, WIDTHS, Uploads, random_state
from celm.auditing.probing import Prober
from celm.base.errors import CelmError
from celm.method.calibration import calibrated_evidence
from celm.method.probe import model_noise, probe
from celm.method.stacking import Stack
from celm.models import build_model

HOW: dict[str, Any] = {
    "model": "mlp", "options": {"widths": WIDTHS}, "input_shape": SHAPE, "classes": CLASSES, "probe": {"steps": 4},
}  # fmt: skip


def in_memory(**more: Any) -> celm.Audit:
    return celm.audit(
        random_state(0), {name: random_state(i) for i, name in enumerate("abc", start=1)}, **HOW | more
    )


def test_files_and_models_in_memory_give_the_same(uploads: Uploads) -> None:
    found, other = uploads.found(), in_memory()
    for key in ("scores", "evidence", "shares", "weights", "holds", "probe_standard_errors"):
        assert found[key] == other.document[key], key


def test_numbers_are_those_of_the_methods_own_functions() -> None:
    """The mean over starts of a plain probe, by the paper's formulas."""
    module = build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES)
    starts = torch.stack([model_noise(42, f"start-{r}", CLASSES, SHAPE) for r in range(5)])
    logits = []
    for seed in range(4):
        runs = [probe(Stack(module, [random_state(seed)]), start[None], CLASSES, steps=4) for start in starts]
        logits.append(torch.stack([run.logits[0] for run in runs]).double().mean(0))
    Q = celm.evidence(torch.stack(logits[1:]), logits[0])
    found = in_memory()
    torch.testing.assert_close(
        torch.tensor(list(found.evidence.values()), dtype=torch.float64), Q, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        torch.tensor(list(found.scores.values()), dtype=torch.float64), celm.scores(Q), rtol=1e-4, atol=1e-5
    )


def test_a_name_and_an_order_change_no_score(uploads: Uploads) -> None:
    before = uploads.found()
    (uploads.clients / "a.safetensors").rename(uploads.clients / "zebra.safetensors")
    after = uploads.found()
    assert after["scores"]["zebra"] == pytest.approx(before["scores"]["a"], rel=1e-4)


def test_the_model_it_was_given_and_a_neighbours_are_flagged(uploads: Uploads) -> None:
    uploads.save("lazy", load_file(uploads.start))
    torch.save(
        {name: tensor.double() for name, tensor in random_state(1).items()}, uploads.clients / "thief.pt"
    )
    flags = uploads.found()["flags"]
    assert flags["lazy"] == "returned the model it was given, unchanged"
    assert flags["thief"] == "sent the same tensors as a"
    assert flags["a"] == "sent the same tensors as thief"


def save_rounds(uploads: Uploads, count: int = 3) -> Path:
    place = uploads.place / "rounds"
    for number in range(1, count + 1):
        folder = place / f"round-{number:03d}"
        folder.mkdir(parents=True)
        save_file(random_state(100 * number), folder / "global.safetensors")
        for seed, name in enumerate("abc", start=1):
            save_file(random_state(100 * number + seed), folder / f"{name}.safetensors")
    return place


def test_rounds_give_scores_over_time_and_smoothed_weights(uploads: Uploads) -> None:
    place = save_rounds(uploads)
    (place / "round-002" / "b.safetensors").write_bytes(b"x")
    found = celm.audit(uploads.start, place, **HOW)
    assert [record["name"] for record in found.rounds] == ["round-001", "round-002", "round-003"]
    weights = dict.fromkeys("abc", 1 / 3)
    for record in found.rounds:
        held = sum(weights[name] for name in record["scores"])
        for name, score in record["scores"].items():
            weights[name] = 0.5 * weights[name] + 0.5 * held * score
        assert record["standing"] == pytest.approx(weights)
    assert found.weights == pytest.approx(weights)
    assert list(found.excluded) == ["b"]
    assert found.excluded["b"].startswith("round-002: is not a whole safetensors file")
    assert isinstance(found.plot_rounds(), Axes)


def test_a_later_rounds_probe_starts_where_the_last_one_ended(uploads: Uploads) -> None:
    """Two rounds of the same files are one probe of twice as many steps, but for Adam's memory; and not a cold one."""
    place = uploads.place / "rounds"
    for number in (1, 2):
        folder = place / f"round-{number}"
        folder.mkdir(parents=True)
        save_file(random_state(0), folder / "global.safetensors")
        for seed, name in enumerate("ab", start=1):
            save_file(random_state(seed), folder / f"{name}.safetensors")
    found = celm.audit(uploads.start, place, **HOW)
    once = celm.audit(uploads.start, place / "round-1", **HOW)
    assert found.rounds[0]["scores"] == pytest.approx(once.scores, rel=1e-4)
    assert found.document["bias"] > once.document["bias"]  # driven further


@pytest.mark.parametrize("evidence", ["paper", "calibrated"])
def test_an_audit_that_was_stopped_goes_on_and_gives_the_same_bytes(
    uploads: Uploads,
    monkeypatch: pytest.MonkeyPatch,
    kept_files: Callable[[Path], dict[str, bytes]],
    evidence: str,
) -> None:
    how = HOW | {"evidence": evidence}
    place = save_rounds(uploads)
    whole = uploads.place / "whole"
    celm.audit(uploads.start, place, out=whole, **how)
    stopped, probed = uploads.place / "stopped", []
    run = Prober.run

    def until_the_third(self: Prober, *arguments: Any) -> Any:
        if len(probed) == 3:
            raise KeyboardInterrupt
        probed.append(1)
        return run(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Prober, "run", until_the_third)
        with pytest.raises(KeyboardInterrupt):
            celm.audit(uploads.start, place, out=stopped, **how)
    assert not (stopped / "ledger.json").exists()
    done = []

    def counted(self: Prober, *arguments: Any) -> Any:
        done.append(1)
        return run(self, *arguments)

    monkeypatch.setattr(Prober, "run", counted)
    celm.audit(uploads.start, place, out=stopped, **how)
    assert len(done) == 3  # of six batches: a global model and three clients in each of three rounds
    assert kept_files(stopped) == kept_files(whole)


@pytest.mark.slow
def test_an_audit_that_was_killed_goes_on(
    uploads: Uploads, start_celm: Callable[..., Any], celm_process: Any
) -> None:
    """`kill -9` after the first probe is on the disk; the same command then finishes."""
    out = uploads.place / "audit"
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
    monkeypatch.setattr("celm.auditing.probing.AT_ONCE", 1)
    batches = []
    run = Prober.run

    def counted(self: Prober, states: Any, *rest: Any) -> Any:
        batches.append(len(states))
        return run(self, states, *rest)

    monkeypatch.setattr(Prober, "run", counted)
    one_by_one = in_memory()
    assert batches == [1, 1, 1, 1]
    monkeypatch.undo()
    assert one_by_one.scores == pytest.approx(in_memory().scores, rel=1e-4)


def test_a_folder_of_another_audit_is_not_touched(uploads: Uploads, refused: Callable[..., str]) -> None:
    uploads.found("--out", "audit")
    before = (uploads.place / "audit" / "audit.json").read_bytes()
    assert "holds another audit" in refused(*uploads.arguments("--out", "audit", "--seed", "1"))
    uploads.save("b", random_state(77))
    assert "finished audit of other files" in refused(*uploads.arguments("--out", "audit"))
    assert (uploads.place / "audit" / "audit.json").read_bytes() == before
    (uploads.place / "mine").mkdir()
    (uploads.place / "mine" / "thesis.txt").write_text("x")
    assert "is not empty" in refused(*uploads.arguments("--out", "mine"))
    assert [path.name for path in (uploads.place / "mine").iterdir()] == ["thesis.txt"]


def test_the_same_command_twice_gives_the_same_bytes(
    uploads: Uploads, kept_files: Callable[[Path], dict[str, bytes]]
) -> None:
    uploads.found("--out", "audit")
    before = kept_files(uploads.place / "audit")
    uploads.found("--out", "audit")
    assert kept_files(uploads.place / "audit") == before


def test_a_global_model_among_the_clients_does_not_replace_the_one_that_was_named(uploads: Uploads) -> None:
    """Whoever may write into the folder must not choose what all are measured against."""
    before = uploads.found()
    uploads.save("global", random_state(55))
    after = uploads.found()
    assert after["scores"] == before["scores"]
    assert after["ignored"] == ["global.safetensors"]


def save_pretrained(folder: Path, seed: int) -> Path:
    folder.mkdir(parents=True)
    save_file(random_state(seed), folder / "model.safetensors")
    return folder / "model.safetensors"


def test_a_global_model_in_a_folder_of_its_own_is_no_client(uploads: Uploads) -> None:
    before = uploads.found()
    start = save_pretrained(uploads.clients / "global", 0)
    found = uploads.found("--global", start)
    assert found["scores"] == before["scores"]
    assert found["ignored"] == []
    (uploads.clients / "global").rename(uploads.clients / "whatever")
    found = uploads.found("--global", uploads.clients / "whatever" / "model.safetensors")
    assert found["scores"] == before["scores"]


def test_a_global_folder_among_the_clients_does_not_replace_the_one_that_was_named(uploads: Uploads) -> None:
    before = uploads.found()
    save_pretrained(uploads.clients / "global", 55)
    after = uploads.found()
    assert after["scores"] == before["scores"]
    assert after["ignored"] == ["global"]


def test_the_global_models_of_rounds_may_be_in_folders(uploads: Uploads) -> None:
    place = save_rounds(uploads)
    files = celm.audit(uploads.start, place, **HOW)
    for folder in place.iterdir():
        file = folder / "global.safetensors"
        (folder / "global").mkdir()
        file.rename(folder / "global" / "model.safetensors")
    folders = celm.audit(uploads.start, place, **HOW)
    assert folders.document == files.document


def test_rounds_that_have_their_own_global_models_need_no_other(uploads: Uploads) -> None:
    place = save_rounds(uploads)
    how = ("--model", "mlp", "--input-shape", "1,2,3", "--classes", CLASSES, *QUICK)
    done = uploads.invoke("audit", "--clients", place, *how, "--out", "audit", "--format", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["scores"] == celm.audit(uploads.start, place, **HOW).scores
    told = json.loads((uploads.place / "audit" / "ledger.json").read_text())
    assert told["inputs"]["global"] is None
    again = uploads.invoke("audit-verify", "audit", "--full")
    assert again.exit_code == 0, again.output
    assert "the audit was repeated, and its numbers agree" in again.stdout


def test_a_round_of_which_nobody_knows_the_start_is_refused(
    uploads: Uploads, refused: Callable[..., str]
) -> None:
    place = save_rounds(uploads)
    (place / "round-002" / "global.safetensors").unlink()
    how = ("--model", "mlp", "--input-shape", "1,2,3", "--classes", CLASSES)
    told = refused("audit", "--clients", place, *how)
    assert "the model that the clients of round-002 started from is missing" in told
    assert "--global" in told


def test_a_global_model_that_is_not_there_is_refused_though_no_round_needs_it(
    uploads: Uploads, refused: Callable[..., str]
) -> None:
    place = save_rounds(uploads)
    told = refused(*uploads.arguments("--global", "nowhere.pt", "--clients", place))
    assert "nowhere.pt" in told


def test_the_global_model_may_be_a_folder(uploads: Uploads, refused: Callable[..., str]) -> None:
    before = uploads.found()
    save_pretrained(uploads.place / "start", 0)
    assert uploads.found("--global", uploads.place / "start")["scores"] == before["scores"]
    assert "a folder with 0 models" in refused(*uploads.arguments("--global", uploads.place))


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "net.model."])
def test_what_a_wrapper_put_before_all_names_is_taken_off(uploads: Uploads, prefix: str) -> None:
    before = uploads.found()
    uploads.save("b", {prefix + name: tensor for name, tensor in random_state(2).items()})
    assert uploads.found()["scores"] == before["scores"]


def test_a_prefix_before_some_names_only_is_none(uploads: Uploads) -> None:
    state = random_state(2)
    first = next(iter(state))
    uploads.save(
        "b", {(f"model.{name}" if name == first else name): tensor for name, tensor in state.items()}
    )
    assert "model." in uploads.found(code=3)["excluded"]["b"]


def test_few_starts_are_said_to_be_few(uploads: Uploads) -> None:
    few = "2 starts of the probe: too few to be sure who holds what"
    assert few in uploads.audit("--starts", 2, "--out", "few").stdout
    assert few in (uploads.place / "few" / "report.html").read_text()
    assert "too few" not in uploads.audit("--out", "enough").stdout
    assert "too few" not in (uploads.place / "enough" / "report.html").read_text()


def test_where_only_folders_are_found_they_are_named(uploads: Uploads, refused: Callable[..., str]) -> None:
    uploads.start.rename(uploads.place / "global.pt")
    how = ("--model", "mlp", "--input-shape", "1,2,3", "--classes", CLASSES)
    told = refused("audit", "--global", "global.pt", "--clients", uploads.place, *how)
    assert "did you mean" in told
    assert str(uploads.clients) in told


def test_a_round_with_two_global_models_is_refused(uploads: Uploads) -> None:
    place = save_rounds(uploads, 1)
    save_pretrained(place / "round-001" / "global", 1)
    with pytest.raises(
        CelmError, match=r"two global models: global/model\.safetensors and global\.safetensors"
    ):
        celm.audit(uploads.start, place, **HOW)
    (place / "round-001" / "global.safetensors").unlink()
    torch.save(random_state(1), place / "round-001" / "global" / "pytorch_model.bin")
    with pytest.raises(CelmError, match="global holds 2 models"):
        celm.audit(uploads.start, place, **HOW)


def test_a_link_as_the_global_model_of_a_round_is_refused(uploads: Uploads) -> None:
    place = save_rounds(uploads, 1)
    (place / "round-001" / "global.safetensors").unlink()
    (place / "round-001" / "global").mkdir()
    (place / "round-001" / "global" / "model.safetensors").symlink_to(uploads.clients / "a.safetensors")
    with pytest.raises(CelmError, match="is a symbolic link, which is not followed"):
        celm.audit(uploads.start, place, **HOW)


def test_files_that_are_no_checkpoints_are_named_and_left(uploads: Uploads) -> None:
    (uploads.clients / "README.md").write_text("x")
    (uploads.clients / "d.h5").write_bytes(b"x")
    (uploads.clients / "e.pkl").write_bytes(b"x")
    (uploads.clients / "empty").mkdir()
    found = uploads.found()
    assert found["ignored"] == ["d.h5", "e.pkl", "empty"]


def test_the_screen_says_it_all(uploads: Uploads) -> None:
    uploads.save("lazy", load_file(uploads.start))
    (uploads.clients / "b.safetensors").write_bytes(b"x")
    result = uploads.audit("--out", "audit")
    assert result.exit_code == 3
    for text in (
        "free-rider: lazy: returned the model",
        "excluded: b: is not a whole",
        "report: audit/report.html",
    ):
        assert text in result.stdout
    assert result.stderr == ""


def test_the_page_tells_what_the_result_says(uploads: Uploads) -> None:
    uploads.save("lazy", load_file(uploads.start))
    uploads.found("--out", "audit")
    page = (uploads.place / "audit" / "report.html").read_text()
    assert "Content-Security-Policy" in page
    assert "returned the model it was given, unchanged" in page
    told = json.loads((uploads.place / "audit" / "ledger.json").read_text())
    assert all(entry["sha256"] in page for entry in told["files"])
    assert "standard error of a score is that of the probe alone" in page


def test_a_result_is_a_table_a_document_a_page_and_figures(tmp_path: Path) -> None:
    found = in_memory()
    table = found.to_dataframe()
    assert list(table.index) == ["a", "b", "c"]
    assert table["score"].to_dict() == found.scores
    assert table.loc["b", "evidence of 1"] == found.evidence["b"][1]
    assert json.loads(found.to_json())["scores"] == found.scores
    assert found.to_json(tmp_path / "audit.json") is None
    assert (tmp_path / "audit.json").read_text() == found.to_json()
    assert found.to_html(tmp_path / "audit.html") is None
    assert (tmp_path / "audit.html").read_text() == found.to_html()
    assert repr(found).startswith("Audit(a 0.")
    assert len(repr(found)) < 400
    for plot in (found.plot_evidence, found.plot_shares, found.plot_scores):
        assert isinstance(plot(), Axes)


def test_without_pandas_a_data_frame_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(CelmError, match="pandas"):
        in_memory().to_dataframe()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--input-shape", "3,x"), "is not a shape"),
        (("--model", "cnnn"), "did you mean 'cnn'"),
        (("--classes", "0"), "is not a number of classes"),
        (("--classes", "ten"), "'ten' is no number"),
        (("--set", "nonsense"), "is not a setting"),
        (("--set", "probe.stepz=3"), "stepz"),
        (("--set", "strength=3"), "unknown setting 'strength'"),
        (("--starts", "0"), "starts"),
        (("--global", "missing.safetensors"), "missing.safetensors"),
        (("--clients", "missing"), "missing"),
    ],
)
def test_a_wrong_option_is_one_line(
    uploads: Uploads, refused: Callable[..., str], more: tuple[str, ...], reason: str
) -> None:
    assert reason in refused(*uploads.arguments(*more, "--out", "audit"))
    assert not (uploads.place / "audit").exists()


def test_help_says_the_exit_codes(invoke: Callable[..., Result]) -> None:
    text = " ".join(invoke("audit", "--help").output.split())
    assert "3 done, but some clients were left out" in text


def scaled_head(state: dict[str, torch.Tensor], factor: float) -> dict[str, torch.Tensor]:
    return {name: factor * tensor if name.startswith("head.") else tensor for name, tensor in state.items()}


def test_with_calibrated_evidence_a_scaled_head_gains_nothing(uploads: Uploads) -> None:
    clients = {name: random_state(i) for i, name in enumerate("abc", start=1)}
    loud = {**clients, "a": scaled_head(clients["a"], 50)}
    plain = [celm.audit(random_state(0), each, **HOW).scores["a"] for each in (clients, loud)]
    assert plain[1] > plain[0] + 0.2
    how = HOW | {"evidence": "calibrated"}
    honest, cheating = (celm.audit(random_state(0), each, **how) for each in (clients, loud))
    assert cheating.scores == pytest.approx(honest.scores, abs=1e-3)


def test_calibrated_evidence_is_that_of_the_methods_own_functions() -> None:
    module = build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES)
    start = model_noise(42, "start-0", CLASSES, SHAPE)
    states = [random_state(seed) for seed in (1, 2, 3)]
    starts = start.expand(3, *start.shape)
    found = probe(Stack(module, states), starts, CLASSES, steps=4, seed=42, calibrated=True)
    assert found.calibration is not None
    Q = calibrated_evidence(found.logits, found.calibration)
    ours = in_memory(starts=1, evidence="calibrated")
    torch.testing.assert_close(
        torch.tensor(list(ours.evidence.values()), dtype=torch.float64), Q, rtol=1e-4, atol=1e-4
    )
