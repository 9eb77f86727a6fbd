"""Head, backbone and features, for models of any make."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from celm.base.errors import CelmError
from celm.models import build_model
from celm.models.heads import extract_features, find_head, forward_with_features, head_keys


def x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "shape"), [("mlp", (1, 8, 8)), ("cnn", (3, 20, 20))])
def test_head_of_the_head_of_the_features_is_the_output(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, {}, shape, 4)
    head = find_head(model, 4)
    assert head == "head"
    inputs = x(5, *shape)
    layer = model.get_submodule(head)
    torch.testing.assert_close(layer(extract_features(model, head, inputs)), model(inputs))


def test_the_head_has_the_keys_of_its_layer() -> None:
    model = build_model("mlp", {"widths": [3]}, (2,), 4)
    assert head_keys(model, "head") == ("head.weight", "head.bias")


def test_a_linear_model_is_nothing_but_its_head() -> None:
    model = nn.Linear(3, 2)
    assert find_head(model, 2) == ""
    assert head_keys(model, "") == ("weight", "bias")
    assert torch.equal(extract_features(model, "", x(4, 3)), x(4, 3))


def test_a_name_that_begins_like_the_head_is_not_the_head() -> None:
    model = nn.Sequential(OrderedDict(head2=nn.Linear(3, 3), head=nn.Linear(3, 2)))
    assert head_keys(model, "head") == ("head.weight", "head.bias")


def test_the_last_layer_with_as_many_outputs_as_classes_is_the_head() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 7))
    assert find_head(model, 2) == "1"
    assert find_head(model, 7) == "3"


def test_a_named_head_is_checked() -> None:
    model = nn.Sequential(OrderedDict(body=nn.Conv2d(1, 2, 1), act=nn.ReLU(), last=nn.Conv2d(2, 4, 1)))
    assert find_head(model, 4, "last") == "last"
    with pytest.raises(CelmError, match=r"no linear layer with 4 outputs .*model\.head"):
        find_head(model, 4)
    with pytest.raises(CelmError, match=r"no layer 'lst' .*did you mean 'last'"):
        find_head(model, 4, "lst")
    with pytest.raises(CelmError, match="layer 'act' has no weight"):
        find_head(model, 4, "act")
    with pytest.raises(CelmError, match=r"layer 'body' is \(2, 1, 1, 1\), not one row for each of 4"):
        find_head(model, 4, "body")


class Tied(nn.Module):
    """The head's weight is also the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 3, bias=False)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 3)
        self.head.weight = self.embed.weight

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(input=self.norm(self.embed(inputs)))
        return out


def test_tied_weights_belong_to_the_head_under_both_names() -> None:
    model = Tied()
    assert find_head(model, 3) == "head"
    assert head_keys(model, "head") == ("embed.weight", "head.weight", "head.bias")


def test_features_are_seen_where_the_head_is_called_by_keyword() -> None:
    model = Tied()
    torch.testing.assert_close(extract_features(model, "head", x(4, 3)), model.norm(model.embed(x(4, 3))))


def test_a_layer_registered_twice_is_one_head() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.classifier = self.fc

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.classifier(inputs)
            return out

    model = Twice()
    assert find_head(model, 2) == "fc"
    assert find_head(model, 2, "classifier") == "classifier"
    assert set(head_keys(model, "fc")) == {"fc.weight", "fc.bias", "classifier.weight", "classifier.bias"}
    assert extract_features(model, "fc", x(4, 3)).shape == (4, 3)


def test_a_parametrized_head_keeps_its_keys() -> None:
    model = nn.Sequential(nn.Linear(3, 5), weight_norm(nn.Linear(5, 2)))
    head = find_head(model, 2)
    assert head == "1"
    assert find_head(model, 2, "1") == "1"
    assert set(head_keys(model, head)) == {key for key in model.state_dict() if key.startswith("1.")}
    assert any("parametrizations" in key for key in head_keys(model, head))
    assert extract_features(model, head, x(4, 3)).shape == (4, 5)


def test_the_hook_is_gone_even_after_a_failure() -> None:
    model = build_model("mlp", {}, (2,), 2)
    head = model.get_submodule("head")
    extract_features(model, "head", x(3, 2))
    with pytest.raises(RuntimeError):
        extract_features(model, "head", x(3, 9))
    assert not head._forward_pre_hooks


def test_gradients_flow_through_features() -> None:
    torch.manual_seed(0)  # some hidden unit is alive
    model = build_model("mlp", {"widths": [3]}, (2,), 2)
    outputs, seen = forward_with_features(model, "head", x(3, 2))
    loss = seen.square().sum() + outputs.sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(bool(gradient.any()) for gradient in gradients)


def test_a_head_that_is_not_called_is_not_a_head() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(3, 2)
            self.idle = nn.Linear(3, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.used(inputs)
            return out

    with pytest.raises(CelmError, match="'idle' is not called"):
        extract_features(Idle(), find_head(Idle(), 2), x(1, 3))
