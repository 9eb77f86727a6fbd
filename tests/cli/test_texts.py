"""A table of texts on the command line: results, warnings and errors of one line, the name of the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.text_files import save_model, write_reviews

SHORT = ["--rounds=1", "--set=run.workers=0", "--set=train.optimizer=adam", "--set=train.lr=0.005"]
TEXTS = ["--dataset=reviews.csv", "--split=natural", "--set=dataset.text_column=review"]


def test_a_run_on_texts_with_a_model_in_a_folder(tmp_path: Path, celm: Callable[..., Any]) -> None:
    save_model(tmp_path / "tiny")
    write_reviews(tmp_path / "reviews.csv", 10)
    done = celm(
        "run",
        *TEXTS,
        *SHORT,
        "--model=hf:tiny",
        "--preset=trust",
        "--set=dataset.max_tokens=6",
        "--format=json",
    )
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert list(result["weights"]) == ["north", "south", "west"]
    assert Path(result["run"]).name.startswith("reviews.csv-natural-celm-")
    assert "-tiny-" in result["run"]
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert "model hf: calibrated evidence" in warnings[0]
    assert "texts have more than 6 tokens" in warnings[1]


def test_wrong_settings_of_texts_are_one_line(tmp_path: Path, celm: Callable[..., Any]) -> None:
    save_model(tmp_path / "tiny")
    write_reviews(tmp_path / "reviews.csv", 20)
    for arguments, reason in (
        ((*TEXTS, "--set=dataset.text_column=text"), "has no column 'text'"),
        (TEXTS, "needs a tokenizer"),
        (("--dataset=reviews.csv", "--model=hf:tiny"), "dataset.text_column=review"),
        ((*TEXTS, "--model=hf:./absent"), "there is no folder"),
    ):
        done = celm("run", *arguments, *SHORT)
        assert done.returncode == 2
        assert reason in done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
