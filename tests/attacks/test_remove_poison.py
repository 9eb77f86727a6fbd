"""What an attacker continues from when the server's message builds on its upload."""

from __future__ import annotations

import pytest
import torch

from celm.attacks.attack import remove_poison
from celm.models.state_dict import StateDict

TRAINED: StateDict = {"w": torch.tensor([1.0, 2.0, 3.0]), "steps": torch.tensor(7)}
UPLOADED: StateDict = {"w": torch.tensor([1.0, 2.0, 43.0]), "steps": torch.tensor(9)}


def message(*values: float) -> StateDict:
    return {"w": torch.tensor(values), "steps": torch.tensor(9)}


def test_an_upload_that_comes_back_as_it_was_gives_the_trained_model_to_the_bit() -> None:
    start = remove_poison(UPLOADED, TRAINED, UPLOADED)
    assert torch.equal(start["w"], TRAINED["w"])
    assert torch.equal(start["steps"], TRAINED["steps"])


def test_a_reward_added_to_the_upload_is_added_to_the_trained_model() -> None:
    start = remove_poison(message(1.5, 1.0, 43.25), TRAINED, UPLOADED)
    assert start["w"].tolist() == [1.5, 1.0, 3.25]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_a_mixed_upload_loses_the_share_of_the_poison_that_is_left_in_it(share: float) -> None:
    """share * upload + (1 - share) * other, where other has the trained value in the poisoned place."""
    mixed = message(share + (1 - share) * 5, share * 2 + (1 - share) * 6, share * 43 + (1 - share) * 3)
    start = remove_poison(mixed, TRAINED, UPLOADED)
    torch.testing.assert_close(start["w"], torch.tensor([mixed["w"][0], mixed["w"][1], 3.0]))


def test_a_message_without_any_of_the_poison_is_taken_as_it_is() -> None:
    start = remove_poison(message(1.1, 2.1, 2.9), TRAINED, UPLOADED)
    torch.testing.assert_close(start["w"], torch.tensor([1.1, 2.1, 2.9]))


def test_an_honest_upload_leaves_the_message() -> None:
    received = message(9.0, 8.0, 7.0)
    assert remove_poison(received, TRAINED, TRAINED) is received


def test_without_a_falsified_floating_tensor_the_message_is_taken() -> None:
    received = {"steps": torch.tensor(3)}
    assert remove_poison(received, {"steps": torch.tensor(1)}, {"steps": torch.tensor(2)}) is received
