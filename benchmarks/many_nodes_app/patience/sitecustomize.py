"""Give Flower's processes TASK_SECONDS to start a task, not 30: many_nodes.py adds this folder to PYTHONPATH.

All nodes start a ClientApp at once. Two cores do not start 50 processes in 30 seconds, after which Flower starts them
again, without end. When a node counts as gone does not change.
"""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

PATCHED = ("flwr.supercore.corestate.sql_corestate", "flwr.supercore.corestate.in_memory_corestate")


class _PatchingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        assert isinstance(module.HEARTBEAT_DEFAULT_INTERVAL, int)
        module.HEARTBEAT_DEFAULT_INTERVAL = int(os.environ["TASK_SECONDS"])  # type: ignore[attr-defined]


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        spec = PathFinder.find_spec(name, path, target) if name in PATCHED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader)
        return spec


if "TASK_SECONDS" in os.environ:
    sys.meta_path.insert(0, _Finder())
