"""One audit under way: read, check, probe a few models at a time, judge, report.

What is in memory at once is the global model, the file that is read and the few models of one batch, however many
clients there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn

from celm.auditing.adapters import adapted
from celm.auditing.books import Books
from celm.auditing.building import build, held_inputs
from celm.auditing.document import document, record
from celm.auditing.findings import Copy, Findings, judge
from celm.auditing.fitting import Fitted, fitted, ties_of
from celm.auditing.folder import Folder
from celm.auditing.ledger import REPORT, RESULT, ledger, sha256
from celm.auditing.probing import Probed, Prober
from celm.auditing.reading import largest_file, visible
from celm.auditing.result import Audit
from celm.auditing.settings import Settings
from celm.auditing.sources import RoundSources, Source, Sources, UnreadableError
from celm.base.errors import CelmError
from celm.base.files import digest
from celm.method.movement import movement
from celm.method.probe import ProbeFunction, probe
from celm.method.stacking import Stack
from celm.method.weights import Weights
from celm.models.state import load_state

Watch = Callable[[int, int], None]
"""Called with the models done and their number."""
REMEMBERED = 5
"""Global models, the present one among them: to move as they did is no work. As of the rule celm."""
SMALL = 1_000_000
"""Values of a model below which one thread is as good as many."""


@dataclass
class Work:
    """One audit under way."""

    how: Settings
    sources: Sources
    architecture: nn.Module | None
    strict: bool
    watch: Watch | None
    folder: Folder | None
    by: ProbeFunction = probe
    """Who probes."""
    books: Books = field(default_factory=Books)
    last: dict[str, Probed] = field(default_factory=dict)
    """Each model's probe in the round before; the global model's under the empty name."""
    loaded: Source | None = None
    """Whose tensors the model has: the round's global model."""
    past: list[Mapping[str, Tensor]] = field(default_factory=list)
    """Global models of earlier rounds, the first and the last ones, where it is looked at who trained."""
    prober: Prober | None = None
    done: int = 0

    def run(self, inputs: Mapping[str, Any]) -> Audit:
        threads = torch.get_num_threads()
        try:
            return self.carry_out(inputs)
        finally:
            torch.set_num_threads(threads)

    def carry_out(self, inputs: Mapping[str, Any]) -> Audit:
        built = build(self.how, self.architecture)
        self.model, self.how, self.aliases = built.model, built.how, built.aliases
        self.ties = ties_of(self.model)
        self.largest = largest_file(self.model.state_dict())
        torch.set_num_threads(self.how.threads or threads_for(self.model))
        self.held = held_inputs(self.how)
        self.books.besides(
            {"held": self.how.hold, "configuration": self.how.model and f"{self.how.model}/config.json"}
        )
        weights = Weights()
        records: list[dict[str, Any]] = []
        latest: Findings | None = None
        excluded: dict[str, str] = {}
        for round in self.sources.rounds:
            found, refused = self.play(round)
            excluded |= {name: prefixed(round.name, reason) for name, reason in refused.items()}
            if found is not None:
                latest = found
                # As the rule: who never trained would keep a part of the equal weights to begin with.
                anew = set(found.scores).difference(weights.of) if self.how.looks else ()
                weights = weights.smoothed(found.scores, self.how.beta, anew)
            records.append(record(len(records) + 1, round.name, found, refused, weights))
        if latest is None:
            name, reason = next(iter(excluded.items()))
            raise CelmError(f"no client can be audited; the first, {name}: {reason}")
        return self.finish(latest, records, weights, excluded, inputs)

    def play(self, round: RoundSources) -> tuple[Findings | None, dict[str, str]]:
        """Probe the global model and the clients of one round; also who was left out, and why."""
        start = self.begin(round)
        refused: dict[str, str] = {}
        copies: dict[str, Copy] = {}
        first: dict[str, str | None] = {start.tensors: None}
        probes: dict[str, Probed] = {}
        batch: list[Taken] = []
        at_once = self.ready.models_at_once()
        taken: dict[str, tuple[Source, str]] = {}
        for source in round.clients:
            model = self.take(source, round.name, refused)
            if model is not None:
                batch.append(model)
                taken[model.name] = source, model.tensors
                note_copy(model, first, copies)
            if len(batch) == at_once:
                self.probe(batch, probes, refused, round.name)
                batch = []
        if batch:
            self.probe(batch, probes, refused, round.name)
        probes = {name: found for name, found in probes.items() if name not in refused}
        if not probes:
            return None, refused
        if len(probes) == 1:
            self.books.note(next(iter(probes)), "is alone, so its score is 1 and says nothing")
        logits = {name: found.logits for name, found in probes.items()}
        calibrated = self.how.evidence == "calibrated"
        calibrations = {name: found.calibration for name, found in probes.items()} if calibrated else None
        moved = self.movement(start, [taken[name] for name in probes]) if self.how.looks else None
        return judge(logits, start.logits, copies, self.how, calibrations, moved), refused

    def movement(self, start: Start, clients: Sequence[tuple[Source, str]]) -> Tensor:
        """How far each client moved the global model; their files are read again, a few at a time."""
        if start.inputs is None:
            raise RuntimeError("the global model's probe was not kept")
        state = self.ready.subject.state
        now = state(self.model.state_dict())
        trained = Again([partial(self.again, *each) for each in clients])
        return movement(
            Stack(self.ready.subject.module, [now] * len(clients)),
            Stack(self.ready.subject.module, trained),
            start.inputs,
            self.how.seed,
            [*map(state, self.past), now],
            self.ready.models_here,
        )

    def again(self, source: Source, expected: str) -> Mapping[str, Tensor]:
        """A client's model once more; it must be the one that was probed."""
        fit = self.fit(source)[0]
        if digest(fit.state) != expected:
            raise CelmError(f"{source.name}: changed while it was audited")
        return self.ready.subject.state(fit.state)

    def begin(self, round: RoundSources) -> Start:
        """Read and probe the model that the round's clients started from; it stays in `self.model`."""
        source = round.start or self.sources.start
        if source is None:
            raise RuntimeError("a round without a start was let in")
        if source is not self.loaded:
            self.load(source, round.name)
        if self.prober is None:
            subject = adapted(self.model, self.how, self.how.input_shape, self.held)
            kept = self.folder.probes if self.folder else None
            further = len(self.sources.rounds) > 1
            self.prober = Prober(subject, self.how, self.held, kept, further, self.by)
        state = dict(self.model.state_dict())
        start = Taken("", state, digest(state))
        found = self.probed([start], self.how.looks)[0]
        if not bool(found.logits.isfinite().all()):
            raise CelmError("the global model's logits are not finite under the probe")
        return Start(start.tensors, found.logits, None if found.inputs is None else found.inputs[0])

    def load(self, source: Source, round: str) -> None:
        try:
            tensors, sha256, size = source.read(self.largest)
            fit = fitted(tensors, self.model.state_dict(), self.ties, self.aliases)
        except CelmError as error:
            where = f" {source.path}" if source.path is not None else ""
            raise CelmError(f"the global model{where}: {error}") from error
        if self.loaded is not None and self.how.looks:
            last = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            self.past = [*self.past[:1], *self.past[1:][-(REMEMBERED - 2) :], last]
        load_state(self.model, fit.state)
        self.loaded = source
        self.books.read("global", round, source, size, sha256)

    @property
    def ready(self) -> Prober:
        if self.prober is None:
            raise RuntimeError("the global model comes first")
        return self.prober

    def take(self, source: Source, round: str, refused: dict[str, str]) -> Taken | None:
        """A client's model, checked; None where it is refused."""
        sha256, size = None, None
        try:
            if source.reason is not None:
                raise CelmError(source.reason)
            fit, sha256, size = self.fit(source)
        except CelmError as error:
            if isinstance(error, UnreadableError):
                sha256, size = error.sha256, error.size
            reason = visible(str(error))
            self.books.read("client", round, source, size, sha256, reason)
            self.refuse(source.name, reason, round, refused)
            return None
        self.books.read("client", round, source, size, sha256)
        for remark in fit.notes:
            self.books.note(source.name, remark)
        return Taken(source.name, fit.state, digest(fit.state))

    def fit(self, source: Source) -> tuple[Fitted, str | None, int]:
        """A client's tensors as a state of the model, and of a file the SHA-256 of its bytes and their number."""
        tensors, sha256, size = source.read(self.largest)
        base = self.model.state_dict()
        return (
            fitted(tensors, base, self.ties, self.aliases, base if self.how.partial else None),
            sha256,
            size,
        )

    def refuse(self, name: str, reason: str, round: str, refused: dict[str, str]) -> None:
        if self.strict:
            raise CelmError(f"{name}: {prefixed(round, reason)}")
        refused.setdefault(name, reason)
        self.count()

    def probe(
        self, batch: list[Taken], probes: dict[str, Probed], refused: dict[str, str], round: str
    ) -> None:
        for taken, found in zip(batch, self.probed(batch), strict=True):
            if bool(found.logits.isfinite().all()):
                probes[taken.name] = replace(found, inputs=None)
            else:
                reason = "its logits are not finite under the probe"
                self.books.leave_out(taken.name, round, reason)
                self.refuse(taken.name, reason, round, refused)

    def probed(self, batch: list[Taken], keep: bool = False) -> list[Probed]:
        """Probe a batch of models, or recall what was found before, and remember it for the next round."""
        keep = keep or self.ready.further
        last = [self.last.get(taken.name) for taken in batch]
        befores = [before.key if before else "" for before in last]
        keys = [self.ready.key(taken.tensors, key) for taken, key in zip(batch, befores, strict=True)]
        states = [taken.state for taken in batch]
        found = self.ready.recall(keys, keep) or self.ready.run(states, keys, last, keep)
        for taken, each in zip(batch, found, strict=True):
            # On the disk already, where there is one: only its key has to be remembered.
            self.last[taken.name] = replace(each, inputs=None) if self.folder else each
            self.count()
        return found

    def count(self) -> None:
        self.done += 1
        if self.watch is not None:
            total = sum(len(round.clients) + 1 for round in self.sources.rounds)
            self.watch(min(self.done, total), total)

    def finish(
        self,
        found: Findings,
        records: list[dict[str, Any]],
        weights: Weights,
        excluded: dict[str, str],
        inputs: Mapping[str, Any],
    ) -> Audit:
        told = document(self.how, found, records, weights, excluded, self.books.notes, self.sources.ignored)
        if self.folder is None:
            return Audit(told)
        place = self.folder.path
        whole = Audit(told, [file.entry(place) for file in self.books.files], place)
        made = {RESULT: whole.to_json(), REPORT: whole.to_html()}
        text = self.folder.finish(made, ledger(self.books.files, inputs, self.how.tables(), made, place))
        return Audit(told, whole.files, place, sha256(text.encode()))


@dataclass(frozen=True)
class Taken:
    """A model that fits, and the digest of its tensors."""

    name: str
    state: Mapping[str, Tensor]
    tensors: str


@dataclass(frozen=True)
class Start:
    tensors: str
    logits: Tensor
    inputs: Tensor | None
    """Where the first of its probes ended, `[K, *shape]`, where that was kept."""


class Again(Sequence[Mapping[str, Tensor]]):
    """Models that are read each time they are asked for, so that few are in memory at once."""

    def __init__(self, reads: Sequence[Callable[[], Mapping[str, Tensor]]]) -> None:
        self.reads = reads

    def __len__(self) -> int:
        return len(self.reads)

    @overload
    def __getitem__(self, which: int) -> Mapping[str, Tensor]: ...
    @overload
    def __getitem__(self, which: slice) -> list[Mapping[str, Tensor]]: ...
    def __getitem__(self, which: int | slice) -> Any:
        return [read() for read in self.reads[which]] if isinstance(which, slice) else self.reads[which]()


def note_copy(taken: Taken, first: dict[str, str | None], copies: dict[str, Copy]) -> None:
    """Mark a client whose tensors were seen before, and the client they were first seen at."""
    if taken.tensors not in first:
        first[taken.tensors] = taken.name
        return
    origin = first[taken.tensors]
    copies[taken.name] = Copy(origin)
    if origin is not None:
        copies.setdefault(origin, Copy(taken.name))


def threads_for(model: nn.Module) -> int:
    """One for a small model, which gains nothing by more; as many as there are for a large one."""
    values = sum(tensor.numel() for tensor in model.state_dict().values())
    return 1 if values < SMALL else torch.get_num_threads()


def prefixed(round: str, reason: str) -> str:
    return f"{round}: {reason}" if round else reason
