"""Scripts of results/, benchmarks/ and examples/ are not installed; tests load them from their files."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def load_script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Load a script by its path in the repository, as Python does: its folder is on the path."""

    def load(path: str) -> ModuleType:
        file = REPOSITORY / path
        root = file.parents[1] if (file.parent / "__init__.py").exists() else file.parent
        monkeypatch.syspath_prepend(str(root))
        # Scripts of several folders have the same names.
        for name, module in list(sys.modules.items()):
            origin = getattr(module, "__file__", None)
            if origin and Path(origin).parent != root and (root / f"{name}.py").exists():
                monkeypatch.delitem(sys.modules, name)
        name = ".".join(file.relative_to(root).with_suffix("").parts)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load
