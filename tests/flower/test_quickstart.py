"""The example: what its README says of it is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-quickstart"


def changes() -> list[str]:
    block = re.search(r"```diff\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    assert block is not None
    return [line for line in block[1].splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def test_adding_celm_is_a_diff_of_three_lines_that_leads_to_the_server_as_it_is() -> None:
    server = (EXAMPLE / "quickstart" / "server_app.py").read_text()
    added = [line[1:] for line in changes() if line.startswith("+")]
    assert len(added) == 3
    assert all(line in server.splitlines() for line in added)


def test_without_the_three_lines_it_is_a_server_of_flowers_own() -> None:
    lines = (EXAMPLE / "quickstart" / "server_app.py").read_text().splitlines()
    pairs = iter([line for line in changes() if line.startswith("-")])
    for line in [line[1:] for line in changes() if line.startswith("+")]:
        lines[lines.index(line)] = next(pairs, "-")[1:]
    before = "\n".join(lines)
    assert "elm" not in before.replace("CELM's", "")
    compile(before, "server_app.py", "exec")
    from flwr.serverapp.strategy import FedAvg

    FedAvg(fraction_evaluate=0.0, min_train_nodes=5, min_available_nodes=5)


def test_its_client_knows_nothing_of_celm() -> None:
    for name in ("client_app", "task"):
        text = (EXAMPLE / "quickstart" / f"{name}.py").read_text()
        assert "import celm" not in text
        assert "from celm" not in text
