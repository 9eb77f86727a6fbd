"""LoRA clients of real `peft` and `transformers`: they train on skewed labels and send adapters and head alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")
pytest.importorskip("peft", reason="needs pip install peft")

import torch
from flwr.app import ArrayRecord, Message
from torch import nn

from celm.base.errors import CelmError
from celm.flower import CelmStrategy, ContributionResult
from support.small_grid import Client, SmallGrid, arrays_of, learner, reply
from support.text_task import (
    CLASSES,
    EMBEDDING,
    HELD,
    SHAPE,
    adapted,
    adapter_clients,
    adapter_state,
    classifier,
    complete_clients,
    load_adapter,
    sample,
    text_client,
)

RULES: dict[str, dict[str, Any]] = {
    "paper": {"rule_options": {"warmup": 3}, "preset": None},
    "calibrated": {"rule_options": {"warmup": 3, "evidence": "calibrated"}, "preset": "trust"},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def strategy(folder: Path | None = None, model: nn.Module | None = None, **settings: Any) -> CelmStrategy:
    usual: dict[str, Any] = {"partial": True, "layer": EMBEDDING, "fraction_evaluate": 0.0, "retries": 0}
    usual |= {"probe": {"steps": 20, "lr": 0.05}, **RULES["paper"]}
    return CelmStrategy(
        adapted() if model is None else model, SHAPE, CLASSES, folder=folder, **{**usual, **settings}
    )


def adapters() -> ArrayRecord:
    return ArrayRecord(dict(adapter_state(adapted())))


def recorded(clients: dict[str, Client]) -> tuple[SmallGrid, list[dict[str, dict[str, torch.Tensor]]]]:
    """Return a grid, and for each round what every client returned."""
    replies: list[dict[str, dict[str, torch.Tensor]]] = []

    def record(name: str, client: Client) -> Client:
        def call(message: Message) -> Message:
            made = client(message)
            assert isinstance(made, Message)
            if len(replies) < int(message.content["config"]["server-round"]):
                replies.append({})
            replies[-1][name] = arrays_of(made)
            return made

        return call

    return SmallGrid({name: record(name, client) for name, client in clients.items()}), replies


def accuracy(model: Any) -> float:
    tokens, labels = sample(tuple(range(CLASSES)), 77, 400)
    with torch.no_grad():
        return float((model.eval()(tokens).logits.argmax(1) == labels).float().mean())


@pytest.mark.parametrize("rule", RULES)
def test_adapters_get_the_weights_of_complete_models(rule: str) -> None:
    grid, replies = recorded(adapter_clients())
    partial = strategy(**RULES[rule]).start(grid, adapters(), num_rounds=4)
    complete = strategy(partial=False, **RULES[rule]).start(
        SmallGrid(complete_clients()), ArrayRecord(adapted().state_dict()), num_rounds=4
    )
    for number, weights in complete.contributions.items():
        assert partial.contributions[number] == pytest.approx(weights, abs=1e-4)
    assert partial.evidence.keys() == complete.evidence.keys() == {1, 2, 3}
    for number, rows in complete.evidence.items():
        for client, row in rows.items():
            assert partial.evidence[number][client] == pytest.approx(row, abs=1e-4)
    # The merge is the weighted mean of what came, under the names that clients sent.
    merged, names = partial.arrays.to_torch_state_dict(), list(adapter_state(adapted()))
    assert list(merged) == [name for name in adapters() if name in names]
    on_held_classes = {
        client: sum(row[k] for k in HELD[client]) / sum(row) for client, row in partial.evidence[3].items()
    }
    if rule == "calibrated":  # docs/flower.md says so: calibrated evidence is not by class in this space
        assert min(on_held_classes.values()) < 0.7
        return
    weights = partial.records[-1]["weights"]
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, sum(weights[c] * replies[-1][c][name] for c in weights))
    # For this pretrained model and seed, evidence is on the classes that a client holds, and the one holder of two
    # classes weighs most. From random weights it need not be.
    assert min(on_held_classes.values()) > 0.9
    assert max(partial.contributions[4], key=partial.contributions[4].__getitem__) == "west"
    model = adapted()
    before = accuracy(model)
    load_adapter(model, merged)
    assert accuracy(model) > before


def unchanged(message: Message) -> Message:
    return reply(message, ArrayRecord(arrays_of(message)))


def test_by_default_only_the_member_that_does_not_train_is_flagged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    settings = {"rule_options": None, "preset": "trust"}
    clients = {**adapter_clients(), "idler": unchanged}
    result = strategy(**settings).start(SmallGrid(clients), adapters(), num_rounds=6)
    assert [list(record["flags"]) for record in result.records] == [["idler"]] * 6
    assert (result.contributions[6]["idler"], result.earned["idler"]) == (0, 0)
    assert min(result.earned[name] for name in HELD) > 0.05
    assert list(result.evidence) == [1, 2, 3, 4, 5]
    assert result.contributions[6]["west"] == max(result.contributions[6].values()), (
        "the sole holder of two classes"
    )
    assert f"layer='{EMBEDDING}': calibrated evidence did not find the holders of classes" in caplog.text


def test_a_server_with_adapters_resumes_with_a_new_random_head(tmp_path: Path) -> None:
    """A classifier that peft replaces by a trained copy is random in each process, and without effect."""

    def run(folder: Path | None, model: nn.Module, rounds: int) -> ContributionResult:
        return strategy(folder, model).start(SmallGrid(adapter_clients()), adapters(), num_rounds=rounds)

    def interrupt(number: int, _: ArrayRecord) -> None:
        if number == 2:
            raise KeyboardInterrupt

    whole = run(None, adapted(), 3)
    with pytest.raises(KeyboardInterrupt):
        strategy(tmp_path).start(SmallGrid(adapter_clients()), adapters(), 3, evaluate_fn=interrupt)
    restarted = adapted()
    for name, parameter in restarted.named_parameters():
        if "original_module" in name or parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    result = run(tmp_path, restarted, 3)
    assert result.contributions == whole.contributions
    for name, array in result.arrays.items():
        assert array == whole.arrays[name]
    backbone = sum(tensor.nbytes for tensor in classifier().state_dict().values())
    probe_inputs = 4 * (len(HELD) + 1) * CLASSES * SHAPE[0] * SHAPE[1]
    sizes = [path.stat().st_size for path in (tmp_path / "checkpoints").iterdir()]
    assert max(sizes) < probe_inputs + backbone
    with pytest.raises(CelmError, match="other settings"):
        run(tmp_path, adapted(seed=5), 3)


def test_clients_may_use_either_name_of_an_adapter() -> None:
    """One sends the names in memory, one those of peft; a third invents some and is excluded."""

    def in_memory(model: Any) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def invented(model: Any) -> dict[str, torch.Tensor]:
        return {name.replace("lora_A", "lora_C"): value for name, value in adapter_state(model).items()}

    clients = adapter_clients()
    for number, (name, get) in enumerate((("south", in_memory), ("west", invented)), start=1):
        clients[name] = text_client(adapted(), HELD[name], number, load_adapter, get)
    grid, replies = recorded(clients)
    result = strategy().start(grid, adapters(), num_rounds=1)
    (record,) = result.records
    assert list(record["excluded"]) == ["west"]
    assert "lora_A" in record["excluded"]["west"]
    assert "unexpected array" in record["excluded"]["west"]
    weights = record["weights"]
    head = "base_model.model.classifier.weight"
    by_memory = replies[0]["south"]["base_model.model.classifier.modules_to_save.default.weight"]
    expected = weights["north"] * replies[0]["north"][head] + weights["south"] * by_memory
    torch.testing.assert_close(result.arrays.to_torch_state_dict()[head], expected)


def test_the_head_alone_of_a_wrapped_model_is_found_in_a_plain_one() -> None:
    """Clients wrap the model by peft; the server has the model without it."""
    model = classifier()
    arrays = {
        f"base_model.model.{name}": value
        for name, value in model.state_dict().items()
        if "classifier" in name
    }
    plain = {name.removeprefix("base_model.model."): value for name, value in arrays.items()}
    results = []
    for sent in (arrays, plain):
        grid = SmallGrid({"a": learner(0.1), "b": learner(-0.2)})
        one = strategy(model=model, layer="distilbert.embeddings")
        results.append(one.start(grid, ArrayRecord(sent), num_rounds=1))
        assert list(results[-1].arrays) == list(sent)
    assert results[0].evidence == results[1].evidence


def test_text_without_a_layer_says_what_is_missing() -> None:
    with pytest.raises(CelmError, match=r"set layer=.*word_embeddings"):
        strategy(layer=None)
