"""The navigation of mkdocs.yml with what was generated: each kind of method, metrics; guides nobody named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from method_pages import KINDS
from metric_pages import METRIC_MODULES
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    sections = {title: pages for entry in config.nav for title, pages in entry.items()}
    generated = {section: registry.names() for section, (registry, *_) in KINDS.items()}
    for section, names in {**generated, "metrics": METRIC_MODULES}.items():
        pages = [f"{section}/index.md", *(f"{section}/{name}.md" for name in names)]
        sections["Methods"].append({section.capitalize(): pages})
    listed = set(paths(config.nav))
    page_paths = sorted(file.src_uri for file in files.documentation_pages())
    sections["Guides"].extend(path for path in page_paths if path not in listed)
    return files


def paths(nav: Any) -> Iterator[str]:
    """Every page of a navigation, whether it is given a title there or not."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from paths(part)
