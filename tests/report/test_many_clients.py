"""Pages of many clients: a summary first, everything else folded, and a bounded size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celm.report.audit_page import audit_page
from celm.report.build import build_report
from celm.report.group_figures import distribution_figure, group_figure
from celm.report.many_clients import MAX_LISTED, outer_clients
from support.many_clients import (
    client_names,
    idle_clients,
    large_audit,
    write_large_federation,
    write_large_run,
)
from support.pages import Page, safe

NUM_CLIENTS = 60


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("many")
    return {
        "federation": build_report(write_large_federation(folder / "state", NUM_CLIENTS, rounds=6)),
        "run": build_report(write_large_run(folder / "run", NUM_CLIENTS, rounds=6)),
        "audit": audit_page(large_audit(NUM_CLIENTS)),
    }


def unfolded(page: str) -> str:
    """Return the page without what is folded for its length."""
    return re.sub(r'<details class="rest">.*?</details>', "", page, flags=re.DOTALL)


@pytest.mark.parametrize("kind", ["federation", "run", "audit"])
def test_a_summary_comes_first_and_the_rest_is_folded(pages: dict[str, str], kind: str) -> None:
    page = pages[kind]
    safe(Page(page))
    first = Page(unfolded(page)).text
    assert "the median is" in first
    assert "The 10 heaviest" in first
    assert "The 10 lightest, lightest first" in first
    listed = re.findall(r"<li><strong><bdi[^>]*>(site-\d+)</bdi></strong>: [\d.]+\s%", unfolded(page))
    assert len(listed) == 20
    assert all(client in first for client in idle_clients(NUM_CLIENTS))
    everything = Page(page).text
    assert all(everything.count(client) >= 3 for client in client_names(NUM_CLIENTS))
    shown = set(re.findall(r"site-\d+", first))
    assert len(shown) < NUM_CLIENTS / 2


@pytest.mark.parametrize("kind", ["federation", "run", "audit"])
def test_figures_do_not_grow_with_the_clients(pages: dict[str, str], kind: str) -> None:
    figures = re.findall(r"<svg viewBox.*?</svg>", pages[kind], re.DOTALL)
    assert any("Histogram of the" in figure for figure in figures)
    heights = [
        int(height) for height in re.findall(r'<svg viewBox="[^"]*" width="\d+" height="(\d+)"', pages[kind])
    ]
    assert len(heights) == len(figures)
    assert max(heights) < 1000
    assert sum(map(len, figures)) < 500_000


def test_the_page_grows_by_less_than_two_kilobytes_for_each_client(
    tmp_path: Path, pages: dict[str, str]
) -> None:
    smaller = build_report(write_large_federation(tmp_path / "state", NUM_CLIENTS - 20, rounds=6))
    assert len(pages["federation"]) - len(smaller) < 20 * 2000


def test_few_clients_are_all_listed(tmp_path: Path) -> None:
    page = build_report(write_large_federation(tmp_path / "state", MAX_LISTED, rounds=6))
    assert 'class="rest"' not in page
    assert "heaviest" not in Page(page).text
    assert outer_clients(dict.fromkeys(client_names(MAX_LISTED), 0.1)) is None


def test_the_distribution_is_that_of_the_weights() -> None:
    weights = {f"c{i}": float(i) / 5050 for i in range(101)}  # 0 to 100, in 5050ths
    outer = outer_clients(weights)
    assert outer is not None
    assert outer.heaviest == [f"c{i}" for i in range(100, 90, -1)]
    assert outer.lightest == [f"c{i}" for i in range(10)]
    assert outer.distribution == (
        "Equal weights would be 0.99 % each. The weights are between 0.00 % and 1.98 %, the median is 0.99 %, "
        "and half of the clients have 0.50 % to 1.49 %. The 10 heaviest clients have 18.9 % together. "
        "1 of 101 clients have weight 0."
    )
    axes = distribution_figure(weights, ["c0", "c1"])
    bars = [bar.get_height() for bar in axes.patches]
    assert sum(bars) == 101
    assert sum(bars[: len(bars) // 2]) == 2  # flagged


def test_groups_have_the_means_of_their_clients() -> None:
    rows = {f"c{i}": [float(i), 2.0] for i in range(50)}
    axes = group_figure(rows, ["a", "b"], "mean evidence")
    texts = [text.get_text() for text in axes.get_yticklabels()]
    assert texts == [f"{i}–{i + 1}" for i in range(1, 50, 2)]
    alphas = [patch.get_alpha() for patch in axes.patches]
    assert alphas[::2] == pytest.approx([(2 * i + 0.5) / 48.5 for i in range(25)], abs=1e-3)
    shares = group_figure({f"c{i}": [1.0, 0.0] for i in range(50)}, ["a", "b"], "share", shares=True)
    assert {patch.get_alpha() for patch in shares.patches[1::2]} == {0.0}


def test_very_large_tables_keep_the_heaviest_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celm.report.many_clients._MAX_TABLE_CELLS", 150)
    page = audit_page(large_audit(40))
    assert "The 15 heaviest of 40 clients." in page
    table = page.split('aria-label="Evidence by client and class"')[1].split("</table>")[0]
    assert table.count("<tr><th") == 1 + 15
    assert "Map of the heaviest 15 clients" in page
