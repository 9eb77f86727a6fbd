"""`celm.load`: every result folder as an object, finished or not, and damaged ones as one line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import matplotlib.axes
import pytest
import torch
from torch import nn

import celm
from support.state_folders import play


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> celm.Run:
    return celm.run(
        celm.Experiment(rounds=3, clients=3, rule={"name": "celm", "warmup": 2}, probe={"steps": 2}),
        tmp_path_factory.mktemp("load") / "run",
    )


@pytest.fixture
def copied(run: celm.Run, tmp_path: Path) -> Path:
    shutil.copytree(run.folder, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> celm.Audit:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    clients = {
        name: {key: value + 0.1 * i for key, value in model.state_dict().items()}
        for i, name in enumerate(("a", "<b>"), 1)
    }
    folder = tmp_path_factory.mktemp("load") / "audit"
    return celm.audit(
        model, clients, input_shape=(1, 4), classes=3, out=folder, probe={"steps": 2}, num_starts=2
    )


def test_a_finished_run_is_what_celm_run_returned(run: celm.Run) -> None:
    assert celm.load(run.folder) == run
    assert celm.load(str(run.folder)).finished


def test_data_frame_has_the_numbers_of_the_file_one_row_per_round_and_client(run: celm.Run) -> None:
    frame = run.to_dataframe()
    lines = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    assert len(frame) == 3 * 3
    for line in lines:
        rows = frame[frame["round"] == line["round"]].set_index("client")
        assert rows["weight"].to_dict() == line["client_weights"]
        assert rows["round_weight"].to_dict() == line["weights"]
        assert set(rows["accuracy"]) == {line["accuracy"]}
        if line["evidence"]:
            assert rows["evidence of 7"].to_dict() == {name: q[7] for name, q in line["evidence"].items()}
        else:
            assert rows["evidence of 7"].isna().all()


@pytest.mark.parametrize(
    "name", ["accuracy", "weights", "scores", "evidence", "shares", "fidelity", "per_class"]
)
def test_figures_of_a_run_are_axes(run: celm.Run, name: str) -> None:
    assert isinstance(getattr(run, f"plot_{name}")(), matplotlib.axes.Axes)


def test_an_unfinished_run_is_loaded_as_far_as_it_got(run: celm.Run, copied: Path) -> None:
    for name in ("result.json", "model.safetensors"):
        (copied / name).unlink()
    lines = (copied / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (copied / "rounds.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:100])  # killed while it wrote
    before = {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()}
    part = celm.load(copied)
    assert not part.finished
    assert part.metrics.keys() == run.metrics.keys()
    assert part.rounds == run.rounds[:2]
    assert part.weights == run.rounds[1]["client_weights"]
    assert part.accuracy == run.rounds[1]["accuracy"]
    assert "2 of 3 rounds" in repr(part)
    assert len(part.to_dataframe()) == 6
    part.plot_evidence()
    with pytest.raises(celm.CelmError, match="not finished"):
        part.plot_fidelity()
    assert {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()} == before


def test_a_run_that_has_not_begun_is_loaded(copied: Path) -> None:
    for name in ("result.json", "rounds.jsonl"):
        (copied / name).unlink()
    empty = celm.load(copied)
    assert "0 of 3 rounds" in repr(empty)
    assert empty.weights == {}
    assert len(empty.to_dataframe()) == 0
    with pytest.raises(celm.CelmError, match="cannot draw"):
        empty.plot_weights()


@pytest.mark.parametrize("name", ["settings.toml", "rounds.jsonl", "result.json"])
def test_a_damaged_run_is_one_line_that_names_the_file(copied: Path, name: str) -> None:
    (copied / name).write_bytes(b'{"round": \xff]\n')
    with pytest.raises(celm.CelmError, match=name) as refused:
        celm.load(copied)
    assert "\n" not in str(refused.value)


def test_a_run_without_its_settings_is_one_line_that_names_them(copied: Path) -> None:
    (copied / "settings.toml").unlink()
    with pytest.raises(celm.CelmError, match=r"settings\.toml is missing"):
        celm.load(copied)


def test_what_is_no_path_is_one_line() -> None:
    with pytest.raises(celm.CelmError, match="cannot load 3: it is not a path"):
        celm.load(3)  # type: ignore[arg-type]


def test_an_audit_is_loaded_and_its_result_must_be_the_ledgers(audit: celm.Audit, tmp_path: Path) -> None:
    assert audit.folder is not None
    loaded = celm.load(audit.folder)
    assert loaded.scores == audit.scores
    assert loaded.ledger_digest == audit.ledger_digest
    assert "&lt;b&gt;" in loaded._repr_html_()
    assert "<b>" not in loaded._repr_html_()
    shutil.copytree(audit.folder, tmp_path / "copy")
    text = (tmp_path / "copy" / "audit.json").read_text()
    (tmp_path / "copy" / "audit.json").write_text(text.replace('"scores"', '"scored"'))
    with pytest.raises(celm.CelmError, match=r"audit\.json is damaged"):
        celm.load(tmp_path / "copy")
    (tmp_path / "copy" / "ledger.json").unlink()
    with pytest.raises(celm.CelmError, match="not finished"):
        celm.load(tmp_path / "copy")


def test_a_live_federation_is_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = play(tmp_path / "state", 2)
    loaded = celm.load(tmp_path / "state")
    assert isinstance(loaded, celm.Federation)
    assert loaded.weights == result.records[-1]["client_weights"]
    frame = loaded.to_dataframe()
    assert sorted(set(frame["client"])) == sorted(loaded.weights)
    assert len(frame) == 2 * len(loaded.weights)
    assert isinstance(loaded.plot_weights(), matplotlib.axes.Axes)
    assert loaded.report(tmp_path / "page.html").is_file()
    assert "2 rounds" in loaded._repr_html_()
    path = tmp_path / "state" / "rounds.jsonl"
    path.write_text(
        path.read_text().replace('"absent": []', '"absent": ["a"]').replace('"absent":[]', '"absent":["a"]')
    )
    with pytest.raises(celm.CelmError, match=r"state.rounds\.jsonl was changed"):
        celm.load(tmp_path / "state")


@pytest.mark.parametrize("name", ["nothing", "file", "empty"])
def test_what_is_no_result_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(celm.CelmError, match=f"cannot load .*{name}"):
        celm.load(tmp_path / name)


def test_without_pandas_the_error_says_what_to_install(
    run: celm.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(celm.CelmError, match=r"pip install 'celm\[frames\]'"):
        run.to_dataframe()
