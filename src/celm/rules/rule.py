"""What a rule is: updates -> weigh -> merge -> deliver, each with a default.

A rule is a frozen dataclass whose fields are its settings; what it remembers between rounds is a state, itself
a dataclass of tensors, numbers and mappings, that the federation saves and restores. A new rule says what is
special about it, most often only `init` and `weigh`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from celm.base.registry import Configurable
from celm.method.probe import ProbeFunction
from celm.method.probe import probe as probe_here
from celm.models.state import StateDict
from celm.rules.exchange import Delivery as Delivery
from celm.rules.exchange import Round as Round

State = TypeVar("State")


@dataclass(frozen=True)
class ProbeSettings:
    """How rules that probe do it: Algorithm 1's L, η and λ, a bound on memory, and what may be saved."""

    steps: int = 200
    lr: float = 0.01
    l2: float = 1e-3
    chunk: int | None = None
    tolerance: float | None = None
    classes: int | None = None
    precision: str = "float32"
    keep: bool = True

    def always(self) -> dict[str, Any]:
        """What is the same however many steps are taken, as `celm.method.probe.probe` takes it."""
        precision = getattr(torch, self.precision)
        return {"l2": self.l2, "chunk": self.chunk, "precision": precision, "keep": self.keep}


@dataclass(frozen=True)
class Facts:
    """What a rule may know of the federation: nothing of the clients' data."""

    clients: tuple[str, ...]
    classes: int
    input_shape: tuple[int, ...]
    rounds: int
    seed: int
    module: nn.Module
    """The architecture; its parameters are of no meaning."""
    head: tuple[str, ...]
    """Names of the tensors of the last linear layer."""
    probe: ProbeSettings = ProbeSettings()
    prober: ProbeFunction = probe_here
    """Who probes: this process, or a cluster."""


@dataclass(frozen=True)
class Needs:
    """What a rule must be given beyond the client models; checked before a run, shown in the docs."""

    validation: bool = False
    """Held-out data, at the server or at the clients."""
    sizes: bool = False
    """Numbers of samples, as clients report them."""
    extras: str = ""
    """What clients must exchange besides models."""


@dataclass(frozen=True)
class Weighing(Generic[State]):
    """What a rule makes of a round's updates."""

    state: State
    weights: Mapping[str, float]
    """Used to average; over the clients present, on the simplex."""
    standing: Mapping[str, float]
    """Over every client known so far, on the simplex."""
    scores: Mapping[str, float] | None = None
    """This round's contribution, before smoothing; None where the rule did not estimate it."""
    evidence: Mapping[str, list[float]] | None = None
    """Client to evidence by class; None where the rule did not probe."""
    inputs: Mapping[str, Tensor] | None = None
    """Client to the inputs `[K, *shape]` its probe ended at."""
    model: StateDict | None = None
    """The new global model, where weighing makes it on the way."""
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    """Numbers and text for the record."""


@dataclass(frozen=True)
class Rule(Configurable, ABC, Generic[State]):
    needs: ClassVar[Needs] = Needs()
    personal: ClassVar[bool] = False
    """Whether clients end up with models of their own, so that results are means over clients."""
    state_type: ClassVar[type]

    def local_heads(self, rounds: int) -> int:
        """For how many first rounds clients keep their own head, unless the run says otherwise."""
        return 0

    def settled(self, state: State) -> bool:
        """Whether heads may be shared from now on, although fewer rounds are over."""
        return False

    @abstractmethod
    def init(self, federation: Facts) -> State: ...

    @abstractmethod
    def weigh(self, state: State, federation: Facts, round: Round) -> Weighing[State]: ...

    def merge(self, state: State, round: Round, weighing: Weighing[State]) -> StateDict:
        """The new global model: by default what `weigh` made, else the weighted mean of the client models."""
        if weighing.model is not None:
            return weighing.model
        names = round.clients
        models = [round.updates[name].model for name in names]
        return round.average(models, [weighing.weights[name] for name in names])

    def deliver(self, state: State, model: StateDict, client: str) -> Delivery:
        """What `client` starts the next round from: by default the global model."""
        return Delivery(model)


AnyRule = Rule[Any]
