"""Evidence models against values on paper, and against the formulas they stand for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celm.core.calibration import CalibratedLogits, Calibration
from celm.core.evidence_models import CalibratedEvidence, EvidenceModel, PaperEvidence
from celm.core.probe import probe

CLIENTS, GLOBAL = torch.tensor([[3.0, 1.0], [2.0, 5.0]]), torch.tensor([1.0, 3.0])


def doubles(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_paper_evidence_is_the_logit_above_the_mean_global_logit() -> None:
    assert torch.equal(PaperEvidence()(CLIENTS, GLOBAL), doubles([[1, 0], [0, 3]]))


def test_without_debias_evidence_is_the_positive_logit() -> None:
    client_logits = torch.tensor([[3.0, -1.0], [2.0, 5.0]])
    unreadable = torch.tensor([torch.nan, 0.0])  # the global model does not matter
    assert torch.equal(PaperEvidence(debias=False)(client_logits, unreadable), doubles([[3, 0], [2, 5]]))


def test_excluded_clients_have_no_paper_evidence_and_leave_the_others_theirs() -> None:
    Q = PaperEvidence()(CLIENTS, GLOBAL, exclude=torch.tensor([False, True]))
    assert torch.equal(Q, doubles([[1, 0], [0, 0]]))


def test_calibrated_evidence_is_the_smaller_of_height_and_clarity_above_the_floor() -> None:
    # Spreads are 1, so height and clarity agree: 1 and 0.6 for the first client, 0.05 and 1 for the second.
    calibration = Calibration(torch.zeros(2, 2), torch.ones(2, 2), torch.ones(2))
    gains = torch.tensor([[10.0, 6.0], [1.0, 20.0]])
    Q = CalibratedEvidence()(gains, GLOBAL, calibration)
    torch.testing.assert_close(Q, doubles([[1, 0.25 / 0.65], [0, 1]]))


def test_an_excluded_client_has_no_calibrated_evidence_and_no_part_in_medians() -> None:
    # The excluded client has the largest gain: as the median it would make the first client pass for untrained.
    calibration = Calibration(torch.zeros(2, 2), torch.ones(2, 2), torch.ones(2))
    gains = torch.tensor([[1.0, 0.6], [100.0, 100.0]])
    Q = CalibratedEvidence()(gains, GLOBAL, calibration, exclude=torch.tensor([False, True]))
    torch.testing.assert_close(Q, doubles([[1, 0.25 / 0.65], [0, 0]]))


def test_the_transform_is_the_one_to_probe_with() -> None:
    models: list[EvidenceModel] = [PaperEvidence(), CalibratedEvidence(seed=7)]
    assert models[0].transform is None
    assert models[1].transform == CalibratedLogits(7)


def test_evidence_of_a_probe_does_not_change_if_a_model_is_scaled_and_calibrated() -> None:
    torch.manual_seed(0)
    plain, other = nn.Linear(6, 3), nn.Linear(6, 3)
    scaled = nn.Linear(6, 3)
    scaled.load_state_dict({name: 5 * tensor for name, tensor in plain.state_dict().items()})
    model, start = CalibratedEvidence(seed=7), torch.randn(3, 6).expand(2, -1, -1)

    def evidence_of(first: nn.Module) -> Tensor:
        result = probe([first, other], start, 3, steps=20, transform=model.transform)
        return model(result.logits, result.logits[0], result.measurements)

    before, after = evidence_of(plain), evidence_of(scaled)
    assert before.sum() > 0
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=1e-3)
