"""Load checkpoints into the model of an audit, and record every file in the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from celm.auditing.checkpoint_reader import max_file_bytes, max_file_tensors
from celm.auditing.ledger import Manifest
from celm.auditing.model_loading import AuditedModel
from celm.auditing.sources import Source, UnusableFileError, global_model_error
from celm.base.errors import CelmError
from celm.base.files import tensor_digest
from celm.base.text import printable
from celm.models.state_dict import StateDict, load_state
from celm.models.state_matching import match_state, tied_names


class ModelChangedError(CelmError):
    """The model of a client changed, or vanished, after it was probed."""

    def __init__(self, client: str) -> None:
        super().__init__("model changed while it was audited")
        self.client = client


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint that matches the model of the audit."""

    source: Source
    state: StateDict
    digest: str
    """Digest of the tensors."""
    sha256: str | None
    """SHA-256 of the file; None for a model in memory."""
    size: int | None
    """Bytes of the file."""
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.source.name


@dataclass(frozen=True)
class CheckpointLoader:
    """Reads checkpoints and matches them to `model`, whose tensors are those of the current global model."""

    model: nn.Module
    ties: Mapping[str, tuple[str, ...]]
    """Each name of a tied tensor, to all names of that tensor."""
    aliases: Mapping[str, str]
    """Other names of tensors in files, to their names in the model."""
    max_bytes: int
    """Largest size of a file."""
    max_tensors: int
    """Largest number of tensors of a file."""
    allow_partial: bool
    """Whether missing tensors of a client are the global model's."""
    manifest: Manifest

    @classmethod
    def for_model(cls, audited: AuditedModel, manifest: Manifest) -> CheckpointLoader:
        """Build the loader of a model."""
        return cls(
            audited.model,
            tied_names(audited.model),
            audited.aliases,
            max_file_bytes(audited.model.state_dict()),
            max_file_tensors(audited.model.state_dict()),
            audited.settings.partial,
            manifest,
        )

    def load_global(self, source: Source, round: str) -> LoadedModel:
        """Load a global model into `model`, whose tensors the next call overwrites. A fault ends the audit."""
        try:
            loaded = self._load(source, None)
        except CelmError as error:
            raise global_model_error(source, error) from error
        load_state(self.model, loaded.state)
        self.manifest.add_model("global", round, source, loaded.size, loaded.sha256)
        return replace(loaded, state=dict(self.model.state_dict()))

    def load_client(self, source: Source, round: str) -> LoadedModel:
        """Load a client's model. A fault is an error with a printable reason, which is in the manifest, too."""
        try:
            if source.reason is not None:
                raise CelmError(source.reason)
            loaded = self._load(source, self._base())
        except CelmError as error:
            sha256, size = None, None
            if isinstance(error, UnusableFileError):
                sha256, size = error.sha256, error.size
            reason = printable(str(error))
            self.manifest.add_model("client", round, source, size, sha256, excluded=reason)
            raise CelmError(reason) from error
        self.manifest.add_model("client", round, source, loaded.size, loaded.sha256)
        for warning in loaded.warnings:
            self.manifest.add_remark(source.name, warning)
        return loaded

    def reload_client(self, source: Source, expected_digest: str) -> StateDict:
        """Load a client's model again. Raise ModelChangedError if its tensors are not those of `expected_digest`."""
        try:
            loaded = self._load(source, self._base())
        except CelmError as error:
            raise ModelChangedError(source.name) from error
        if loaded.digest != expected_digest:
            raise ModelChangedError(source.name)
        return loaded.state

    def _base(self) -> Mapping[str, Tensor] | None:
        return self.model.state_dict() if self.allow_partial else None

    def _load(self, source: Source, base: Mapping[str, Tensor] | None) -> LoadedModel:
        checkpoint = source.read(self.max_bytes, self.max_tensors)
        try:
            matched = match_state(checkpoint.tensors, self.model.state_dict(), self.ties, self.aliases, base)
        except CelmError as error:
            raise UnusableFileError(str(error), checkpoint.sha256, checkpoint.size) from error
        digest = tensor_digest(matched.state)
        return LoadedModel(
            source, matched.state, digest, checkpoint.sha256, checkpoint.size, matched.warnings
        )
