"""The state folder of a live federation, from which a killed server resumes.

    rounds.jsonl            the record, one line per round (see `celm.live.round_record`)
    evaluations.jsonl       metrics of the global model, one line per round; with `config` if a subclass changed it
    failures.jsonl          attempts at a round with too few usable replies
    heads.jsonl             signed heads of the record, with `signing_key` (see `celm.records.signed`)
    dropped.jsonl           lines of these four files that were beyond the last checkpoint
    times.jsonl             seconds of each stage of a round
    checkpoints/            the state after the last two rounds
    settings.json           everything that results depend on, in the first round; later changes are in the record
    names.json              fingerprint of each node to its name (see `celm.live.node_names`)
    metrics.prom, uploads/, report.html     written beside the record (see `celm.live.round_outputs`)
    run.lock                locked by the running server

As in every run folder, a round is finished once its checkpoint is written (see `celm.live.federation_folder`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from celm.base.errors import CelmError
from celm.base.state_serialisation import flatten_state, restore_state
from celm.federation.server import Server, ServerState
from celm.live.federation_folder import FederationFolder
from celm.live.node_names import Node, assign_names, node_fingerprint
from celm.live.record_signer import RecordSigner, check_signed_record
from celm.models.state_dict import StateDict, describe_mismatch
from celm.records.federation_amendments import amended_settings
from celm.records.federation_chain import (
    EVALUATIONS,
    FAILURES,
    ROUNDS,
    FederationChain,
    other_heads,
    read_federation_chain,
)
from celm.records.federation_files import NAMES_FILE, SETTINGS_FILE, read_settings, write_settings
from celm.records.federation_names import check_names, read_node_names, recorded_keys, restore_names
from celm.records.federation_records import FailedAttempt, FederationRound
from celm.records.hash_chain import GENESIS, json_digest
from celm.records.schema import check_schema_version, make_line
from celm.records.signed.leaves import make_salt

_STATE_VERSION = 1
"""The version of the fields of a saved state. A state without one, of an older celm, has version 1."""


@dataclass(frozen=True)
class SavedFederation:
    """The content of a state folder with at least one finished round. It is checked, and not yet changed."""

    rounds_done: int
    tensors: dict[str, Tensor]
    metadata: dict[str, Any]
    chain: FederationChain
    initial_settings: dict[str, Any]
    """The settings of the first round."""
    settings: dict[str, Any]
    """The settings of the last finished round."""

    @property
    def records(self) -> list[dict[str, Any]]:
        return self.chain.rounds.records[: self.rounds_done]


class StateStore:
    """Records and states of a federation, in a folder or, without one, in memory."""

    def __init__(self, path: str | Path | None, signing_key: str | Path | None = None) -> None:
        # Absolute, so that a later change of the working folder does not move the state.
        self.folder = None if path is None else FederationFolder(Path(path).absolute())
        self.signer = None if signing_key is None else RecordSigner.read(signing_key, self.folder)
        self._held_lock: ExitStack | None = None
        self.records: list[dict[str, Any]] = []
        self.evaluations: dict[int, dict[str, Any]] = {}
        self.train_config: dict[str, Any] | None = None
        """What a subclass changed in the train config (see `celm.flower.round_config`); saved with each round."""
        self.node_names: dict[str, str] = {}
        """Fingerprint of each node to its name."""
        self.key_changes: dict[str, tuple[str, str]] = {}
        """Client to its recorded key and its new one, if the operator gave it a new one in names.json."""
        self._heads: dict[str, str] = {}
        """File of the record to the digest of its last line."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder while the block runs, unless `hold_lock` holds it for longer."""
        held_before = self._held_lock is not None
        self.hold_lock()
        try:
            yield
        finally:
            if not held_before:
                self.release_lock()

    def hold_lock(self) -> None:
        """Create the folder if needed and lock it until `release_lock`, or until this object or the process ends."""
        if self.folder is None or self._held_lock is not None:
            return
        self.folder.create()
        with ExitStack() as stack:
            stack.enter_context(self.folder.lock())
            self._held_lock = stack.pop_all()

    def release_lock(self) -> None:
        if self._held_lock is not None:
            self._held_lock.close()
            self._held_lock = None

    def load(self) -> SavedFederation | None:
        """Read and check the folder without changing it. Return None before the first finished round."""
        if self.folder is None:
            return None
        chain = read_federation_chain(self.folder.path)
        loaded = self.folder.load_checkpoint()
        tensors, metadata = loaded or ({}, {})
        rounds_done = metadata.get("round", 0)
        self.folder.check_rounds_beyond(chain, rounds_done)
        if loaded is None:
            return None
        records = chain.rounds.records[:rounds_done]
        if len(records) < rounds_done:
            raise CelmError(
                f"{self.folder.records_path} is damaged: it does not contain rounds 1 to {rounds_done} in order"
            )
        path = self.folder.path / SETTINGS_FILE
        initial = read_settings(path)
        settings = amended_settings(initial, records, path)
        check_signed_record(self.folder.path, chain.rounds, self.signer)
        return SavedFederation(rounds_done, tensors, metadata, chain, initial, settings)

    def restore(
        self,
        saved: SavedFederation | None,
        settings: Mapping[str, Any],
        server: Server,
        reference: StateDict,
    ) -> ServerState | None:
        """Return the state after the last finished round, None before the first."""
        self.records, self.evaluations, self.train_config = [], {}, None
        self.key_changes, self._heads = {}, {}
        if self.folder is None:
            return None
        self.folder.remove_leftovers()
        self._restore_names([] if saved is None else saved.records)
        state = None
        if saved is not None:
            state = _restore_server_state(saved, server, reference, self.folder.checkpoint_files()[-1])
            self.train_config = saved.metadata.get("train_config")
        rounds_done = state.round_number if state else 0
        chain = read_federation_chain(self.folder.path) if saved is None else saved.chain
        self.folder.drop_heads_beyond(rounds_done)
        self.folder.drop_lines_beyond(chain, rounds_done)
        self.folder.truncate_to(rounds_done)
        chain = read_federation_chain(self.folder.path)
        if saved is None:
            write_settings(self.folder.path / SETTINGS_FILE, settings)
        self._heads = {name: file.head for name, file in chain.files.items()}
        self.records = chain.rounds.records
        self.evaluations = {line["round"]: line for line in chain.files[EVALUATIONS].records}
        if self.signer is not None:
            self.signer.open(self.folder.path, chain.rounds)
        return state

    def _restore_names(self, records: list[dict[str, Any]]) -> None:
        """Read names.json and compare it with the keys in the record."""
        if self.folder is None:
            return
        path, keys = self.folder.path / NAMES_FILE, recorded_keys(records)
        names = read_node_names(path)
        check_names(names, keys, path)
        self.node_names = restore_names(names, keys)
        self.key_changes = {
            name: (keys[name], fingerprint)
            for fingerprint, name in names.items()
            if keys.get(name, fingerprint) != fingerprint
        }

    def identify(self, nodes: Iterable[Node]) -> dict[str, Any]:
        """Return client name to node id. New names are saved before they are used."""
        node_list = list(nodes)
        names = assign_names(node_list, self.node_names)
        if self.folder is not None and names != self.node_names:
            self.folder.write_json("names.json", names)
        self.node_names = names
        return {names[node_fingerprint(node)]: node.node_id for node in node_list}

    def client_keys(self, clients: Iterable[str]) -> dict[str, str]:
        """Return client to the fingerprint of its key, without clients that the user's own `identify` named."""
        fingerprints = {name: fingerprint for fingerprint, name in self.node_names.items()}
        return {client: fingerprints[client] for client in clients if client in fingerprints}

    def round_links(self) -> dict[str, Any]:
        """Return the keys that chain the next line of rounds.jsonl, and its salt if it will be signed."""
        return self._links(ROUNDS) if self.signer is None else {"salt": make_salt(), **self._links(ROUNDS)}

    def head_updates(self, clients: Sequence[str]) -> dict[str, str]:
        """Return the newest signed head for each client; nothing if the record is not signed."""
        return {} if self.signer is None else self.signer.head_updates(clients)

    def known_witnesses(self, echoes: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Return the key `witnesses` of the next line, if clients have returned heads of this record."""
        known = {} if self.signer is None else self.signer.known_echoes(echoes)
        return {"witnesses": known} if known else {}

    def _links(self, name: str) -> dict[str, Any]:
        return {"heads": other_heads(self._heads, name), "previous": self._heads.get(name, GENESIS)}

    def save_round(self, state: ServerState, record: dict[str, Any], seconds: dict[str, float]) -> None:
        """Save a finished round: first its line, then its checkpoint, then its signed head."""
        if self.folder is not None:
            self.folder.append_round(record, seconds)
            tensors: dict[str, Tensor] = {}
            metadata = {
                "schema_version": _STATE_VERSION,
                "round": state.round_number,
                "state": flatten_state(state, "state", tensors),
            }
            if self.train_config is not None:
                metadata["train_config"] = self.train_config
            self.folder.save_checkpoint(state.round_number, tensors, metadata)
        self.records.append(record)
        self._heads[ROUNDS] = json_digest(record)
        if self.signer is not None:
            self.signer.sign_round(record, self._heads[ROUNDS])
        self.key_changes = {}

    @property
    def evaluate_config(self) -> dict[str, Any] | None:
        """What a subclass had changed in the evaluate config after the last evaluation."""
        last = max(self.evaluations, default=None)
        return None if last is None else self.evaluations[last].get("config")

    def save_evaluation(self, line: dict[str, Any]) -> None:
        self.evaluations[line["round"]] = self._append(EVALUATIONS, line)

    def save_failure(self, line: dict[str, Any]) -> None:
        self._append(FAILURES, make_line(FailedAttempt, line))

    def _append(self, name: str, line: dict[str, Any]) -> dict[str, Any]:
        """Append a chained line to a file; return it."""
        chained = {**line, **self._links(name)}
        if self.folder is not None:
            self.folder.append_line(name, chained)
        self._heads[name] = json_digest(chained)
        return chained


def _restore_server_state(
    saved: SavedFederation, server: Server, reference: StateDict, path: Path
) -> ServerState:
    version = saved.metadata.get("schema_version", 1)
    check_schema_version(version, _STATE_VERSION, path, FederationRound.remedy)
    try:
        state: ServerState = restore_state(
            saved.metadata["state"],
            _to_device(saved.tensors, reference),
            ServerState,
            server.state_field_types(),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CelmError(f"{path} is not a state of this federation ({type(error).__name__})") from error
    reason = describe_mismatch(state.model, reference)
    if reason:
        raise CelmError(f"{path} is not a state of this federation: {reason}")
    return state


def _to_device(tensors: Mapping[str, Tensor], reference: StateDict) -> dict[str, Tensor]:
    device = next(iter(reference.values())).device
    return {name: tensor.to(device) for name, tensor in tensors.items()}
