"""Head evidence: which classes a client trained on, from the change of its last layer, without a probe.

Notation, for client i, class c and feature d of a head with K rows W_c and biases b_c:

    G_ic, g_ic  = changes of W_c and b_c in the round, minus their mean over classes
    s_i         = Σ_c of the changes before that mean is removed, one number for each of the D columns of [W b]
    σ_i²        = ||s_i||² / (K D)                                    noise level (`HeadChanges.noise`)

Why it works. A step of cross-entropy changes W_c by η Σ (y_c - p_c) h and b_c by η Σ (y_c - p_c), summed over samples
with label y, probabilities p and features h. For a class that the client does not hold, y_c = 0. So b_c falls, and
W_c changes by a mean of the client's features times that fall. Attacks on gradients use the same fact to infer labels:
Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning (LLG), PoPETs 2022. So these claims tell
the server more about label proportions than a probe does.

Claims f_ic = q_ic / Σ_c q_ic sum to 1 for each client, so a larger update claims no more. They come in three forms:

    ball        m_i  = Σ G_ic / Σ g_ic over classes with g_ic < 0                     mean features
                q_ic = max(0, g_ic + r_ic / ||m_i||)
                r_ic² = ||G_ic - g_ic m_i||² - (1 - 1/K) σ_i² (D - 1 + ||m_i||²)     residual above the noise
    rows        q_ic = Σ_d max(0, G_icd - ε max |G_i|)                               ε for rounding
    inversion   q_ic = max(0, g_ic + T_i p_ic) if the ball form claims c, else 0
                p_ic = mean of the softmax of the head at m_i, on the line from the delivered to the trained head
                T_i  = Σ_c -g_ic / Σ_c p_ic over classes without a claim; max_c -g_ic / p_ic if there are none

- `ball` needs a bias, and takes features of any sign. Classes that are not held have claim 0 as long as their mean
  features are within ||m_i|| of m_i. With two classes, only the one that rises is claimed.
- `rows` needs no bias, but features that are not negative, as after ReLU. A class that is not held has G_ic <= 0 then.
- `inversion` is for the first round of a federation with ten clients or more. T_i estimates learning rate times steps.
- Signed features without a bias are refused: no form tells classes apart there.

**Noise.** Honest changes by cross-entropy and SGD have s = 0 up to rounding, because y - p sums to 0. Independent noise
on the update does not, so s gives its level. Adam, weight decay and objectives that scale logits also give s ≠ 0. The
residual is then too small, and `ball` tends to max(0, g_ic). A liar can make s = 0. Noise alone still has claims, so
use an idle check (celm.core.idle_detection) beside this evidence.

**Agreement** is optional. It lowers claims on a class whose row moved otherwise than those of other clients that claim
the class:

    δ_ic = G_ic without its components along the delivered row W_c and along the mean over clients of
           Σ_c max(0, -G_ic), each of norm 1
    v_ic = (a + Σ_j≠i f_jc max(0, cos(δ_ic, δ_jc))) / (a + Σ_j≠i f_jc),    0 if f_ic < 0.001
    Q    = v^γ f

In the first round nobody knows the directions of others. A client that is alone with a class has v = 1. The gate
also lowers honest claims if clients hold different kinds of samples, and two clients that collude pass it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.core.arguments import as_models, as_tensor

Model = nn.Module | Mapping[str, Tensor]
"""A module, or its state dict."""
HeadForm = Literal["ball", "rows", "inversion"]

_ROUNDING = 1e-5
"""ε: changes of a row below this fraction of the largest one count as rounding."""
_MIN_CLAIM = 1e-3
"""Smallest claim that is compared with those of other clients."""
_AGREEMENT_PRIOR = 0.1
"""a: the weight of full agreement before other clients are seen."""
_PATH_POINTS = 33
"""Points on the line from the delivered to the trained head."""
NOISE_INPUTS = 64
"""Noise inputs by which the sign of features is checked."""
_CALIBRATED_HINT = "use calibrated evidence"


@dataclass(frozen=True)
class HeadChanges:
    """Changes of N heads with K classes and d features, in float64; a head that is not finite has change 0."""

    weight: Tensor
    """G `[N, K, d]`"""
    bias: Tensor | None
    """g `[N, K]`; None without a bias, or if no client changed it."""
    noise: Tensor
    """σ `[N]`"""

    @classmethod
    def between(
        cls,
        delivered_weight: Tensor,
        trained_weight: Tensor,
        delivered_bias: Tensor | None = None,
        trained_bias: Tensor | None = None,
    ) -> HeadChanges:
        """Return the changes from delivered to trained weights `[N, K, d]` and biases `[N, K]`.

        >>> changes = HeadChanges.between(torch.zeros(1, 2, 2), torch.tensor([[[3.0, 2.0], [1.0, -2.0]]]))
        >>> changes.weight.tolist(), changes.noise.tolist()
        ([[[1.0, 2.0], [-1.0, -2.0]]], [2.0])
        """
        change = trained_weight.double() - delivered_weight.double()
        if delivered_bias is not None and trained_bias is not None:
            bias_change = trained_bias.double() - delivered_bias.double()
            change = torch.cat([change, bias_change[..., None]], dim=2)
        change = torch.where(change.isfinite().all(dim=(1, 2), keepdim=True), change, 0.0)
        classes, columns = change.shape[1:]
        noise = change.sum(dim=1).norm(dim=1) / math.sqrt(classes * columns)
        centred = change - change.mean(dim=1, keepdim=True)
        if columns == delivered_weight.shape[2]:
            return cls(centred, None, noise)
        has_bias = bool(change[:, :, -1].any())
        return cls(centred[:, :, :-1], centred[:, :, -1] if has_bias else None, noise)


def ball_claims(changes: HeadChanges) -> Tensor:
    """Return f `[N, K]` of the form `ball`.

    >>> weight, bias = torch.tensor([[[2.0, 4.0], [-1.0, -2.0], [-1.0, -2.0]]]), torch.tensor([[2.0, -1.0, -1.0]])
    >>> ball_claims(HeadChanges.between(0 * weight, weight, 0 * bias, bias))
    tensor([[1., 0., 0.]], dtype=torch.float64)
    """
    G, g = changes.weight, _require_bias(changes)
    m = mean_features(changes)
    norm = m.norm(dim=1)
    noise = changes.noise.square() * (1 - 1 / G.shape[1]) * (G.shape[2] + norm.square())
    residual = (G - g[:, :, None] * m[:, None]).square().sum(dim=2)
    residual = (residual - noise[:, None]).clamp_min(0).sqrt()
    q = (g + residual / norm[:, None]).clamp_min(0)
    return _normalise(torch.where(norm[:, None] > 0, q, 0.0))


def row_claims(changes: HeadChanges) -> Tensor:
    """Return f `[N, K]` of the form `rows`.

    >>> weight = torch.tensor([[[2.0, 4.0], [-2.0, -4.0]]])
    >>> row_claims(HeadChanges.between(0 * weight, weight))
    tensor([[1., 0.]], dtype=torch.float64)
    """
    G = changes.weight
    threshold = _ROUNDING * G.abs().amax(dim=(1, 2), keepdim=True)
    return _normalise((G - threshold).clamp_min(0).sum(dim=2))


def inverted_claims(changes: HeadChanges, delivered_weight: Tensor, delivered_bias: Tensor) -> Tensor:
    """Return f `[N, K]` of the form `inversion`, from the delivered weights `[N, K, d]` and biases `[N, K]`."""
    G, g = changes.weight, _require_bias(changes)
    claimed, m = ball_claims(changes) > 0, mean_features(changes)
    start = torch.einsum("nkd,nd->nk", delivered_weight.double(), m) + delivered_bias.double()
    step = torch.einsum("nkd,nd->nk", G, m) + g
    path = torch.linspace(0, 1, _PATH_POINTS, dtype=torch.float64, device=g.device)[:, None, None]
    p = torch.softmax(start + path * step, dim=2).mean(dim=0)
    absent = ~claimed
    tiny = torch.finfo(torch.float64).tiny
    from_absent = (-g * absent).sum(dim=1) / (p * absent).sum(dim=1).clamp_min(tiny)
    lower_bound = (-g / p.clamp_min(tiny)).amax(dim=1)
    T = torch.where(absent.any(dim=1), from_absent, lower_bound)
    q = (g + T[:, None] * p).clamp_min(0)
    return _normalise(torch.where(claimed, q, 0.0))


def mean_features(changes: HeadChanges) -> Tensor:
    """Return m `[N, d]`, the mean features of the clients; 0 for a client without changes of the bias."""
    falls = _require_bias(changes) < 0
    total = torch.where(falls, _require_bias(changes), 0.0).sum(dim=1, keepdim=True)
    sums = torch.where(falls[:, :, None], changes.weight, 0.0).sum(dim=1)
    return torch.where(total < 0, sums / torch.where(total < 0, total, 1.0), 0.0)


def peer_agreement(changes: HeadChanges, claims: Tensor, delivered_weight: Tensor) -> Tensor:
    """Return v `[N, K]` from the changes, the claims f `[N, K]` and the delivered weights `[N, K, d]` of a round."""
    G, f = changes.weight, claims.double()
    falls = (-G).clamp_min(0).sum(dim=1)
    common = _unit(_unit(falls).mean(dim=0)).expand_as(G)
    own = _unit(delivered_weight.double())
    common = _unit(_without(common, own))
    directions = _unit(_without(_without(G, own), common))
    cosines = torch.einsum("ikd,jkd->ijk", directions, directions).clamp_min(0)
    peers = 1 - torch.eye(len(G), dtype=torch.float64, device=G.device)
    agreed = torch.einsum("ij,jk,ijk->ik", peers, f, cosines)
    v = (_AGREEMENT_PRIOR + agreed) / (_AGREEMENT_PRIOR + peers @ f)
    return torch.where(f < _MIN_CLAIM, 0.0, v)


@torch.no_grad()
def head_evidence(
    delivered: Model | Sequence[Model],
    updates: Sequence[Model],
    *,
    head: str | None = None,
    features: Tensor | None = None,
    form: HeadForm | None = None,
    agreement: float = 0.0,
    exclude: Tensor | None = None,
) -> Tensor:
    """Return Q `[N, K]` in float64 from the change of the last layer in one round; rows sum to 1, or to 0.

    Over several rounds, average the results.

    Args:
        delivered: the model that all clients received, or the N models that they received.
        updates: the N models that they returned, as modules or state dicts.
        head: qualified name of the last layer; by default the layer of the last matrix named `weight`.
        features: inputs of the head `[n, d]` for some data or noise. A head without a bias needs them: they show
            whether features are never negative.
        form: `ball`, `rows` or `inversion`; by default `ball` if the head has a bias, else `rows`.
        agreement: γ, the exponent of the agreement between clients; 0 for none.
        exclude: mask `[N]` of clients that have no evidence.

    >>> before, after = nn.Linear(2, 3), nn.Linear(2, 3)
    >>> step = {"weight": torch.tensor([[2.0, 4], [-1, -2], [-1, -2]]), "bias": torch.tensor([2.0, -1, -1])}
    >>> _ = after.load_state_dict({name: value + step[name] for name, value in before.state_dict().items()})
    >>> head_evidence(before, [after, before]).round(decimals=3)
    tensor([[1., 0., 0.],
            [0., 0., 0.]], dtype=torch.float64)
    """
    trained = [_state(model) for model in as_models(updates, "updates")]
    given = [delivered] if isinstance(delivered, nn.Module | Mapping) else as_models(delivered, "delivered")
    sent = [_state(model) for model in given]
    features = None if features is None else as_tensor(features, "features")
    exclude = None if exclude is None else as_tensor(exclude, "exclude").bool()
    if not trained or len(sent) not in (1, len(trained)):
        raise CelmError(
            f"{len(sent)} delivered models for {len(trained)} updates", "pass one, or one for each"
        )
    if not (isinstance(agreement, int | float) and math.isfinite(agreement) and agreement >= 0):
        raise CelmError(f"agreement must be a number of at least 0, not {agreement!r:.80}")
    if exclude is not None and exclude.shape != (len(trained),):
        raise CelmError(f"exclude must be a mask of {len(trained)} clients, not {list(exclude.shape)}")
    sent = sent * len(trained) if len(sent) == 1 else sent
    prefix = _head_prefix(sent[0], head)
    weights = _stack_both(prefix + "weight", sent, trained)
    biases = _stack_both(prefix + "bias", sent, trained) if prefix + "bias" in sent[0] else None
    if biases is not None:
        biases = biases[0].squeeze(2), biases[1].squeeze(2)
    changes = HeadChanges.between(*weights, *(biases or ()))
    chosen = choose_form(biases is not None and bool((biases[0] != biases[1]).any()), features, form)
    if chosen == "rows":
        claims = row_claims(changes)
    elif changes.bias is None:  # no client has a finite update that changes the bias
        claims = torch.zeros_like(changes.weight[..., 0])
    elif chosen == "inversion" and biases is not None:
        claims = inverted_claims(changes, weights[0], biases[0])
    else:
        claims = ball_claims(changes)
    if exclude is not None:
        claims = torch.where(exclude.to(claims.device)[:, None], 0.0, claims)
    if agreement:
        claims = claims * peer_agreement(changes, claims, weights[0]) ** agreement
    return claims


def choose_form(has_bias: bool, features: Tensor | None, form: HeadForm | None = None) -> HeadForm:
    """Return the form that a head allows, or raise CelmError if it allows none, or not the given one.

    >>> choose_form(True, None), choose_form(False, torch.ones(4, 2))
    ('ball', 'rows')
    """
    if form not in (None, "ball", "rows", "inversion"):
        raise CelmError(f"form: unknown form '{form}'", "one of: ball, inversion, rows")
    if has_bias and form != "rows":
        return form or "ball"
    if form in ("ball", "inversion"):
        raise CelmError(f"form={form}: the last layer has no bias that training changes", _CALIBRATED_HINT)
    if features is None:
        subject = "form=rows" if has_bias else "the last layer has no bias that training changes"
        raise CelmError(
            f"{subject}: the sign of its features is not known", f"pass features, or {_CALIBRATED_HINT}"
        )
    if not bool((features >= 0).all()):
        subject = "form=rows" if has_bias else "the last layer has no bias that training changes"
        hint = "use form=ball" if has_bias else _CALIBRATED_HINT
        raise CelmError(f"{subject}: its features can be negative, so head evidence is not defined", hint)
    return "rows"


def _state(model: object) -> Mapping[str, Tensor]:
    """Return the state dict of a model."""
    if isinstance(model, nn.Module):
        state: Mapping[str, Tensor] = model.state_dict()
        return state
    if not isinstance(model, Mapping):
        raise CelmError(f"a model must be a module or a state dict, not {type(model).__name__}")
    return model


def _head_prefix(state: Mapping[str, Tensor], head: str | None) -> str:
    """Return the prefix of the head's keys: `head.`, or an empty one for a model that is itself its head."""
    if head is None:
        matrices = [
            name for name, tensor in state.items() if name.split(".")[-1] == "weight" and tensor.ndim == 2
        ]
        if not matrices:
            raise CelmError(
                "the model has no matrix named 'weight'", "set head to the name of its last layer"
            )
        return matrices[-1].removesuffix("weight")
    prefix = f"{head}." if head else ""
    if prefix + "weight" not in state:
        raise CelmError(f"head: the model has no tensor '{prefix}weight'")
    return prefix


def _stack_both(
    name: str, sent: Sequence[Mapping[str, Tensor]], trained: Sequence[Mapping[str, Tensor]]
) -> tuple[Tensor, Tensor]:
    return _stack(name, sent, sent[0][name]), _stack(name, trained, sent[0][name])


def _stack(name: str, states: Sequence[Mapping[str, Tensor]], like: Tensor) -> Tensor:
    """Return the tensor of all states as `[N, K, d]`, on the device of `like`; a bias has d = 1."""
    for state in states:
        if name not in state or state[name].shape != like.shape:
            shape = list(state[name].shape) if name in state else "missing"
            raise CelmError(f"tensor '{name}' of a model is {shape}, not {list(like.shape)}")
    if like.ndim == 0 or like.shape[0] < 2:
        raise CelmError(
            f"head: tensor '{name}' is {list(like.shape)}, not one row for each of several classes"
        )
    return torch.stack([state[name].detach().to(like.device).reshape(len(like), -1) for state in states])


def _require_bias(changes: HeadChanges) -> Tensor:
    if changes.bias is None:
        raise CelmError("the last layer has no bias that training changes", _CALIBRATED_HINT)
    return changes.bias


def _normalise(q: Tensor) -> Tensor:
    """Return f `[N, K]`; 0 for a client without q."""
    total = q.sum(dim=1, keepdim=True)
    return torch.where(total > 0, q / torch.where(total > 0, total, 1.0), 0.0)


def _unit(vectors: Tensor) -> Tensor:
    """Return vectors of norm 1; a zero vector stays 0."""
    norm = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.where(norm > 0, norm, 1.0)


def _without(vectors: Tensor, unit_vectors: Tensor) -> Tensor:
    """Remove from vectors their components along unit vectors."""
    return vectors - (vectors * unit_vectors).sum(dim=-1, keepdim=True) * unit_vectors
