"""Studies: grids of runs and their tables, with the paper's values beside ours.

The package can be called: `celm.study("main", scale="smoke")` is `celm.study.run_study.study`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from celm.study.grid_result import Study


class _CallableModule(ModuleType):
    @property
    def __wrapped__(self) -> Callable[..., Study]:
        """The function, whose signature `help` and editors show."""
        from celm.study.run_study import study

        return study

    def __call__(self, *arguments: Any, **keywords: Any) -> Study:
        return self.__wrapped__(*arguments, **keywords)


sys.modules[__name__].__class__ = _CallableModule
