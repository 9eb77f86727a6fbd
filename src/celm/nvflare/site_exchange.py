"""Send each site its own task, and collect one result of each.

Each site has a task of its own, because messages differ: clients may keep their own head. A task ends with a result,
after its timeout, or when NVFlare reports that the site is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.shareable import Shareable

_POLL_SECONDS = 0.05
_END_REASONS = {
    TaskCompletionStatus.TIMEOUT: "no reply in time",
    TaskCompletionStatus.CLIENT_DEAD: "it left during the round",
}


class SiteExchange:
    """Tasks of one round; `broadcast` and `cancel` are those of the controller."""

    def __init__(self, broadcast: Callable[..., None], cancel: Callable[[Task], None], timeout: int) -> None:
        self._broadcast, self._cancel, self._timeout = broadcast, cancel, timeout
        self._results: dict[str, Shareable] = {}

    def run(
        self, task_name: str, contents: Mapping[str, Shareable], is_aborted: Callable[[], bool]
    ) -> dict[str, Shareable | str]:
        """Return site to its result, or to the reason why it has none."""
        tasks: dict[str, Task] = {}
        for site, content in contents.items():
            tasks[site] = Task(
                name=task_name, data=content, timeout=self._timeout, result_received_cb=self._receive
            )
            self._broadcast(task=tasks[site], targets=[site], min_responses=1)
        while any(task.completion_status is None for task in tasks.values()):
            if is_aborted():
                for task in tasks.values():
                    self._cancel(task)
                break
            time.sleep(_POLL_SECONDS)
        return {
            site: self._results[site] if site in self._results else _end_reason(task)
            for site, task in tasks.items()
        }

    def _receive(self, client_task: ClientTask, fl_ctx: Any) -> None:
        """Take a result. NVFlare calls this from a thread of its own, once for each task."""
        self._results[client_task.client.name] = client_task.result
        client_task.result = None


def _end_reason(task: Task) -> str:
    status = task.completion_status
    return _END_REASONS.get(status, f"its task ended without a result ({status})")
