"""A dataset as users write it: a registered name, `hf:OWNER/NAME`, a folder of images or the file of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.data.registry import datasets
from celm.experiment.component_config import HUB_PREFIX

_TABLE_SUFFIXES = (".csv", ".parquet")


def parse_dataset(text: str, setting: str = "dataset") -> dict[str, Any]:
    """Return the settings of a dataset. A registered name wins over a file or folder of the same name.

    >>> parse_dataset("digits"), parse_dataset("hf:ylecun/mnist")
    ({'name': 'digits'}, {'name': 'hf', 'repo': 'ylecun/mnist'})
    """
    if text.startswith(HUB_PREFIX):
        repo, _, revision = text.removeprefix(HUB_PREFIX).partition("@")
        return {"name": "hf", "repo": repo, **({"revision": revision} if revision else {})}
    path = Path(text).expanduser()
    is_path = "/" in text or path.suffix in _TABLE_SUFFIXES
    if text in datasets.names() or not (is_path or path.is_dir()):
        return {"name": text}
    if path.is_dir():
        return {"name": "folder", "path": str(path.resolve())}
    if path.is_file() and path.suffix in _TABLE_SUFFIXES:
        return {"name": "table", "path": str(path.resolve())}
    raise CelmError(f"{setting}: there is no folder {text}, nor a .csv or .parquet file")
