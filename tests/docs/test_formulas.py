"""Every rule, objective and metric has rendered formulas on its page, from files that the site brings along."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KATEX = ROOT / "docs" / "assets" / "katex"
RENDER = """
const katex = require(process.argv[1])
const formulas = JSON.parse(require("fs").readFileSync(0, "utf8"))
console.log(JSON.stringify(formulas.map(([tex, displayMode]) => {
  try { return { html: katex.renderToString(tex, { displayMode, strict: "error", throwOnError: true }) } }
  catch (error) { return { error: error.message } }
})))
"""
FONTS = {
    r"\bmathbf\b": "Main-Bold",
    r"\bmathnormal\b": "Math-Italic",
    r"\bmathcal\b": "Caligraphic-Regular",
    r"\bsmall-op\b|delimsizing size1\b|delim-size1\b": "Size1-Regular",
    r"\blarge-op\b|delimsizing size2\b": "Size2-Regular",
    r"delimsizing size3\b": "Size3-Regular",
    r"delimsizing size4\b|delim-size4\b": "Size4-Regular",
}
"""Classes of KaTeX, and the font that they need."""
OTHER_FONTS = {"amsrm", "mathbb", "mathfrak", "mathit", "mathscr", "mathsf", "mathtt", "boldsymbol", "textbf"}
"""Classes of KaTeX whose fonts the site does not bring along."""


@pytest.fixture
def hooks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "docs")):
            del sys.modules[name]


def test_every_rule_objective_and_metric_has_formulas_above_the_plain_text(hooks):
    from celm.objectives import objectives
    from celm.rules import rules

    formulas, methods, metrics = hooks("formulas"), hooks("method_pages"), hooks("metric_pages")
    texts = {**dict(methods.pages()), **dict(metrics.pages())}
    names = {"rules": rules.names(), "objectives": objectives.names(), "metrics": metrics.METRIC_MODULES}
    for section, members in names.items():
        for name in members:
            lines = list(formulas.formula_lines(section, name))
            assert lines, (section, name)
            assert all(tex and note.endswith(".") for tex, note in lines)
            text = texts[f"{section}/{name}.md"]
            assert text.count('<div class="tex">') == len(lines)
            plain = re.search(r"^    \S", text, re.MULTILINE)
            assert plain is not None, (section, name)
            assert text.index('<div class="formulas"') < plain.start()


def test_formulas_belong_to_something(hooks):
    formulas, methods, metrics = hooks("formulas").FORMULAS, hooks("method_pages"), hooks("metric_pages")
    names = {section: registry.names() for section, (registry, *_) in methods.KINDS.items()}
    names["metrics"] = metrics.METRIC_MODULES
    for section in set(formulas) - {"shared"}:
        assert set(formulas[section]) <= set(names[section])
    used = {
        entry["use"]
        for section in formulas.values()
        for lines in section.values()
        for entry in lines
        if "use" in entry
    }
    assert used == set(formulas["shared"])


def test_every_metric_of_a_study_is_in_a_formula_unless_it_is_a_count_or_a_cost(hooks):
    from celm.study.run_metrics import COST_METRICS, METRICS

    formulas = hooks("formulas")
    notes = " ".join(
        note for name in formulas.FORMULAS["metrics"] for _, note in formulas.formula_lines("metrics", name)
    )
    assert {name for name in METRICS if f"`{name}`" not in notes} == COST_METRICS | {"probed_rounds"}


def test_formulas_of_celm_are_the_numbered_equations_of_the_paper(hooks):
    lines = list(hooks("formulas").formula_lines("rules", "celm"))
    numbers = [int(re.match(r"Eq\. (\d+)\. ", note)[1]) for _, note in lines]
    assert numbers == [6, 7, 8, 9, 10, 11, 12, 13, 14, 2]
    by_number = {
        number: re.sub(r"\s|\\[!;]", "", tex) for number, (tex, _) in zip(numbers, lines, strict=True)
    }
    assert by_number[9] == r"q_{i,c}^{(t)}=\max\left(0,\tilde{q}_{i,c}^{(t)}-b^{(t-1)}\right)"
    assert by_number[10] == r"r_{i,c}^{(t)}=\frac{q_{i,c}^{(t)}}{\sum_{j=1}^{N}q_{j,c}^{(t)}+\epsilon}"
    assert by_number[13] == r"c_i^{(t)}=\betac_i^{(t-1)}+(1-\beta)\bar{c}_i^{(t)}"


def test_plain_formulas_are_folded_and_the_text_after_them_is_not(hooks):
    fold = hooks("formulas").fold_plain_formula
    folded = fold("    a = 1\n\n    b = 2\n\nText.\n\n    c = 3")
    inside, outside = folded.split("</details>")
    assert "    a = 1\n\n    b = 2" in inside
    assert outside.strip() == "Text.\n\n    c = 3"
    assert fold("Text.") == "Text."


def test_katex_is_complete_and_stays_at_home():
    sheet = (KATEX / "katex.min.css").read_text(encoding="utf-8")
    files = re.findall(r"url\(([^)]+)\)", sheet)
    assert {KATEX / file for file in files} == set((KATEX / "fonts").iterdir())
    assert "MIT License" in (KATEX / "LICENSE").read_text(encoding="utf-8")


def test_every_formula_renders_with_the_fonts_that_are_there(hooks):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, which renders the formulas")
    formulas = hooks("formulas")
    lines = [
        line
        for section, names in formulas.FORMULAS.items()
        for name in names
        for line in formulas.formula_lines(section, name)
    ]
    given = [(tex, True) for tex, _ in lines]
    given += [(tex, False) for _, note in lines for tex in re.findall(r"\$([^$]+)\$", note)]
    assert len(given) > 200
    done = subprocess.run(
        [node, "-e", RENDER, str(KATEX / "katex.min.js")],
        input=json.dumps(given),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    classes: set[str] = set()
    for (tex, _), rendered in zip(given, json.loads(done.stdout), strict=True):
        assert "html" in rendered, (tex, rendered)
        classes |= set(re.findall(r'class="([^"]*)"', rendered["html"]))
    assert not {name for group in classes for name in group.split()} & OTHER_FONTS
    needed = {
        f"KaTeX_{font}.woff2" for pattern, font in FONTS.items() if re.search(pattern, " | ".join(classes))
    }
    assert needed | {"KaTeX_Main-Regular.woff2"} <= {path.name for path in (KATEX / "fonts").iterdir()}
