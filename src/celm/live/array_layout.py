"""Map the named arrays of a message to the tensors of a model.

The names are those of the initial arrays, matched by name, else by order and shape. A client may reply with the same
names, or with other names in the same order. The arrays of a partial model are matched by name only, because adapters
of different layers have equal shapes. Replies are untrusted: subclasses check an array before they decode it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from torch import Tensor

from celm.base.errors import CelmError
from celm.base.text import quote as quote_name
from celm.models.state_dict import StateDict, cast_like, describe_mismatch
from celm.models.state_matching import match_names

ArrayType = TypeVar("ArrayType")
"""The type that a framework has for arrays."""


class InvalidReplyError(Exception):
    """A reply cannot be used; the message is bounded and escaped."""


@dataclass(frozen=True)
class ArrayLayout(ABC, Generic[ArrayType]):
    names: tuple[str, ...]
    """Array names, in the order of `reference`."""
    reference: StateDict
    """Names, shapes and dtypes that a model must have."""
    aliases: Mapping[str, str] | None = None
    """Other name of a tensor to its name in `reference`, if the model is partial. None for a complete model."""

    @abstractmethod
    def check_array(self, name: str, array: ArrayType, expected: Tensor) -> None:
        """Check an array before it is decoded; raise `InvalidReplyError` if it cannot be like `expected`."""

    @abstractmethod
    def decode_array(self, name: str, array: ArrayType) -> Tensor:
        """Return an array as a tensor; raise `InvalidReplyError` if it is not one."""

    @classmethod
    def from_initial_arrays(cls, record: Mapping[str, ArrayType], reference: StateDict) -> Self:
        """Build the layout of a complete model from the initial arrays, which must fit the model."""
        if set(record) == set(reference):
            layout = cls(tuple(reference), reference)
        elif len(record) == len(reference):
            layout = cls(tuple(record), reference)
        else:
            raise CelmError(
                f"initial arrays: {len(record)}, but the model has {len(reference)} tensors",
                "pass the whole model.state_dict(), buffers included; set partial=True if clients send a part of it",
            )
        return layout._check_initial_arrays(record)

    @classmethod
    def from_partial_arrays(
        cls,
        record: Mapping[str, ArrayType],
        reference: StateDict,
        aliases: Mapping[str, str],
        ties: Mapping[str, tuple[str, ...]],
    ) -> Self:
        """Build the layout of a partial model from the initial arrays, each of which must name a tensor.

        `ties` are all names of each tied tensor. If only later names are sent, the tensor is used under its first one.
        """
        tensor_of = match_names(record, reference, aliases)
        for name, tensor in tensor_of.items():
            if tensor not in reference:
                raise CelmError(
                    f"initial arrays: the model has no tensor {quote_name(name)}",
                    "names are those of model.state_dict(), or of peft's get_peft_model_state_dict(model)",
                )
        if not tensor_of:
            raise CelmError("initial arrays: there are none")
        sent = set(tensor_of.values())
        tied_aliases: dict[str, str] = {}
        for name, tensor in tensor_of.items():
            first = ties.get(tensor, (tensor,))[0]
            if first not in sent:
                tensor_of[name] = tied_aliases[tensor] = first
                sent.add(first)
        name_of = {tensor: name for name, tensor in tensor_of.items()}
        exchanged = {tensor: value for tensor, value in reference.items() if tensor in name_of}
        own_aliases = {
            alias: tensor for alias, tensor in {**aliases, **tied_aliases}.items() if tensor in exchanged
        }
        layout = cls(tuple(name_of[tensor] for tensor in exchanged), exchanged, own_aliases)
        return layout._check_initial_arrays(record)

    def _check_initial_arrays(self, record: Mapping[str, ArrayType]) -> Self:
        try:
            self.decode_state(record)
        except InvalidReplyError as invalid_reply:
            raise CelmError(f"initial arrays do not fit the model: {invalid_reply}") from invalid_reply
        return self

    @property
    def num_bytes(self) -> int:
        """Return the bytes of a decoded model."""
        return sum(tensor.nbytes for tensor in self.reference.values())

    def decode_state(self, record: Mapping[str, ArrayType]) -> StateDict:
        """Return the model in a record; raise `InvalidReplyError` if it is not one."""
        arrays = self._match_arrays(record)
        for (name, array), expected in zip(arrays, self.reference.values(), strict=True):
            self.check_array(name, array, expected)
        tensors = [self.decode_array(name, array) for name, array in arrays]
        state = dict(zip(self.reference, tensors, strict=True))
        reason = describe_mismatch(state, self.reference)
        if reason is not None:
            raise InvalidReplyError(reason)
        return cast_like(state, self.reference)

    def _match_arrays(self, record: Mapping[str, ArrayType]) -> list[tuple[str, ArrayType]]:
        """Return names and arrays in the order of the model: by name if the names are ours, else as received."""
        if self.aliases is not None and len(record) == len(self.names):
            return self._match_by_name(record, self.aliases)
        missing = [name for name in self.names if name not in record]
        if len(record) == len(self.names):
            return [(name, record[name]) for name in (self.names if not missing else record)]
        extra = next((name for name in record if name not in self.names), None)
        some_names_match = len(missing) < len(self.names)
        if some_names_match and missing and len(record) < len(self.names):
            raise InvalidReplyError(f"array {quote_name(missing[0])} is missing")
        if some_names_match and not missing:
            raise InvalidReplyError(f"unexpected array {quote_name(extra)}")
        raise InvalidReplyError(f"expected {len(self.names)} arrays, got {len(record)}")

    def _match_by_name(
        self, record: Mapping[str, ArrayType], aliases: Mapping[str, str]
    ) -> list[tuple[str, ArrayType]]:
        """Return names and arrays of a partial model, which may have any of its names but no others."""
        tensor_of = match_names(
            record, self.reference, {**aliases, **dict(zip(self.names, self.reference, strict=True))}
        )
        name_of = {tensor: name for name, tensor in tensor_of.items()}
        for name, tensor in zip(self.names, self.reference, strict=True):
            if tensor not in name_of:
                extra = next(other for other, matched in tensor_of.items() if matched not in self.reference)
                raise InvalidReplyError(
                    f"array {quote_name(name)} is missing; unexpected array {quote_name(extra)}"
                )
        return [(name_of[tensor], record[name_of[tensor]]) for tensor in self.reference]


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as text of bounded length."""
    return str(shape) if len(shape) <= 8 else f"of {len(shape)} dimensions"
