"""Match the tensors of a checkpoint to the model: names, shapes, dtypes and values.

- Arrays without names (`arr_0`, `arr_1`, ...) follow the order of the model's state dict, as Flower sends them.
- A library may save tensors under other names than in memory (`aliases`). A wrapper (DataParallel, Lightning,
  torch.compile) puts a prefix before all names.
- A tied tensor may be saved under one of its names only.
- With `base`, missing tensors are those of the global model: an adapter on a frozen backbone.
- float64 and half types are converted to float32; integers are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.text import quote
from celm.models.state_dict import StateDict, cast_like, describe_mismatch


@dataclass(frozen=True)
class MatchedState:
    """A state in the dtypes of the model, and warnings about the checkpoint."""

    state: StateDict
    warnings: tuple[str, ...] = ()


def match_state(
    tensors: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    ties: Mapping[str, tuple[str, ...]],
    aliases: Mapping[str, str],
    base: Mapping[str, Tensor] | None = None,
) -> MatchedState:
    """Return `tensors` as a state of the model; `base` supplies missing tensors of a partial checkpoint."""
    client_tensors = _rename(tensors, reference, aliases)
    complete = _fill_tied(client_tensors, ties)
    if base is not None and any(name in reference for name in client_tensors):
        complete = {**{name: tensor for name, tensor in base.items() if name not in complete}, **complete}
    reason = describe_mismatch(complete, reference) or _tie_error(complete, ties) or _zero_error(complete)
    if reason is not None:
        raise CelmError(reason)
    return MatchedState(cast_like(complete, reference), tuple(_warnings_for(client_tensors, reference)))


def check_fit(
    tensors: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    ties: Mapping[str, tuple[str, ...]],
    aliases: Mapping[str, str],
) -> None:
    """Refuse `tensors` that do not fit a model, of which only names, shapes and dtypes are used."""
    reason = describe_mismatch(_fill_tied(_rename(tensors, reference, aliases), ties), reference)
    if reason is not None:
        raise CelmError(f"the global model does not fit it: {reason}")


def _rename(
    tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor], aliases: Mapping[str, str]
) -> Mapping[str, Tensor]:
    """Return tensors of a file by their names in the model."""
    names = match_names(tensors, reference, aliases)
    return _name_positional_arrays({names[name]: tensor for name, tensor in tensors.items()}, reference)


def match_names(
    names: Collection[str], reference: Collection[str], aliases: Mapping[str, str]
) -> dict[str, str]:
    """Return the model's name of each tensor in a file or message; unknown names stay as they are.

    A prefix is removed if all names have it and the model has none of these names. If two names would become one,
    no alias is applied: a check of the names then refuses one of them.

    >>> match_names(["module.a.weight", "module.b"], ["a.default.weight", "b"], {"a.weight": "a.default.weight"})
    {'module.a.weight': 'a.default.weight', 'module.b': 'b'}
    """
    known = {**aliases, **{name: name for name in reference}}
    prefix = "" if any(name in known for name in names) else _wrapper_prefix(names, known)
    stripped = {name: name.removeprefix(prefix) for name in names}
    matched = {name: known.get(short, short) for name, short in stripped.items()}
    return matched if len(set(matched.values())) == len(matched) else stripped


def _wrapper_prefix(names: Collection[str], known: Collection[str]) -> str:
    """Return the prefix that a wrapper put before all names; empty if there is none."""
    first = min(names, default="")
    suffixes = [name for name in known if first.endswith(f".{name}")]
    prefix = first.removesuffix(max(suffixes, key=len)) if suffixes else ""
    return prefix if all(name.startswith(prefix) for name in names) else ""


def tied_names(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return, for each name of a tied tensor, all names of that tensor."""
    groups: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(name)
    return {name: tuple(names) for names in groups.values() if len(names) > 1 for name in names}


def _name_positional_arrays(
    tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Give the model's names to arrays that are numbered from 0."""
    numbered = [f"arr_{i}" for i in range(len(tensors))]
    if set(tensors) != set(numbered) or set(tensors) <= set(reference):
        return tensors
    if len(tensors) != len(reference):
        raise CelmError(f"{len(tensors)} arrays without names: the model has {len(reference)} tensors")
    return dict(zip(reference, (tensors[name] for name in numbered), strict=True))


def _fill_tied(tensors: Mapping[str, Tensor], ties: Mapping[str, tuple[str, ...]]) -> dict[str, Tensor]:
    complete = dict(tensors)
    for name, names in ties.items():
        present = [other for other in names if other in tensors]
        if name not in complete and present:
            complete[name] = tensors[present[0]]
    return complete


def _tie_error(state: Mapping[str, Tensor], ties: Mapping[str, tuple[str, ...]]) -> str | None:
    for name, names in ties.items():
        if not bool((state[name] == state[names[0]]).all()):
            return f"tensors {quote(names[0])} and {quote(name)} differ: the model ties them"
    return None


def _zero_error(state: Mapping[str, Tensor]) -> str | None:
    floating = [tensor for tensor in state.values() if tensor.is_floating_point()]
    return None if any(bool(tensor.any()) for tensor in floating) else "all values of all tensors are zero"


def _warnings_for(tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> list[str]:
    """Return warnings about a checkpoint that is accepted."""
    warnings = []
    matching = {name: tensors[name] for name in reference if name in tensors}
    converted = [name for name, tensor in matching.items() if tensor.dtype != reference[name].dtype]
    if converted:
        file_dtype, model_dtype = (
            str(state[converted[0]].dtype).removeprefix("torch.") for state in (matching, reference)
        )
        others = f" and {len(converted) - 1} others" if len(converted) > 1 else ""
        warnings.append(f"tensor {quote(converted[0])}{others}: {file_dtype}, read as {model_dtype}")
    if len(matching) < len(reference):
        warnings.append(
            f"{len(matching)} of {len(reference)} tensors in the file; the others are tied or the global model's"
        )
    zero = [name for name, tensor in matching.items() if tensor.ndim > 1 and not bool(tensor.any())]
    if zero and bool(reference[zero[0]].any()):
        warnings.append(f"tensor {quote(zero[0])} is zero, unlike in the global model")
    return warnings
