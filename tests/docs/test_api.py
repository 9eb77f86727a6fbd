"""The Python page: every public name once, by task, with an example before the signatures. test_replay.py runs them."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import celm
import celm.report

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
TASKS = [
    "Run an experiment",
    "Compare and study",
    "Load results",
    "Estimate contributions on tensors",
    "Audit checkpoints",
    "Flower",
    "NVFlare",
    "Reports and figures",
    "Extend",
]


@pytest.fixture
def api_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    yield importlib.import_module("api_page")
    for name in ("api_page", "reference_pages", "method_pages", "formulas", "words"):
        sys.modules.pop(name, None)


def test_every_public_name_is_there_once(api_page):
    headings = re.findall(r"^### `(.+)`$", api_page.insert_entries(PAGE), re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert {f"celm.{name}" for name in celm.__all__} | set(celm.report.__all__) <= set(headings)
    assert "`from celm.report import evidence_figure`" in api_page.entry("celm.report.evidence_figure")


def test_every_task_has_an_example_before_its_signatures():
    groups = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)[1:]
    assert groups[::2] == TASKS
    for task, text in zip(groups[::2], groups[1::2], strict=True):
        assert 0 < text.find("```py") < text.find("<!-- reference: "), task
        assert f"](#{task.lower().replace(' ', '-')})" in PAGE


def test_entry_of_a_class_has_its_properties_and_methods_but_no_fields(api_page):
    text = api_page.entry("celm.Run")
    assert "| `accuracy` | `float` | Accuracy on the test data after the last round. |" in text
    assert "#### `Run.probe_inputs`" in text
    assert "ServerContext.probe_fn" not in api_page.entry("celm.rules.rule.ServerContext")
    assert '"""Weights of the present clients in the average, on the simplex."""' in api_page.entry(
        "celm.rules.rule.WeightingResult"
    )


def test_parameters_are_a_list(api_page):
    text = api_page.entry("celm.audit")
    assert "\n- `strict`: whether the first client that cannot be audited is an error." in text
    assert "Args:" not in text


def test_names_of_flower_are_read_without_importing_it(api_page):
    text = api_page.entry("celm.flower.ContributionStrategy", ["start", "prepare"])
    assert "    preset: str | None = 'trust'," in text
    assert "\n- `retries`, `retry_wait`: how often a round" in text
    assert "#### `ContributionStrategy.start`" in text
    assert "num_rounds: int = 3," in text
    assert "contributions: Mapping[int, Mapping[str, float]]" in api_page.entry(
        "celm.flower.ContributionResult"
    )


@pytest.mark.skipif(
    find_spec("flwr") is None, reason="Flower is not installed, with which the source is compared"
)
def test_signatures_of_flower_are_those_that_python_sees(api_page):
    import inspect

    from celm import flower

    names = set(re.findall(r"celm\.flower\.(\w+)", " ".join(re.findall(r"<!-- reference: (.+) -->", PAGE))))
    assert names == set(flower.__all__)
    text = api_page.entry("celm.flower.ContributionStrategy", ["start"])
    for function in (flower.ContributionStrategy.__init__, flower.ContributionStrategy.start):
        for parameter in list(inspect.signature(function).parameters.values())[1:]:
            if parameter.kind is not parameter.VAR_KEYWORD:
                default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
                assert f"    {parameter.name}: {parameter.annotation}{default},\n" in text
