"""The documentation: everything that has a name has its page, and the built pages load nothing from the network."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import celm.metrics
import celm.report

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hook(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in ("words", "formulas", "method_pages", "metric_pages", "reference_pages", "navigation"):
        sys.modules.pop(name, None)


def test_every_registered_name_has_a_page_with_its_formula_and_settings(hook):
    from celm.experiment.template import OPTIONAL_TABLES, REQUIRED_TABLES
    from celm.rules import rules

    pages = hook("method_pages")
    known = [registry for registry, *_ in (*REQUIRED_TABLES.values(), *OPTIONAL_TABLES.values())]
    sections = {registry: section for section, (registry, *_) in pages.KINDS.items()}
    texts = dict(pages.pages())
    for registry in known:
        for name in registry.names():
            text = texts[f"{sections[registry]}/{name}.md"]
            assert registry.summary(name) in text
            for setting in registry.settings(name):
                assert f"| `{setting['name']}` | " in text
                assert setting["about"].replace("|", "\\|") in text
    assert rules in known
    assert "c(t) = β c(t-1) + (1 - β) c̄" in texts["rules/celm.md"]
    assert "| `beta` | number ≥ 0, < 1 | `0.5` | Smoothing factor of the weights. |" in texts["rules/celm.md"]


OF_NOBODY = {"plain", "standalone"}
"""Methods without a source to cite: cross-entropy, and no federation at all."""


def test_every_rule_and_objective_cites_on_its_page_what_the_overview_names(hook):
    pages = hook("method_pages")
    texts = dict(pages.pages())
    overview = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    cells = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*?) ?\|$", overview, re.MULTILINE))
    for section in ("rules", "objectives"):
        for name in set(pages.KINDS[section][0].names()) - OF_NOBODY:
            text = " ".join(texts[f"{section}/{name}.md"].split())
            works = re.findall(r"([\w-]+)(?: et al\.| and \w+)?, ([^;]+)", cells[name])
            assert works, name
            for author, venue in works:
                assert re.search(rf"\b{author}\b", text), (name, author)
                assert venue in text, (name, venue)
    assert (
        "Class-wise Contribution Estimation via Logit Maximization for Federated Learning, ECCV"
        in " ".join(texts["rules/celm.md"].split())
    )


def test_every_metric_is_defined_on_a_page(hook):
    from celm.study.run_metrics import METRICS

    texts = dict(hook("metric_pages").pages())
    modules = {path.stem for path in Path(celm.metrics.__path__[0]).glob("*.py")} - {"__init__"}
    assert set(texts) == {f"metrics/{name}.md" for name in modules | {"index"}}
    for name in modules:
        assert f"[`{name}`]({name}.md)" in texts["metrics/index.md"]
    for page, formulas in {
        "accuracy": ["balanced accuracy    = mean of recall(y)", "rare-class accuracy  = mean of recall(y)"],
        "fairness": [
            "Gini               = Σ_ij |c_i - c_j| / (2 N Σ_i c_i)",
            "Spearman ",
            "mean gain, spread ",
        ],
        "fidelity": [
            "EMD                = mean over clients i of W1(p_i·, q_i·) / (K - 1)",
            "Jensen-Shannon     = sqrt(divergence)",
            "Hellinger          = sqrt(1 - Σ sqrt(p q))",
            "total variation    = Σ |p - q| / 2",
        ],
        "free_riders": [
            "AUROC           = P(c_free-rider < c_honest)",
            "FPR(θ), TPR(θ)  = flagged fraction of",
        ],
    }.items():
        text = texts[f"metrics/{page}.md"]
        for formula in formulas:  # indented, so that Markdown leaves it as it is
            assert re.search(rf"^    .*{re.escape(formula)}", text, re.MULTILINE), formula
    assert "the EMD here is ours" in texts["metrics/fidelity.md"].replace("\n", " ")
    assert "No z-score is below -sqrt(N - 1)" in texts["metrics/free_riders.md"]
    assert ">>> z_scores(" in texts["metrics/free_riders.md"]
    studies = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    for name in METRICS:
        assert f"`{name}`" in studies, name


def test_formulas_and_examples_of_docstrings_are_blocks(hook):
    words = hook("words")
    assert doctest.testmod(words).failed == 0
    assert words.markdown("f(x) = x_1") == "    f(x) = x_1"
    assert words.markdown("With x in turn\n\n    f(x)\n\nSo.") == "With x in turn\n\n    f(x)\n\nSo."
    assert words.markdown(">>> 1 + 1\n2") == "```pycon\n>>> 1 + 1\n2\n```"


def test_every_command_is_in_the_reference(hook):
    pages = hook("reference_pages")
    command_line = pages.command_line()
    for command in ("run", "compare", "study", "report", "split", "init", "list", "export", "data get"):
        assert f"# `celm {command}`\n" in command_line
    assert "[bold]" not in command_line
    assert "```sh\ncelm init my.toml && celm run my.toml\n```" in command_line
    assert "```text\n0    all clients audited\n" in command_line


def test_every_page_is_in_the_navigation_once(hook):
    from mkdocs.config import load_config
    from mkdocs.structure.files import get_files

    config = load_config(str(ROOT / "mkdocs.yml"))
    files = config.plugins.on_files(get_files(config), config=config)
    paths = list(hook("navigation").paths(config.nav))
    assert len(set(paths)) == len(paths)
    # Those that are kept out of the site are among the files until it is built.
    assert {path for path in paths if path.endswith(".md")} == {
        file.src_uri for file in files.documentation_pages()
    }


def test_every_figure_is_in_the_gallery():
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    figures = [name for name in celm.report.__all__ if name != "save_figure"]
    assert len(figures) > 5
    for name in figures:
        assert f"\n{name}(" in gallery, name


class Loads(HTMLParser):
    """What a browser fetches to show a page; links that a reader may follow are none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(found.get("href") or "")
        if tag != "a":
            self.addresses += [found.get(key) or "" for key in ("src", "srcset", "data", "poster")]


@pytest.mark.slow
def test_site_builds_strictly_and_its_pages_load_nothing_from_the_network(tmp_path):
    done = subprocess.run(
        # Not --quiet, which keeps warnings from counting.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for page in tmp_path.rglob("*.html"):
        loads = Loads()
        text = page.read_text(encoding="utf-8")
        loads.feed(text)
        assert not [a for a in loads.addresses if re.match(r"(\w+:)?//", a)], page.name
        has_formulas = 'class="tex"' in text
        assert has_formulas == ("katex" in text), page.name
        local = [a for a in loads.addresses if has_formulas and re.search("katex|formulas", a)]
        assert len(local) == (3 if has_formulas else 0)
        assert all((page.parent / address).is_file() for address in local)
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(\w+:)?//", sheet.read_text(encoding="utf-8"))
    gallery = (tmp_path / "gallery.html").read_text(encoding="utf-8")
    assert gallery.count('<div class="figure"><svg') == gallery.count("<h2") == 11
