"""Models that are read on each access, so that few are in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from celm.models.state_dict import StateDict


class LazyStates(Sequence[StateDict]):
    """States that are read on each access, so that few are in memory at once."""

    def __init__(self, readers: Sequence[Callable[[], StateDict]]) -> None:
        self.readers = readers

    def __len__(self) -> int:
        return len(self.readers)

    @overload
    def __getitem__(self, index: int) -> StateDict: ...
    @overload
    def __getitem__(self, index: slice) -> list[StateDict]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return [read() for read in self.readers[index]] if isinstance(index, slice) else self.readers[index]()


def prepend(first: StateDict, states: Sequence[StateDict]) -> Sequence[StateDict]:
    """Return `first` and the states after it; lazy ones stay lazy."""
    if isinstance(states, LazyStates):
        return LazyStates([lambda: first, *states.readers])
    return [first, *states]
