"""What a live federation leaves beside its record: alerts, metrics.prom, kept uploads and a page.

Nothing here costs a round. What fails is logged when it begins to fail, and when it works again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING

from celm.base.errors import CelmError
from celm.base.files import write_text
from celm.base.text import format_exception
from celm.live.kept_uploads import save_uploads
from celm.live.logger import log
from celm.live.state_store import StateStore
from celm.models.state_dict import StateDict
from celm.operations.alerts import Alert, AlertSender, Event
from celm.operations.metrics_text import METRICS_FILE, format_metrics
from celm.rules.messages import ClientUpdate


class RoundOutputs:
    """Sends and writes after each round."""

    def __init__(
        self,
        store: StateStore,
        alerts: Sequence[Alert],
        keep_uploads: int,
        upload_bytes: int,
        refresh_report: bool,
    ) -> None:
        needs_folder = "keep_uploads" if keep_uploads else "refresh_report" if refresh_report else ""
        if needs_folder and store.folder is None:
            raise CelmError(f"{needs_folder} needs a state folder", "set folder=...")
        if keep_uploads < 0 or upload_bytes <= 0:
            raise CelmError(f"keep_uploads={keep_uploads}, upload_bytes={upload_bytes}: out of range")
        for alert in alerts:
            if not callable(getattr(alert, "send", None)):
                raise CelmError(f"alerts: {alert!r} is not an alert", "use Webhook(url) or Command([...])")
        self.store = store
        self.sender = AlertSender(alerts, lambda text: log(WARNING, "%s", text))
        self.keep_uploads, self.upload_bytes = keep_uploads, upload_bytes
        self.refresh_report = refresh_report
        self.planned_rounds = self.failed_attempts = 0
        self._seconds: Mapping[str, float] = {}
        self._failing: set[str] = set()
        """Outputs whose last attempt failed."""

    def after_round(self, events: Sequence[Event], planned_rounds: int, seconds: Mapping[str, float]) -> None:
        """Send the events of a saved round and write its metrics."""
        self.planned_rounds, self._seconds = planned_rounds, dict(seconds)
        for event in events:
            self.send(event)
        self._try("metrics", self._write_metrics)

    def after_evaluation(self, round_number: int, alarms: Sequence[str]) -> None:
        """Send the alarms of a saved evaluation, and write the metrics and the page again."""
        for text in alarms:
            self.send(Event("accuracy", round_number, text))
        self._try("metrics", self._write_metrics)
        self.write_page()

    def after_failed_attempt(self, round_number: int, usable: int, needed: int) -> None:
        self.failed_attempts += 1
        self.send(
            Event(
                "failed_attempt",
                round_number,
                f"round {round_number} failed: {usable} usable replies, {needed} needed",
            )
        )
        self._try("metrics", self._write_metrics)

    def stop(self, error: BaseException) -> None:
        """Send that the federation ended with an error."""
        done = self.store.records[-1]["round"] if self.store.records else 0
        self.send(
            Event("stopped", done, f"the federation stopped after round {done}: {format_exception(error)}")
        )

    def close(self) -> None:
        """Wait, for a bounded time, for alerts that are not sent yet."""
        self.sender.close()

    def send(self, event: Event) -> None:
        folder = self.store.folder
        self.sender.send(event if folder is None else replace(event, folder=str(folder.path)))

    def save_uploads(
        self, round_number: int, global_model: StateDict, updates: Mapping[str, ClientUpdate]
    ) -> None:
        """Save the uploads of a round, if they are kept."""
        folder = self.store.folder
        if folder is None or not self.keep_uploads:
            return
        models = {client: update.model for client, update in updates.items()}
        limits = (self.keep_uploads, self.upload_bytes)
        self._try("uploads", lambda: save_uploads(folder.path, round_number, global_model, models, *limits))

    def write_page(self) -> None:
        """Write report.html, if it is refreshed."""
        folder = self.store.folder
        if folder is None or not self.refresh_report or not self.store.records:
            return
        from celm.report.build import write_report  # imports matplotlib

        self._try("report.html", lambda: write_report(folder.path))

    def _write_metrics(self) -> None:
        store = self.store
        if store.folder is None or not store.records:
            return
        text = format_metrics(
            store.records,
            store.evaluations.values(),
            self.planned_rounds,
            self.failed_attempts,
            self._seconds,
        )
        write_text(store.folder.path / METRICS_FILE, text, private=True)

    def _try(self, name: str, write: Callable[[], object]) -> None:
        """Write, and log a failure that is new. Whatever happens, the federation goes on."""
        try:
            write()
        except Exception as error:
            if name not in self._failing:
                text = str(error) if isinstance(error, CelmError) else format_exception(error)
                log(WARNING, "%s not written, the federation goes on: %s", name, text)
            self._failing.add(name)
            return
        if name in self._failing:
            log(INFO, "%s written again", name)
            self._failing.discard(name)
