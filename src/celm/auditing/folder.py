"""An audit's folder: what is in it, and how an audit that was killed is taken up again.

    settings.json     the settings and the paths that were named; there before any heavy work
    probes/           one file a probed model, put there as soon as it is done
    audit.json        the result, at the end
    report.html       the same for people
    ledger.json       which files it is about; an audit that has it is finished

The same command on the same folder goes on with what is missing. Another audit needs another folder, and a finished one
is not overwritten by that of other files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from celm.auditing.ledger import LEDGER, read_ledger
from celm.base.errors import CelmError
from celm.base.files import dump_json, explained, write_text
from celm.federation.folder import read_json

SETTINGS, PROBES, LOCK = "settings.json", "probes", "audit.lock"


class Folder:
    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        """Begin in a new or empty folder, or go on in one that was begun with the same settings and paths."""
        self.path = path
        with explained(path, "create"):
            self.made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            inside = [entry.name for entry in path.iterdir() if not entry.name.endswith((".part", ".lock"))]
        self.fresh = not inside
        if inside:
            if SETTINGS not in inside:
                raise CelmError(f"{path} is not empty", "choose another folder")
            if read_json(path / SETTINGS) != asked:
                raise CelmError(f"{path} holds another audit", "choose another folder")
        write_text(path / SETTINGS, dump_json(asked, indent=2) + "\n")

    @property
    def probes(self) -> Path:
        return self.path / PROBES

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep other processes out; leave nothing where nothing was done."""
        with explained(self.path, "lock"):
            lock = FileLock(self.path / LOCK)
            try:
                lock.acquire(timeout=0)
            except Timeout as error:
                raise CelmError(f"{self.path} is in use by another process") from error
        try:
            with explained(self.probes, "create"):
                self.probes.mkdir(exist_ok=True)
            for left in (*self.path.glob(".*.part"), *self.probes.glob(".*.part")):
                left.unlink(missing_ok=True)
            yield
        except CelmError:
            if self.fresh and not any(self.probes.iterdir()):
                self.discard()
            raise
        finally:
            lock.release()

    def discard(self) -> None:
        """Remove a folder in which nothing was probed yet."""
        with suppress(OSError):
            self.probes.rmdir()
        for name in (SETTINGS, LOCK):
            (self.path / name).unlink(missing_ok=True)
        if self.made:
            with suppress(OSError):
                self.path.rmdir()

    def finish(self, made: Mapping[str, str], ledger: Mapping[str, Any]) -> str:
        """Write the result, the ledger last; returns the ledger's text."""
        if (self.path / LEDGER).exists() and read_ledger(self.path)["files"] != ledger["files"]:
            raise CelmError(f"{self.path} holds a finished audit of other files", "choose another folder")
        for name, content in made.items():
            write_text(self.path / name, content)
        text = dump_json(ledger, indent=2) + "\n"
        write_text(self.path / LEDGER, text)
        return text
