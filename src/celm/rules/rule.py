"""The interface of rules: updates -> `compute_weights` -> `aggregate` -> `message_for`.

A rule is a frozen dataclass whose fields are its settings. Its state between rounds is a dataclass of tensors,
numbers and mappings, which the federation saves and restores. Most rules implement `init` and `compute_weights` and
keep the defaults of the other methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from celm.base.registry import Configurable
from celm.core.probe import ProbeFunction
from celm.core.probe import probe as probe_here
from celm.models.state_dict import StateDict
from celm.rules.messages import RoundData as RoundData
from celm.rules.messages import ServerMessage as ServerMessage

State = TypeVar("State")


@dataclass(frozen=True)
class ProbeSettings:
    """Settings of the probe: Algorithm 1's L (`steps`), η (`lr`) and λ (`l2`), and bounds on memory and time."""

    steps: int = 200
    lr: float = 0.01
    l2: float = 1e-3
    chunk: int | None = None
    tolerance: float | None = None
    classes: int | None = None
    precision: str = "float32"
    keep_inputs: bool = True

    def kwargs(self) -> dict[str, Any]:
        """Return the arguments of `celm.core.probe.probe` that do not depend on the number of steps."""
        precision = getattr(torch, self.precision)
        return {"l2": self.l2, "chunk": self.chunk, "precision": precision, "keep_inputs": self.keep_inputs}


@dataclass(frozen=True)
class ServerContext:
    """Facts about the federation that a rule may use; none of them is about the clients' data."""

    clients: tuple[str, ...]
    classes: int
    input_shape: tuple[int, ...]
    rounds: int
    seed: int
    module: nn.Module
    """The architecture. Only the parameters that clients do not exchange have a meaning: they are frozen."""
    head: tuple[str, ...]
    """Names of the exchanged tensors of the last linear layer."""
    probe: ProbeSettings = ProbeSettings()
    probe_fn: ProbeFunction = probe_here
    """Runs the probe, in this process or on a cluster."""
    exchanged: tuple[str, ...] | None = None
    """Names of the tensors that clients exchange; None for all."""


@dataclass(frozen=True)
class Requirements:
    """Inputs of a rule besides client models; checked before a run and shown in the documents."""

    validation: bool = False
    """Held-out data, at the server or at the clients."""
    sizes: bool = False
    """Numbers of samples, as clients report them."""
    extra_exchange: str = ""
    """Data that clients exchange besides models, in words; empty if none."""
    head: bool = False
    """The whole last layer, with one row per class."""


@dataclass(frozen=True)
class WeightingResult(Generic[State]):
    """Weights, scores and diagnostics of a round."""

    state: State
    aggregation_weights: Mapping[str, float]
    """Weights of the present clients in the average, on the simplex."""
    client_weights: Mapping[str, float]
    """Weights of all clients seen so far, on the simplex."""
    contributions: Mapping[str, float] | None = None
    """The same before scaling by response rates; None if the rule does not scale."""
    scores: Mapping[str, float] | None = None
    """Contributions in this round, before smoothing; None if the rule did not estimate them."""
    evidence: Mapping[str, list[float]] | None = None
    """Client to evidence per class; None if the rule did not probe."""
    probe_inputs: Mapping[str, Tensor] | None = None
    """Client to the inputs `[K, *shape]` at which its probe ended."""
    model: StateDict | None = None
    """The new global model, if `compute_weights` already computed it."""
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    """Numbers and text for the record."""


@dataclass(frozen=True)
class Rule(Configurable, ABC, Generic[State]):
    """Base of rules: a frozen dataclass whose fields are settings (`rule.*`)."""

    requirements: ClassVar[Requirements] = Requirements()
    personal: ClassVar[bool] = False
    """Whether each client ends with its own model, so that results are means over clients."""
    state_type: ClassVar[type]

    @property
    def continues_from_upload(self) -> bool:
        """Whether, by the rule's protocol, the model sent to a client builds on that client's upload."""
        return False

    def local_head_rounds(self, rounds: int) -> int:
        """Return the number of first rounds in which clients keep their own head, unless the run sets it."""
        return 0

    @property
    def depends_on_rounds(self) -> bool:
        """Whether results depend on how many rounds there will be."""
        return self.local_head_rounds(1) != self.local_head_rounds(1_000_000)

    def warmup_over(self, state: State) -> bool:
        """Return whether heads may be shared before `local_head_rounds` are over."""
        return False

    @abstractmethod
    def init(self, context: ServerContext) -> State:
        """Return the state before the first round."""

    @abstractmethod
    def compute_weights(
        self, state: State, context: ServerContext, round: RoundData
    ) -> WeightingResult[State]:
        """Return the weights of a round and the next state."""

    def aggregate(self, state: State, round: RoundData, result: WeightingResult[State]) -> StateDict:
        """Return the new global model: by default `result.model` if set, else the weighted mean of the updates."""
        if result.model is not None:
            return result.model
        names = round.clients
        return round.average(round.models(names), [result.aggregation_weights[name] for name in names])

    def message_for(self, state: State, model: StateDict, client: str) -> ServerMessage:
        """Return the message from which `client` starts its next round: by default the global model."""
        return ServerMessage(model)


AnyRule = Rule[Any]
