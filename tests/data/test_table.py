"""The user's own tables: features by hand, natural clients, and one-line errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import celm
from celm.base.errors import CelmError
from celm.data.sources.table import Table
from celm.experiment.dataset_names import parse_dataset

HEADER = "age,smoker,label,client\n"


def write_csv(path: Path, rows: int = 40) -> Path:
    """Write a table in which the label follows from the age, by two clients."""
    lines = [f"{20 + row},{'yes' if row % 2 else 'no'},{'ill' if row >= rows // 2 else 'well'},"
             f"{'north' if row % 4 < 2 else 'south'}\n" for row in range(rows)]  # fmt: skip
    path.write_text(HEADER + "".join(lines))
    return path


def test_columns_are_features_as_by_hand(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(HEADER + "10,yes,b,x\n20,no,a,y\n,yes,a,x\n")
    (tmp_path / "test.csv").write_text("label,smoker,age\nb,maybe,25\n")
    data = Table(str(tmp_path)).load()
    # Ages 10 and 20: mean 15, standard deviation 5; a missing age is 0. Then the columns "no" and "yes".
    assert data.train_inputs.tolist() == [[-1, 0, 1], [1, 1, 0], [0, 0, 1]]
    assert data.test_inputs.tolist() == [[2, 0, 0]]
    assert data.classes == ("a", "b")
    assert data.train_labels.tolist() == [1, 0, 0]
    assert data.test_labels.tolist() == [1]
    assert data.client_ids == ("x", "y", "x")


def test_a_fifth_of_every_class_of_every_client_is_held_out(tmp_path: Path) -> None:
    data = Table(str(write_csv(tmp_path / "patients.csv"))).load()
    assert (len(data.train_labels), len(data.test_labels)) == (32, 8)
    assert data.test_labels.bincount().tolist() == [4, 4]
    assert data.client_ids is not None
    assert sorted(data.client_ids) == ["north"] * 16 + ["south"] * 16


def test_csv_and_parquet_are_the_same_table(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "patients.csv")
    pa.parquet.write_table(pa.csv.read_csv(path), tmp_path / "patients.parquet")
    first, second = Table(str(path)).load(), Table(str(tmp_path / "patients.parquet")).load()
    np.testing.assert_array_equal(first.train_inputs, second.train_inputs)
    assert first.client_ids == second.client_ids


def test_numbers_name_clients_and_classes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,site\n" + "".join(f"{i},{i % 2},{i % 3}\n" for i in range(60)))
    data = Table(str(tmp_path / "a.csv"), label_column="y", owner_column="site").load()
    assert data.classes == ("0", "1")
    assert set(data.client_ids or ()) == {"client-0", "client-1", "client-2"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("age,client\n1,x\n2,y\n", "no column 'label'"),
        ("age,label\n1,a\n2,a\n", "fewer than two classes"),
        ("age,label\n1,0.5\n2,1.5\n", "an integer or a text"),
        ("label,client\na,x\nb,y\na,x\nb,y\n", "no columns besides"),
        ("age,label\ninf,a\n2,b\n3,a\n4,b\n", "infinite value"),
        ("age,label,client\n1,a,\n2,b,\n3,a,\n4,b,\n", "name or a number|unusable client name"),
        ("t,label\n" + "".join(f"text{i},{'ab'[i % 2]}\n" for i in range(300)), "different texts"),
        ("t,label\n2020-01-01,a\n2020-01-02,b\n2020-01-03,a\n2020-01-04,b\n", "must contain numbers or text"),
        ("", "cannot read"),
        ("a,b\n1\n", "cannot read"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(CelmError, match=reason) as caught:
        Table(str(tmp_path / "bad.csv")).load()
    assert "\n" not in str(caught.value)


def test_a_class_of_the_test_file_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("x,label\n1,a\n2,b\n")
    (tmp_path / "test.csv").write_text("x,label\n1,c\n")
    with pytest.raises(CelmError, match="class 'c' that is not in the training data"):
        Table(str(tmp_path)).load()
    (tmp_path / "test.csv").write_text("z,label\n1,a\n")
    with pytest.raises(CelmError, match="the test data has no column 'x'"):
        Table(str(tmp_path)).load()


def test_a_file_is_a_dataset_of_a_natural_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_csv(tmp_path / "patients.csv")
    assert parse_dataset("patients.csv") == {"name": "table", "path": str(path)}
    experiment = celm.Experiment(dataset="patients.csv", split="natural", rule="fedavg", rounds=15)
    run = celm.run(experiment, tmp_path / "run")
    assert list(run.weights) == ["north", "south"]
    assert run.accuracy > 0.7
    with pytest.raises(CelmError, match=r"no folder absent\.csv"):
        parse_dataset("absent.csv")
