"""The navigation of mkdocs.yml with what was generated: a section for each kind of method; guides nobody named."""

from __future__ import annotations

from method_pages import KINDS
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    sections = {title: pages for entry in config.nav for title, pages in entry.items()}
    for section, (registry, _, _) in KINDS.items():
        pages = [f"{section}/index.md", *(f"{section}/{name}.md" for name in registry.names())]
        sections["Methods"].append({section.capitalize(): pages})
    named = {page for pages in sections.values() for page in pages if isinstance(page, str)}
    written = [file.src_uri for file in files.documentation_pages() if "/" not in file.src_uri]
    sections["Guides"].extend(page for page in sorted(written) if page not in named)
    return files
