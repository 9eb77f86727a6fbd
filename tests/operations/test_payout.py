"""Payouts: amounts add up to the budget, each scheme is the formula in its docstring, wrong budgets are one line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from typer.testing import Result

from celm.operations.folder_record import read_folder_record
from celm.operations.payout import divide_budget, largest_remainder
from support.state_folders import copy_older_folder, lines_of, sha256

Invoke = Callable[..., Result]
Refused = Callable[..., str]


@given(
    st.integers(1, 10**12),
    st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=30).filter(any),
)
def test_units_add_up_and_are_within_one_of_the_exact_share(total: int, values: list[float]) -> None:
    weights = [Fraction(value) for value in values]
    shares = [weight / sum(weights) for weight in weights]
    units = largest_remainder(total, shares)
    assert sum(units) == total
    assert all(abs(unit - total * share) < 1 for unit, share in zip(units, shares, strict=True))
    assert all(unit == 0 for unit, value in zip(units, values, strict=True) if value == 0)


def test_the_largest_remainders_get_the_units_that_are_left() -> None:
    """Hamilton's method on a textbook case: quotas 4.7, 1.6, 1.57, 1.13, 1.0 of 10 seats."""
    shares = [Fraction(n, 100) for n in (47, 16, 16, 11, 10)]
    assert largest_remainder(10, shares) == [5, 2, 1, 1, 1]


def test_each_scheme_is_its_formula(consortium_folder: Path) -> None:
    record = read_folder_record(consortium_folder)
    earned = lines_of(consortium_folder / "rounds.jsonl")[-1]["earned"]
    total = sum(earned.values())
    proportional = {client: 1000 * value / total for client, value in earned.items()}
    floor = {
        client: 100 * (value > 0) + 0.7 * proportional[client] for client, value in earned.items()
    }  # three members earned: 0.3 of 1000 is 100 for each
    trained = {"north": 8, "south": 8, "east": 5, "west": 0}  # east was idle in rounds 6 to 8
    participation = {client: 1000 * rounds / 21 for client, rounds in trained.items()}
    for scheme, expected in (
        ("proportional", proportional),
        ("floor", floor),
        ("participation", participation),
    ):
        payout = divide_budget(record, "1000", scheme, floor=0.3)
        amounts = {payment.client: payment.amount for payment in payout.payments}
        assert sum(amounts.values()) == Decimal("1000.00")
        assert {client: float(amount) for client, amount in amounts.items()} == pytest.approx(
            expected, abs=0.01
        )
        assert amounts["west"] == 0
        assert {payment.client: payment.rounds_trained for payment in payout.payments} == trained


def test_the_output_names_the_record(consortium_folder: Path, invoke: Invoke) -> None:
    digest = sha256((consortium_folder / "rounds.jsonl").read_text().splitlines()[-1])
    done = invoke("payout", consortium_folder, "--budget=10000.5", "--format=json", "--out=payout.csv")
    assert done.exit_code == 0
    document = json.loads(done.stdout, parse_float=Decimal)
    assert document["record"] == digest
    assert sum(document["amounts"].values()) == Decimal("10000.5")
    with (consortium_folder.parent / "payout.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(Decimal(row["amount"]) for row in rows) == Decimal("10000.50")
    assert {row["record"] for row in rows} == {digest}
    assert {row["client"]: Decimal(row["amount"]) for row in rows} == document["amounts"]
    printed = invoke("payout", consortium_folder, "--budget=10000.5").stdout
    assert digest in printed
    assert "10,000.50" in printed
    invoke("payout", consortium_folder, "--budget=3", "--decimals=0", "--out=payout.parquet")
    table = parquet.read_table(consortium_folder.parent / "payout.parquet")
    assert sum(table["amount"].to_pylist()) == 3


def test_wrong_budgets_and_schemes_are_one_line(consortium_folder: Path, refused: Refused) -> None:
    for budget in ("-5", "ten", "", "nan", "inf", "1e5", "10,000", "٣", "0x10", "1_000", "9" * 60):
        assert "is not a positive amount" in refused("payout", consortium_folder, f"--budget={budget}")
    for budget in ("0", "0.00", "9" * 30):
        assert "must be above 0" in refused("payout", consortium_folder, f"--budget={budget}")
    assert "more than 2 decimals" in refused("payout", consortium_folder, "--budget=1.005")
    pay = ("payout", consortium_folder, "--budget=100")
    assert "did you mean 'floor'" in refused(*pay, "--scheme=flor")
    assert "--floor must be" in refused(*pay, "--scheme=floor", "--floor=1.5")
    assert "--floor must be" in refused(*pay, "--scheme=floor", "--floor=nan")
    assert "--decimals must be" in refused(*pay, "--decimals=-1")
    assert "unknown format" in refused(*pay, "--out=payout.xlsx")
    path = consortium_folder / "rounds.jsonl"
    path.write_text(path.read_text().replace('"earned": {', '"earned": {"friend": 0.5, ', 1))
    assert "was changed" in refused(*pay)


def test_a_record_of_an_older_celm_is_paid(tmp_path: Path) -> None:
    record = read_folder_record(copy_older_folder(tmp_path))
    assert sum(payment.amount for payment in divide_budget(record, "100").payments) == 100
