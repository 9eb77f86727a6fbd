"""Head evidence of an audit: labels that are known, refusals, and what the result says of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import celm
from auditing.conftest import Uploads
from celm.base.errors import CelmError

CLASSES, WIDTH = 4, 6
HOLDINGS = {"a": [0, 1], "b": [2], "c": [1, 3]}


def network(bias: bool = True, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, WIDTH), activation(), nn.Linear(WIDTH, CLASSES, bias=bias))


def train(module: nn.Module, classes: list[int]) -> nn.Module:
    """Return a copy after ten steps of SGD on random inputs with labels of these classes."""
    trained = copy.deepcopy(module)
    inputs = torch.randn(40, 5, generator=torch.Generator().manual_seed(classes[0]))
    labels = torch.tensor(classes).repeat(40)[:40]
    optimiser = torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], lr=0.1)
    for _ in range(10):
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(trained(inputs), labels))
        optimiser.step()
    return trained


def audit(module: nn.Module | None, clients: dict[str, Any] | Path, **settings: Any) -> celm.Audit:
    defaults = {"classes": CLASSES, "input_shape": (5,), "probe": {"steps": 3}, "evidence": "head"}
    return celm.audit(module, clients, **defaults | settings)


def audit_rounds(folder: Path, **settings: Any) -> celm.Audit:
    """Audit a folder of rounds, each with its global model."""
    return audit(None, folder, model=network(), **settings)


def claimed(result: celm.Audit) -> dict[str, list[int]]:
    return {name: [k for k, q in enumerate(row) if q > 0] for name, row in result.evidence.items()}


@pytest.mark.parametrize("bias", [True, False], ids=["ball", "rows"])
def test_evidence_is_for_the_classes_that_a_client_trained_on(bias: bool) -> None:
    module = network(bias)
    clients = {name: train(module, classes) for name, classes in HOLDINGS.items()}
    result = audit(module, clients)
    assert claimed(result) == HOLDINGS
    assert [sum(row) for row in result.evidence.values()] == pytest.approx([1, 1, 1])
    assert set(result.probe_standard_errors.values()) == {None}
    features = torch.ones(1, 1)
    expected = celm.head_evidence(module, list(clients.values()), features=features)
    torch.testing.assert_close(torch.tensor(list(result.evidence.values())).double(), expected)
    assert "change of the client" in result.to_html()


def test_a_scaled_copy_trained_nothing() -> None:
    module = network()
    state = module.state_dict()
    copied = {name: 3 * tensor if name.startswith("2.") else tensor for name, tensor in state.items()}
    clients = {name: train(module, classes) for name, classes in HOLDINGS.items()}
    result = audit(module, {**clients, "d": copied})
    assert result.scores["d"] == 0
    assert "did not train" in result.flags["d"]


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU])
def test_signed_features_without_bias_are_refused(activation: type[nn.Module]) -> None:
    module = network(bias=False, activation=activation)
    with pytest.raises(CelmError, match=r"evidence=head.*negative") as refusal:
        audit(module, {"a": train(module, [1])})
    assert refusal.value.hint == "set evidence=calibrated"


def test_a_frozen_head_and_a_model_without_one_are_refused() -> None:
    module = network()
    module[2].requires_grad_(False)
    clients = {name: train(module, classes) for name, classes in HOLDINGS.items()}
    with pytest.raises(CelmError, match=r"no client changed the last layer '2'"):
        audit(module, clients)
    convolutional = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, CLASSES, 5), nn.Flatten())
    with pytest.raises(CelmError, match=r"evidence=head: the model has no linear layer with 4 outputs"):
        audit(convolutional, {"a": train(convolutional, [1])})
    with pytest.raises(CelmError, match="output=sigmoid: head evidence"):
        audit(module, clients, output="sigmoid")


def test_the_claims_of_several_rounds_are_averaged(tmp_path: Path) -> None:
    module = network()
    uploads: list[Tensor] = []
    for number, classes in enumerate(([0], [3]), start=1):
        folder = tmp_path / f"round-{number}"
        folder.mkdir()
        torch.save(module.state_dict(), folder / "global.pt")
        trained = train(module, classes)
        torch.save(trained.state_dict(), folder / "a.pt")
        uploads.append(celm.head_evidence(module, [trained])[0])
        module = trained
    result = audit_rounds(tmp_path)
    expected = (uploads[0] + uploads[1]) / 2
    torch.testing.assert_close(torch.tensor(result.evidence["a"]).double(), expected)


def test_scores_with_agreement_stand_beside_those_without(tmp_path: Path) -> None:
    module = network()
    clients = {name: train(module, classes) for name, classes in HOLDINGS.items()}
    plain, gated = audit(module, clients), audit(module, clients, agreement=2.0)
    assert plain.agreement_scores is None
    assert gated.scores == plain.scores
    Q = celm.head_evidence(module, list(clients.values()), agreement=2.0)
    assert gated.agreement_scores == pytest.approx(dict(zip(clients, celm.scores(Q).tolist(), strict=True)))
    assert gated.agreement_scores != pytest.approx(gated.scores)
    page = gated.to_html()
    assert "with agreement" in page
    assert "with agreement" not in plain.to_html()
    for score in (gated.agreement_scores or {}).values():
        assert f"{100 * score:.1f} %" in page
    with pytest.raises(CelmError, match="agreement: only head evidence") as refusal:
        audit(module, clients, agreement=2.0, evidence="calibrated")
    assert refusal.value.hint == "set evidence=head"


def test_agreement_is_that_of_the_first_round_of_a_client(tmp_path: Path) -> None:
    module, second = network(), network()
    first = {name: train(module, HOLDINGS[name]) for name in "ac"}
    models = [(module, first), (second, {name: train(second, HOLDINGS[name]) for name in "abc"})]
    for number, (start, clients) in enumerate(models, start=1):
        folder = tmp_path / f"round-{number}"
        folder.mkdir()
        for name, trained in {"global": start, **clients}.items():
            torch.save(trained.state_dict(), folder / f"{name}.pt")
    result = audit_rounds(tmp_path, agreement=1.0)
    claims = [celm.head_evidence(start, list(clients.values())) for start, clients in models]
    agreed = [celm.head_evidence(start, list(clients.values()), agreement=1.0) for start, clients in models]
    v = [
        torch.where(f > 0, with_v / f.clamp_min(1e-30), 0.0) for f, with_v in zip(claims, agreed, strict=True)
    ]
    of_a, of_c = ((claims[0][i] + claims[1][2 * i]) / 2 * v[0][i] for i in (0, 1))
    Q = torch.stack([of_a, claims[1][1] * v[1][1], of_c])
    expected = dict(zip("abc", celm.scores(Q).tolist(), strict=True))
    assert result.agreement_scores == pytest.approx(expected)


def test_the_command_says_what_it_assumes(uploads: Uploads, refused: Callable[..., str]) -> None:
    result = uploads.audit("--evidence", "head")
    assert result.exit_code == 0, result.output
    assert "started from the global model" in result.stdout
    assert uploads.audit_json("--evidence", "head")["settings"]["evidence"] == "head"
    assert "evidence" in refused(*uploads.arguments("--evidence", "heads"))
