"""A tiny text task: the class of a sequence is the range of most of its tokens. Models of transformers and peft."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs pip install 'celm[vit]'")
pytest.importorskip("peft", reason="needs pip install peft")

import peft
import torch
import transformers
from flwr.app import ArrayRecord, Message
from torch import Tensor, nn
from torch.nn import functional as F

from support.small_grid import Client, arrays_of, reply

CLASSES = 4
TOKENS, HIDDEN = 6, 16
SHAPE = (TOKENS, HIDDEN)
HELD = {"north": (0, 1), "south": (0, 1), "west": (2, 3)}
EMBEDDING = "base_model.model.distilbert.embeddings"

State = Mapping[str, Tensor]


def classifier(seed: int = 0) -> nn.Module:
    """Return a DistilBERT that has seen every class for a short while, as a pretrained one has."""
    return copy.deepcopy(_pretrained(seed))


@cache
def _pretrained(seed: int) -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=8 * CLASSES, dim=HIDDEN, n_layers=1, n_heads=2, hidden_dim=32, num_labels=CLASSES,
        max_position_embeddings=TOKENS, initializer_range=0.4, dropout=0.0, attention_dropout=0.0,
        seq_classif_dropout=0.0, attn_implementation="eager",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = transformers.DistilBertForSequenceClassification(config)
    train(model, tuple(range(CLASSES)), 99, steps=25)
    return model


def adapted(seed: int = 0, **options: Any) -> Any:
    """Return the classifier with LoRA and a trained head."""
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_lin", "v_lin"], **options)
    model = classifier(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        return peft.get_peft_model(model, config)


def sample(classes: tuple[int, ...], seed: int, count: int = 32) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (count,), generator=rng)]
    own = 8 * labels[:, None] + torch.randint(8, (count, TOKENS), generator=rng)
    noise = torch.randint(8 * CLASSES, (count, TOKENS), generator=rng)
    return torch.where(torch.rand(count, TOKENS, generator=rng) < 0.7, own, noise), labels


def train(model: Any, classes: tuple[int, ...], seed: int, steps: int = 10) -> None:
    """Train the parameters that require a gradient."""
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(trained, lr=0.01)
    for step in range(steps):
        tokens, labels = sample(classes, 1000 * seed + step)
        optimiser.zero_grad()
        F.cross_entropy(model(tokens).logits, labels).backward()
        optimiser.step()


def adapter_state(model: Any) -> State:
    """Return what real clients send."""
    state: State = peft.get_peft_model_state_dict(model)
    return state


def load_adapter(model: Any, state: State) -> None:
    peft.set_peft_model_state_dict(model, dict(state))


def text_client(
    model: Any,
    held: tuple[int, ...],
    seed: int,
    load: Callable[[Any, State], None],
    get: Callable[[Any], State],
) -> Client:
    """Return a client that trains `model` on its classes, and exchanges the tensors that `load` and `get` handle."""

    def fit(message: Message) -> Message:
        load(model, arrays_of(message))
        train(model, held, seed + 100 * int(message.content["config"]["server-round"]))
        return reply(message, ArrayRecord({name: tensor.detach() for name, tensor in get(model).items()}))

    return fit


def adapter_clients(seed: int = 0) -> dict[str, Client]:
    """Return clients that exchange only what `peft` calls the state of the adapter."""
    return {
        name: text_client(adapted(seed), held, number, load_adapter, adapter_state)
        for number, (name, held) in enumerate(HELD.items())
    }


def complete_clients(seed: int = 0) -> dict[str, Client]:
    """Return the same clients, which exchange all tensors."""
    return {
        name: text_client(adapted(seed), held, number, nn.Module.load_state_dict, nn.Module.state_dict)
        for number, (name, held) in enumerate(HELD.items())
    }
