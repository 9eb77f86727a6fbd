"""Tables with texts: token numbers as by hand, cut texts, and one-line errors."""

from __future__ import annotations

import json
import shutil
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from celm.base.errors import CelmError
from celm.data.sources.hub import HubDataset
from celm.data.sources.table import Table
from support.text_files import save_model, write_reviews


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


def write_table(folder: Path, *reviews: str) -> Path:
    path = folder / "train.csv"
    path.write_text("review,label\n" + "".join(f'"{text}",{"ab"[i % 2]}\n' for i, text in enumerate(reviews)))
    (folder / "test.csv").write_text("label,review\na,goal\n")
    return folder


def load_texts(path: Path, model: Path, **settings: int) -> Table:
    return Table(str(path), text_column="review", tokenizer=str(model), **settings)


def test_words_are_token_numbers_and_padding(tmp_path: Path, model: Path) -> None:
    data = load_texts(write_table(tmp_path, "goal team", "nonsense"), model).load()
    # By the vocabulary: 2 [CLS], 5 goal, 6 team, 1 an unknown word, 3 [SEP]; -1 is no token.
    assert data.train_inputs.tolist() == [[2, 5, 6, 3], [2, 1, 3, -1]]
    assert data.test_inputs.tolist() == [[2, 5, 3, -1]]
    assert not data.train_inputs.is_floating_point()


def test_long_texts_lose_their_end_and_one_warning_counts_them(tmp_path: Path, model: Path) -> None:
    folder = write_table(tmp_path, "goal goal goal goal", "team", "goal " * 30)
    with pytest.warns(UserWarning, match="2 of 4 texts have more than 4 tokens") as caught:
        data = load_texts(folder, model, max_tokens=4).load()
    assert len(caught) == 1
    assert data.train_inputs.tolist() == [[2, 5, 5, 3], [2, 6, 3, -1], [2, 5, 5, 3]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_texts(folder, model).load().shape == (32,)


def test_csv_parquet_and_the_hub_are_the_same_texts(empty_data_root: Path, model: Path) -> None:
    first = load_texts(write_reviews(empty_data_root / "a.csv", 10), model).load()
    second = load_texts(write_reviews(empty_data_root / "a.parquet", 10), model).load()
    write_reviews(empty_data_root / "hf" / "acme" / "reviews" / "data" / "train-0.parquet", 10)
    third = HubDataset("acme/reviews", text_column="review", tokenizer=str(model)).load()
    for other in (second, third):
        assert first.train_inputs.equal(other.train_inputs)
        assert first.client_ids == other.client_ids
    assert set(first.client_ids or ()) == {"north", "south", "west"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("text,label\ngoal,a\nteam,b\n", "no column 'review'.*it has: text, label"),
        ("review,label\n1,a\n2,b\n", "has no texts"),
        ('review,label\ngoal,a\n" ",b\n', "no text in 1 of"),
    ],
)
def test_a_bad_text_column_is_one_line(tmp_path: Path, model: Path, text: str, reason: str) -> None:
    (tmp_path / "train.csv").write_text(text)
    (tmp_path / "test.csv").write_text(text)
    with pytest.raises(CelmError, match=reason) as caught:
        load_texts(tmp_path, model).load()
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, model: Path) -> None:
    table = write_table(tmp_path, "goal", "team")
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(model / "config.json", bare)
    for folder, reason in (
        (bare, "has no tokenizer|cannot load"),
        (tmp_path / "absent", "there is no folder"),
    ):
        with pytest.raises(CelmError, match=reason):
            load_texts(table, folder).load()
    with pytest.raises(CelmError, match=r"needs a tokenizer.*--model hf:NAME"):
        Table(str(table), text_column="review").load()


def test_code_of_a_tokenizer_is_not_run(tmp_path: Path, model: Path) -> None:
    hostile, mark = shutil.copytree(model, tmp_path / "hostile"), tmp_path / "mark"
    (hostile / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass A: pass\n")
    (hostile / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "A", "auto_map": {"AutoTokenizer": ["own.A", "own.A"]}})
    )
    table = tmp_path / "table"
    table.mkdir()
    with suppress(CelmError):  # refused, or read by a tokenizer of transformers: both are safe
        load_texts(write_table(table, "goal", "team"), hostile).load()
    assert not mark.exists()
