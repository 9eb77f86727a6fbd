"""Validate the results of a round. A bad result excludes its site and never stops the round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from nvflare.apis.dxo import MetaKey
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from celm.base.text import quote as quote_name
from celm.live.array_layout import InvalidReplyError
from celm.live.client_metrics import Metrics
from celm.live.client_replies import ClientReplies, parse_count
from celm.live.logger import log
from celm.models.state_dict import StateDict, describe_mismatch
from celm.nvflare.tensor_layout import TensorLayout
from celm.rules.messages import ClientUpdate, ServerMessage

NUM_STEPS = str(MetaKey.NUM_STEPS_CURRENT_ROUND)
"""What a site reports as its number of local steps. NVFlare's FedAvg uses it as the size of the site."""


@dataclass(frozen=True)
class ValidatedResults(ClientReplies):
    metrics: Mapping[str, Metrics | str] = field(default_factory=dict)
    """Client to the metrics that it reports for the model that it was sent; a text says why it has none."""


def validate_results(
    results: Mapping[str, Shareable | str],
    messages: Mapping[str, ServerMessage],
    layout: TensorLayout,
    unexpected: Sequence[str],
) -> ValidatedResults:
    """Parse the result of each client. A text in place of a result says why there is none."""
    updates: dict[str, ClientUpdate] = {}
    excluded: dict[str, str] = {}
    metrics: dict[str, Metrics | str] = {}
    for client, message in messages.items():
        try:
            model = read_result(results[client])
            updates[client] = parse_update(model, layout, message.model)
            metrics[client] = _reported_metrics(model)
        except InvalidReplyError as invalid_reply:
            excluded[client] = str(invalid_reply)
        except Exception as error:  # unforeseen; the log has the traceback
            log(WARNING, "the result of %s cannot be read", client, exc_info=error)
            excluded[client] = f"cannot be read ({type(error).__name__})"
    return ValidatedResults(updates, excluded, list(unexpected), metrics)


def read_result(result: Shareable | str) -> FLModel:
    """Return the content of a result; raise `InvalidReplyError` if there is none."""
    if isinstance(result, str):
        raise InvalidReplyError(result)
    code = result.get_return_code()
    if code != ReturnCode.OK:
        raise InvalidReplyError(f"its task failed: {quote_name(str(code), 60)}")
    try:
        return FLModelUtils.from_shareable(result)
    except Exception as error:  # the content comes from a site, and NVFlare raises any type of error
        raise InvalidReplyError(f"cannot be read ({type(error).__name__})") from error


def parse_update(model: FLModel, layout: TensorLayout, sent: StateDict) -> ClientUpdate:
    """Return the update in a result; raise `InvalidReplyError` if it is not usable.

    A difference (`ParamsType.DIFF`) is added to the model that the client was sent.
    """
    if not isinstance(model.params, Mapping) or not model.params:
        raise InvalidReplyError(
            "no arrays in its result (NVFlare's PyTorch converter drops numpy arrays: send tensors)"
        )
    state = layout.decode_state(model.params)
    if model.params_type == ParamsType.DIFF:
        state = {name: sent[name] + difference.to(sent[name]) for name, difference in state.items()}
        reason = describe_mismatch(state, layout.reference)
        if reason is not None:
            raise InvalidReplyError(reason)
    count = parse_count(model.meta.get(NUM_STEPS), 0, "local steps")
    return ClientUpdate(state, max(1, count), count)


def _reported_metrics(model: FLModel) -> Metrics | str:
    """Return the metrics in a result, with the number of steps that they are weighted by."""
    if not model.metrics:
        return "no metrics in its result"
    steps: Any = model.meta.get(NUM_STEPS)
    return {**model.metrics, NUM_STEPS: steps} if steps is not None else model.metrics
