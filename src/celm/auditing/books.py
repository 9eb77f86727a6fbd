"""What an audit writes down as it goes: the files that were read, and its remarks on clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from celm.auditing.ledger import File
from celm.auditing.reading import fingerprint
from celm.auditing.sources import Source


@dataclass
class Books:
    files: list[File] = field(default_factory=list)
    remarks: dict[str, list[str]] = field(default_factory=dict)

    def read(
        self,
        role: str,
        round: str,
        source: Source,
        size: int | None,
        sha256: str | None,
        reason: str | None = None,
    ) -> None:
        """A model was read, from a file or, which leaves no trace, from memory; `reason` says why it is left out."""
        if source.path is not None:
            client = source.name if role == "client" else None
            self.files.append(File(role, round, client, source.path, size, sha256, reason))

    def leave_out(self, client: str, round: str, reason: str) -> None:
        """A client that was read turned out to be of no use."""
        for place, file in enumerate(self.files):
            if (file.client, file.round) == (client, round):
                self.files[place] = replace(file, excluded=reason)

    def besides(self, files: Mapping[str, str | None]) -> None:
        """Files other than checkpoints that the result depends on, by their role."""
        for role, name in files.items():
            if name and (path := Path(name).resolve()).is_file():
                self.files.append(File(role, "", None, path, path.stat().st_size, fingerprint(path)))

    def note(self, client: str, remark: str) -> None:
        told = self.remarks.setdefault(client, [])
        if remark not in told:
            told.append(remark)

    @property
    def notes(self) -> dict[str, str]:
        return {client: "; ".join(told) for client, told in self.remarks.items()}
