"""Do a file's tensors fit the model? Names, shapes, kinds and values, with what real checkpoints leave out.

- Arrays without names (`arr_0`, `arr_1`, ...) are in the order of the model's state dict, as Flower sends them.
- A library may save tensors under other names than it has in memory (`aliases`), a wrapper (DataParallel, Lightning,
  torch.compile) with a prefix before all of them.
- A tied tensor may be saved under one of its names only.
- With `partial`, tensors that are missing are those of the global model: an adapter on a frozen backbone.
- float64 and half types stand in for float32; integers do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.models.state import StateDict, conform, describe_mismatch, shown


@dataclass(frozen=True)
class Fitted:
    """A client's state, in the dtypes of the reference, and what is worth saying of it."""

    state: StateDict
    notes: tuple[str, ...] = ()


def fitted(
    tensors: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    ties: Mapping[str, tuple[str, ...]],
    aliases: Mapping[str, str],
    base: Mapping[str, Tensor] | None = None,
) -> Fitted:
    """`tensors` as a state of the model; `base` fills in for what is missing where that is allowed."""
    given = in_order_of(renamed(unwrapped(tensors, reference), reference, aliases), reference)
    complete = with_ties(given, ties)
    if base is not None and any(name in reference for name in given):
        complete = {**{name: tensor for name, tensor in base.items() if name not in complete}, **complete}
    reason = describe_mismatch(complete, reference) or torn_tie(complete, ties) or all_zero(complete)
    if reason is not None:
        raise CelmError(reason)
    return Fitted(conform(complete, reference), tuple(remarks(given, reference)))


def unwrapped(tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Without what stands before all names, where a wrapper put it there and the model itself does not have it."""
    first = min(tensors)
    ends = [name for name in reference if first.endswith(f".{name}")]
    if not ends or not reference.keys().isdisjoint(tensors):
        return tensors
    prefix = first.removesuffix(max(ends, key=len))
    if not all(name.startswith(prefix) for name in tensors):
        return tensors
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def renamed(
    tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor], aliases: Mapping[str, str]
) -> Mapping[str, Tensor]:
    """By the model's own names; a file that has a tensor under both is left to the check of names."""
    ours = {
        aliases.get(name, name) if name not in reference else name: tensor for name, tensor in tensors.items()
    }
    return ours if len(ours) == len(tensors) else tensors


def in_order_of(tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Arrays numbered from 0 by the model's own names."""
    numbered = [f"arr_{i}" for i in range(len(tensors))]
    if set(tensors) != set(numbered) or set(tensors) <= set(reference):
        return tensors
    if len(tensors) != len(reference):
        raise CelmError(f"holds {len(tensors)} arrays in order, but the model has {len(reference)} tensors")
    return dict(zip(reference, (tensors[name] for name in numbered), strict=True))


def ties_of(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Each name of a tensor that the module knows by several, to all of them."""
    groups: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(name)
    return {name: tuple(names) for names in groups.values() if len(names) > 1 for name in names}


def with_ties(tensors: Mapping[str, Tensor], ties: Mapping[str, tuple[str, ...]]) -> dict[str, Tensor]:
    complete = dict(tensors)
    for name, names in ties.items():
        known = [other for other in names if other in tensors]
        if name not in complete and known:
            complete[name] = tensors[known[0]]
    return complete


def torn_tie(state: Mapping[str, Tensor], ties: Mapping[str, tuple[str, ...]]) -> str | None:
    for name, names in ties.items():
        if not bool((state[name] == state[names[0]]).all()):
            return f"tensors {shown(names[0])} and {shown(name)} are one in the model, but differ"
    return None


def all_zero(state: Mapping[str, Tensor]) -> str | None:
    floating = [tensor for tensor in state.values() if tensor.is_floating_point()]
    return None if any(bool(tensor.any()) for tensor in floating) else "every value of every tensor is zero"


def remarks(given: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> list[str]:
    """What is accepted, but should be known."""
    told = []
    given = {name: given[name] for name in reference if name in given}
    other = [name for name, tensor in given.items() if tensor.dtype != reference[name].dtype]
    if other:
        theirs, ours = (str(of[other[0]].dtype).removeprefix("torch.") for of in (given, reference))
        more = f" and {len(other) - 1} others" if len(other) > 1 else ""
        told.append(f"tensor {shown(other[0])}{more}: {theirs}, read as {ours}")
    if len(given) < len(reference):
        told.append(f"holds {len(given)} of {len(reference)} tensors; the rest is tied or the global model's")
    zero = [name for name, tensor in given.items() if tensor.ndim > 1 and not bool(tensor.any())]
    if zero and bool(reference[zero[0]].any()):
        told.append(f"tensor {shown(zero[0])} is zero, unlike the global model's")
    return told
