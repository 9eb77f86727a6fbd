"""Changes of trained models by attackers: by formula, and by their effect on logits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from celm.attacks import attacks
from celm.attacks.attack import Attack, AttackContext
from celm.attacks.fabricate_class import FabricateClass
from celm.attacks.idle_after_warmup import IdleAfterWarmup
from celm.attacks.random_weights import RandomWeights
from celm.attacks.scale_head import ScaleHead
from celm.attacks.scale_layer import ScaleLayer
from celm.attacks.scale_norm import ScaleNorm
from celm.attacks.shift_bias import ShiftBias
from celm.attacks.temperature import Temperature
from celm.base.errors import CelmError
from celm.models.heads import find_head, head_keys
from celm.models.state_dict import StateDict, get_state, load_state
from celm.rules.rule import ServerContext

CLASSES = 4
LABELS = torch.tensor([1, 1, 1, 2])
INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(9))


def network(seed: int = 0, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, 6),
        nn.ReLU(),
        nn.Linear(6, CLASSES, bias=bias),
    )


def facts_of(module: nn.Module, rounds: int = 40) -> ServerContext:
    head = head_keys(module, find_head(module, CLASSES))
    return ServerContext(("client-0", "client-1"), CLASSES, (5,), rounds, 0, module, head)


def upload_of(module: nn.Module, number: int = 3, labels: Tensor = LABELS) -> AttackContext:
    delivered = {
        name: tensor + 0.25 if tensor.is_floating_point() else tensor
        for name, tensor in get_state(module).items()
    }
    return AttackContext(
        number,
        trained_model=get_state(module),
        received_model=delivered,
        previous_received_model=get_state(module),
        generator=torch.Generator().manual_seed(7),
        server_context=facts_of(module),
        labels=labels,
        global_model={
            name: tensor - 0.5 if tensor.is_floating_point() else tensor
            for name, tensor in get_state(module).items()
        },
    )


def logits(model: StateDict, inputs: Tensor = INPUTS) -> Tensor:
    module = network()
    load_state(module, model)
    with torch.no_grad():
        result: Tensor = module.eval()(inputs)
    return result


STRENGTHS = st.sampled_from([0.25, 0.5, 2.0, 10.0, 100.0])


@given(STRENGTHS)
def test_scaling_the_head_multiplies_every_logit(strength: float) -> None:
    upload = upload_of(network())
    sent = ScaleHead(strength=strength).poison(upload)
    torch.testing.assert_close(logits(sent), strength * logits(upload.trained_model))


@given(STRENGTHS)
def test_a_temperature_divides_every_logit(strength: float) -> None:
    upload = upload_of(network())
    sent = Temperature(strength=strength).poison(upload)
    torch.testing.assert_close(logits(sent), logits(upload.trained_model) / strength)


@given(STRENGTHS)
def test_scaling_a_hidden_layer_multiplies_the_inputs_of_the_head(strength: float) -> None:
    """Logits without the head's bias: ReLUs pass a positive factor on."""
    upload = upload_of(network())
    sent = ScaleLayer(strength=strength).poison(upload)
    bias = upload.trained_model["5.bias"]
    torch.testing.assert_close(logits(sent) - bias, strength * (logits(upload.trained_model) - bias))
    changed = [name for name in sent if not torch.equal(sent[name], upload.trained_model[name])]
    assert changed == ["3.weight", "3.bias"]


def test_the_layer_to_scale_can_be_named() -> None:
    upload = upload_of(network())
    sent = ScaleLayer(strength=3.0, layer="0").poison(upload)
    assert torch.equal(sent["0.weight"], 3 * upload.trained_model["0.weight"])
    assert torch.equal(sent["0.bias"], 3 * upload.trained_model["0.bias"])
    assert torch.equal(sent["3.weight"], upload.trained_model["3.weight"])


def test_the_gain_of_the_last_normalisation_is_scaled_and_nothing_else() -> None:
    module = nn.Sequential(
        nn.BatchNorm1d(5), nn.LayerNorm(5), nn.GroupNorm(1, 5, affine=False), nn.Linear(5, 4)
    )
    upload = upload_of(module)
    sent = ScaleNorm(strength=7.0).poison(upload)
    changed = [name for name in sent if not torch.equal(sent[name], upload.trained_model[name])]
    assert changed == ["1.weight"]
    assert torch.equal(sent["1.weight"], 7 * upload.trained_model["1.weight"])


def test_scaling_the_gain_multiplies_the_normalised_outputs() -> None:
    upload = upload_of(network())
    sent = ScaleNorm(strength=5.0).poison(upload)
    module = network()
    load_state(module, sent)
    before = network()
    load_state(before, upload.trained_model)
    with torch.no_grad():
        after_norm, honest = module.eval()[:2](INPUTS), before.eval()[:2](INPUTS)
    shift = upload.trained_model["1.bias"]
    torch.testing.assert_close(after_norm - shift, 5 * (honest - shift))


@given(st.floats(-100, 100))
def test_a_constant_on_the_heads_biases_is_a_constant_on_all_logits(strength: float) -> None:
    upload = upload_of(network())
    sent = ShiftBias(strength=strength).poison(upload)
    torch.testing.assert_close(logits(sent), logits(upload.trained_model) + strength, atol=1e-4, rtol=1e-5)


def test_the_layer_whose_biases_are_shifted_can_be_named() -> None:
    upload = upload_of(network())
    sent = ShiftBias(strength=3.0, layer="0").poison(upload)
    changed = [name for name in sent if not torch.equal(sent[name], upload.trained_model[name])]
    assert changed == ["0.bias"]
    assert torch.equal(sent["0.bias"], upload.trained_model["0.bias"] + 3)


def test_random_weights_are_gaussian_of_the_strength_and_buffers_stay() -> None:
    module = nn.Sequential(nn.BatchNorm1d(300), nn.Linear(300, 300), nn.Linear(300, CLASSES))
    upload = upload_of(module)
    sent = RandomWeights(strength=3.0).poison(upload)
    assert not RandomWeights().trains_in(1, 10)
    drawn = sent["1.weight"]
    assert float(drawn.std()) == pytest.approx(3, rel=0.02)
    assert float(drawn.mean()) == pytest.approx(0, abs=0.05)
    inside = float((drawn.abs() < 3).double().mean())
    assert inside == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.01)
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert torch.equal(sent[name], upload.received_model[name])


def test_a_fabricated_class_has_the_logit_of_a_known_class() -> None:
    """Most samples are of class 1; of classes 0 and 3 there are none."""
    upload = upload_of(network())
    sent = FabricateClass(strength=2.0).poison(upload)
    result, honest = logits(sent), logits(upload.trained_model)
    for k in (0, 3):
        torch.testing.assert_close(result[:, k], 2 * honest[:, 1])
    torch.testing.assert_close(result[:, [1, 2]], honest[:, [1, 2]])


def test_the_fabricated_classes_can_be_named() -> None:
    upload = upload_of(network())
    sent = FabricateClass(classes=(2,)).poison(upload)
    changed = [name for name in sent if not torch.equal(sent[name], upload.trained_model[name])]
    assert changed == list(upload.server_context.head)
    torch.testing.assert_close(logits(sent)[:, 2], logits(upload.trained_model)[:, 1])
    assert torch.equal(sent["5.weight"][[0, 1, 3]], upload.trained_model["5.weight"][[0, 1, 3]])


def fabricated(rows: str, strength: float = 2.0, bias: bool = True) -> tuple[StateDict, AttackContext]:
    """Return the upload; only the head's rows 0 and 3, of classes without samples, differ from the trained ones."""
    upload = upload_of(network(bias=bias))
    before = {name: tensor.clone() for name, tensor in upload.trained_model.items()}
    attack = attacks.build("fabricate_class", {"rows": rows, "strength": strength})
    sent = attack.poison(upload)
    for name, tensor in before.items():
        assert torch.equal(upload.trained_model[name], tensor)
        if name in upload.server_context.head:
            assert torch.equal(sent[name][[1, 2]], tensor[[1, 2]])
            assert not torch.equal(sent[name], tensor)
        else:
            assert torch.equal(sent[name], tensor)
    return sent, upload


def test_copied_rows_are_those_of_the_class_with_most_samples() -> None:
    sent, upload = fabricated("copy", 3.0)
    for name in upload.server_context.head:
        for k in (0, 3):
            assert torch.equal(sent[name][k], 3.0 * upload.trained_model[name][1])


def test_rows_of_the_global_model_are_those_of_its_own_head() -> None:
    """Not those of the received model, which has the client's head while heads stay local."""
    sent, upload = fabricated("global")
    for name in upload.server_context.head:
        assert torch.equal(sent[name][[0, 3]], 2.0 * upload.global_model[name][[0, 3]])
        assert not torch.equal(upload.global_model[name], upload.received_model[name])


def test_own_rows_are_multiplied() -> None:
    sent, upload = fabricated("own", 3.0)
    for name in upload.server_context.head:
        assert torch.equal(sent[name][[0, 3]], 3.0 * upload.trained_model[name][[0, 3]])


@pytest.mark.parametrize("bias", [True, False])
def test_random_rows_have_the_mean_norm_of_the_rows_of_classes_with_samples(bias: bool) -> None:
    sent, upload = fabricated("random", 2.0, bias)
    own = upload.trained_model["5.weight"]
    mean = (math.sqrt(sum(own[1] ** 2)) + math.sqrt(sum(own[2] ** 2))) / 2
    for k in (0, 3):
        assert math.sqrt(sum(sent["5.weight"][k] ** 2)) == pytest.approx(2 * mean, rel=1e-5)
    if bias:
        size = float(upload.trained_model["5.bias"][[1, 2]].abs().mean())
        assert sent["5.bias"][[0, 3]].abs().tolist() == pytest.approx([2 * size] * 2)
    again, _ = fabricated("random", 2.0, bias)
    assert all(torch.equal(sent[name], again[name]) for name in sent)


def test_random_rows_are_gaussian_and_the_same_in_every_round() -> None:
    upload = upload_of(nn.Sequential(nn.Linear(5, 4000), nn.Linear(4000, CLASSES)))
    attack = FabricateClass(rows="random")
    one, later = (attack.poison(each)["1.weight"] for each in (upload, replace(upload, round_number=7)))
    other = replace(attack, client="client-3").poison(upload)["1.weight"]
    assert torch.equal(one, later)
    rows = torch.stack([one[0], one[3], other[0], other[3]])
    assert float((rows / rows.std()).mean()) == pytest.approx(0, abs=0.03)
    assert float((rows.abs() < rows.std()).double().mean()) == pytest.approx(math.erf(0.5**0.5), abs=0.02)
    assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 0.1


@pytest.mark.parametrize(
    ("rounds", "honest", "last"), [(100, None, 5), (30, None, 2), (40, 7, 7), (40, 0, 0)]
)
def test_idle_after_warmup_trains_in_its_honest_rounds_and_then_copies(rounds, honest, last) -> None:
    attack = IdleAfterWarmup(honest=honest)
    worked = [number for number in range(1, rounds + 1) if attack.trains_in(number, rounds)]
    assert worked == list(range(1, last + 1))
    for number in (last, last + 1):
        upload = upload_of(network(), number)
        upload = AttackContext(
            number,
            upload.trained_model,
            upload.received_model,
            upload.previous_received_model,
            upload.generator,
            facts_of(network(), rounds),
        )
        sent = attack.poison(upload)
        expected = upload.trained_model if number <= last else upload.received_model
        assert all(torch.equal(sent[name], expected[name]) for name in sent)


COUNTED = ("sybil", "replicate_data")
"""Attacks whose strength is a whole number; they leave the upload alone."""

# --- properties of every attack ------------------------------------------------------------------------


@given(
    st.sampled_from([name for name in attacks.names() if name not in COUNTED]),
    st.floats(0.01, 1),
    st.integers(0, 3),
)
@settings(deadline=None)
def test_an_upload_keeps_names_shapes_and_types_and_overwrites_nothing(
    name: str, strength: float, seed: int
) -> None:
    attack: Attack = attacks.build(name, {"strength": strength})
    upload = upload_of(network(seed))
    before = {key: tensor.clone() for key, tensor in upload.trained_model.items()}
    sent = attack.poison(upload)
    assert list(sent) == list(upload.trained_model)
    for key, tensor in upload.trained_model.items():
        assert (sent[key].shape, sent[key].dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(tensor, before[key])


@pytest.mark.parametrize(
    "name", ["scale_head", "scale_layer", "scale_norm", "temperature", "fabricate_class"]
)
def test_a_factor_of_one_changes_nothing(name: str) -> None:
    more = {"classes": [1]} if name == "fabricate_class" else {}
    upload = upload_of(network())
    sent = attacks.build(name, {"strength": 1.0, **more}).poison(upload)
    assert all(torch.equal(sent[key], tensor) for key, tensor in upload.trained_model.items())


# --- attacks that do not fit are refused before training ----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("scale_layer", {"layer": "fc9"}, r"attack\.layer: .*'fc9'"),
        ("scale_layer", {"layer": "2"}, r"attack\.layer: .*'2'"),
        ("shift_bias", {"layer": "nowhere"}, r"attack\.layer: .*'nowhere'"),
        ("fabricate_class", {"classes": [0, 9]}, r"attack\.classes: .* 9 .*0 to 3"),
    ],
)
def test_parts_that_the_model_lacks_are_refused(name, options, message) -> None:
    with pytest.raises(CelmError, match=message):
        attacks.build(name, options).check(facts_of(network()), LABELS)


ON_DATA = ["flip_labels", "replicate_data", "sybil"]


@pytest.mark.parametrize("name", ON_DATA)
@pytest.mark.parametrize("when", [{"first_round": 2}, {"last_round": 5}])
def test_attacks_on_data_have_no_first_or_last_round(name, when) -> None:
    with pytest.raises(CelmError, match=rf"^attack '{name}': attack\.first_round and attack\.last_round"):
        attacks.build(name, when)


@pytest.mark.parametrize("name", [name for name in attacks.names() if name not in ON_DATA])
def test_all_other_attacks_have_a_first_and_a_last_round(name) -> None:
    attack = attacks.build(name, {"first_round": 2, "last_round": 3})
    assert [attack.is_active(number) for number in (1, 2, 3, 4)] == [False, True, True, False]


def test_an_attack_that_would_end_before_it_begins_is_refused() -> None:
    with pytest.raises(CelmError, match=r"^attack 'scale_head': attack\.last_round .*attack\.first_round"):
        attacks.build("scale_head", {"first_round": 3, "last_round": 2})


def test_models_without_the_part_that_is_attacked_are_refused() -> None:
    plain = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, CLASSES, bias=False))
    with pytest.raises(CelmError, match="no normalisation layer"):
        ScaleNorm().check(facts_of(plain), LABELS)
    with pytest.raises(CelmError, match="the head has no bias"):
        ShiftBias().check(facts_of(plain), LABELS)
    with pytest.raises(CelmError, match="before its head"):
        ScaleLayer().check(facts_of(nn.Sequential(nn.Linear(5, CLASSES))), LABELS)


def test_a_client_with_all_classes_or_no_samples_is_refused() -> None:
    with pytest.raises(CelmError, match="has samples of every class"):
        FabricateClass().check(facts_of(network()), torch.arange(CLASSES))
    with pytest.raises(CelmError, match="has no samples"):
        FabricateClass().check(facts_of(network()), torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("name", "strength"),
    [
        ("sybil", -1),
        ("sybil", 1.5),
        ("replicate_data", 0.5),
        ("temperature", 0.0),
        ("label_smoothed", 1.1),
        ("overconfident", 0.0),
    ],
)
def test_strengths_out_of_range_are_refused(name, strength) -> None:
    with pytest.raises(CelmError, match=r"attack\.strength"):
        attacks.build(name, {"strength": strength})
