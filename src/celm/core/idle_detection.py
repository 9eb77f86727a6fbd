"""Idle detection: how far training moved a client's model, at the inputs that the global model knows best.

    x_c     the global model's probe inputs, one for each class
    ŝ       logits in units of their spread on noise (celm.core.calibration), minus their mean over classes
    v_i     the model that client i received;  w_i  the model that it returned
    δ_i     the client's own update of a weight tensor (celm.core.own_update); biases and gains of normalisation do not
            count
    ρ_i     = min(10, median_j ||δ_j|| / ||δ_i||)

    m_i     = rms over x_c and classes of  ŝ(x_c; w_i) - ŝ(x_c; v_i)          change of the logits
    n_i     = the same with v_i + ρ_i δ_i (biases, buffers of v_i) for w_i    change by the client's own update
    d_i     = min(10 m_i / median_j m_j,  n_i / median_j n_j)                 relative movement
    idle    if d_i < ω

If a median is 0, the median of the values above 0 replaces it.

A client that does not train has only the models that it received, and noise:

- A copy of a received model, with rows or layers scaled, has d = 0. So has a copy that is moved along recent changes
  of the global model.
- The same function written in other weights has m = 0.
- Noise is spread over all weights, so it moves these logits less than training does. Its size does not count, by ρ.
  How much less it moves them depends on the progress of training.

An update of at least a tenth of the median size counts in full, since some clients have few samples. A single client
cannot be compared, nor can clients of which none moved: d is NaN and no client is idle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from celm.core.batched_forward import make_forward
from celm.core.calibration import MIN_DIVISOR, NUM_NOISE, calibrate, shared_noise
from celm.core.model_stack import ModelStack
from celm.core.own_update import OwnUpdates
from celm.core.probe import eval_without_grad, models_per_batch

_ModelState = Mapping[str, Tensor]

_MAX_RESCALE = 10
"""An update may be this many times smaller than the median and still count in full."""
IDLE_THRESHOLD = 0.22
"""ω. Measured on FashionMNIST over splits and rounds: d of honest clients is at least 0.29, and 0.4 except on one
split. After the warm-up, d of copies with any noise is at most 0.18 if clients differ, and 0.25 if they are alike. In
the first rounds it is up to 0.6."""


@torch.no_grad()
def relative_movement(
    delivered: ModelStack,
    trained: ModelStack,
    inputs: Tensor,
    seed: int,
    global_history: Sequence[_ModelState] = (),
    batch_size: int | None = None,
    num_noise: int = NUM_NOISE,
) -> Tensor:
    """Return d `[N]` in float64 from the delivered and the trained models of N clients.

    Args:
        delivered: the models v_i that the clients received.
        trained: the models w_i that they returned. States may be a sequence that reads each state on access.
        inputs: the global model's probe inputs `[K, *shape]`.
        seed: seed of the noise for calibration.
        global_history: states of the global model, the present one last.
        batch_size: the number of clients whose models are in memory at a time; by default as for the probe.
        num_noise: the number of noise inputs for calibration.
    """
    size = batch_size or models_per_batch(delivered)
    batches = [slice(first, first + size) for first in range(0, len(trained), size)]
    compute_own_updates = OwnUpdates(global_history)
    updates: dict[str, Tensor] = {}
    norms = []
    for batch in batches:
        updates = _own_updates(delivered[batch], trained[batch], compute_own_updates)
        norms.append({name: _tensor_norms(update) for name, update in updates.items()})
    median_norms = {name: _median_of_nonzero(torch.cat([part[name] for part in norms])) for name in norms[0]}
    noise = shared_noise(seed, 1, tuple(inputs.shape[1:]), num_noise)[0]
    changes = []
    for batch, batch_norms in zip(batches, norms, strict=True):
        if len(batches) > 1:  # a single batch still has its updates
            updates = _own_updates(delivered[batch], trained[batch], compute_own_updates)
        own_models = _models_with_own_updates(delivered[batch].states, updates, batch_norms, median_norms)
        changes.append(_logit_changes(delivered[batch], trained[batch], own_models, inputs, noise))
    total_changes, own_changes = (torch.cat(parts) for parts in zip(*changes, strict=True))
    return torch.minimum(
        _MAX_RESCALE * relative_to_median(total_changes),
        relative_to_median(own_changes),
    )


def _own_updates(delivered: ModelStack, trained: ModelStack, compute: OwnUpdates) -> dict[str, Tensor]:
    """Return δ_i `[B, *shape]` of each weight tensor."""
    return {
        name: compute(name, _tensors(delivered.states, name), _tensors(trained.states, name))
        for name in _matrix_names(delivered)
    }


def _tensors(states: Sequence[_ModelState], name: str) -> list[Tensor]:
    return [state[name] for state in states]


def _logit_changes(
    delivered: ModelStack,
    trained: ModelStack,
    own_models: Sequence[_ModelState],
    inputs: Tensor,
    noise: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return m and n of a batch of clients, `[B]` each."""
    is_shared = all(state is delivered.states[0] for state in delivered.states)
    initial_models = delivered.states[:1] if is_shared else delivered.states
    stack = replace(trained, states=[*initial_models, *trained.states, *own_models])
    logits = _centred_logits(stack, inputs, noise)
    initial, *final = torch.split(logits, [len(initial_models), len(trained), len(trained)])
    m, n = ((returned - initial).square().mean(dim=(1, 2)).sqrt() for returned in final)
    return m, n


def _matrix_names(stack: ModelStack) -> list[str]:
    """Return the names of the weight tensors that count: parameters of at least two dimensions."""
    names = [name for name, _ in stack.module.named_parameters(remove_duplicate=False)]
    return [name for name in names if name in stack.states[0] and stack.states[0][name].ndim > 1]


def _models_with_own_updates(
    delivered: Sequence[_ModelState],
    own_updates: Mapping[str, Tensor],
    norms: Mapping[str, Tensor],
    median_norms: Mapping[str, float],
) -> list[_ModelState]:
    """Return v + ρ δ of each client: the delivered model plus the client's own update, scaled to the median norm.

    The updates are overwritten.
    """
    models = [dict(state) for state in delivered]
    for name, median_norm in median_norms.items():
        factors = (median_norm / norms[name].clamp_min(MIN_DIVISOR)).clamp_max(_MAX_RESCALE)
        for model, update, factor in zip(models, own_updates[name], factors.tolist(), strict=True):
            v = model[name]
            model[name] = update.mul_(factor).add_(v.cpu()).to(v)
    return list(models)


def _centred_logits(stack: ModelStack, inputs: Tensor, noise: Tensor) -> Tensor:
    """Return ŝ `[M, K, K]` in float64; NaN for degenerate models (`Calibration.is_degenerate`)."""
    device = next(iter(stack.states[0].values())).device
    inputs, noise = inputs.to(device), noise.to(device)
    with eval_without_grad(stack.module):
        forward = make_forward(stack, tuple(inputs.shape[1:]))
        calibration = calibrate(forward, noise.expand(len(stack), *noise.shape))
        forward = calibration.wrap(forward)
        logits = forward(inputs.expand(len(stack), *inputs.shape)).cpu().double()
    logits = logits - logits.mean(dim=2, keepdim=True)
    return logits.masked_fill(calibration.is_degenerate.cpu()[:, None, None], math.nan)


def relative_to_median(values: Tensor) -> Tensor:
    """Return values in units of their median; 0 if not finite, NaN if there is nothing to compare with.

    If the median is 0, the median of the values above 0 replaces it.

    >>> relative_to_median(torch.tensor([0.0, 0.0, 0.0, 2.0, 2.0])), relative_to_median(torch.tensor([3.0]))
    (tensor([0., 0., 0., 1., 1.]), tensor([nan]))
    """
    median_value = _median_of_nonzero(values)
    if not median_value or len(values) < 2:
        return torch.full_like(values, math.nan)
    return (values / median_value).nan_to_num().where(values.isfinite(), 0.0)


def _median_of_nonzero(values: Tensor) -> float:
    """Return the median of the finite values; if it is 0, the median of those above 0."""
    return median(values) or median(values[values > 0])


def median(values: Tensor) -> float:
    """Return the median of the finite values, or 0; of an even number, the mean of the middle two.

    If it were the lower one of the two, neither of two clients could be idle.
    """
    finite = values[values.isfinite()]
    return finite.quantile(0.5).item() if len(finite) else 0.0


def _tensor_norms(tensors: Tensor) -> Tensor:
    """Return the norm of each of `[B, *shape]` in float64, in which no square of a float32 number overflows."""
    norms: Tensor = torch.linalg.vector_norm(tensors.flatten(1), dim=1, dtype=torch.float64)
    return norms


def is_idle(movement_values: Tensor) -> Tensor:
    """Return a mask `[N]` of idle clients from their relative movement d.

    >>> is_idle(torch.tensor([1.0, 0.1, 2.0]))
    tensor([False,  True, False])
    """
    return movement_values < IDLE_THRESHOLD
