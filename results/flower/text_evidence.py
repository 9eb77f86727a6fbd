"""Where the evidence of LoRA clients on text lies: python results/flower/text_evidence.py (prints a table).

A tiny DistilBERT, probed at its embeddings. The class of a text is the range of most of its tokens. Two members hold
classes 0 and 1, one member alone holds 2 and 3. Weights of the server's model before the federation:

    random        never trained
    new head      trained on all classes, then with a new last layer, as for a new task
    seen before   trained on all classes

The server is that of the Flower strategy, without its messages, with the preset trust except for `rule.evidence`. For
text the preset has the paper's evidence, because of these figures. Members train for ten steps in each of eight rounds.
"""

from __future__ import annotations

import copy
import sys
from statistics import mean
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from celm.base.randomness import make_generator
from celm.base.stage_timer import StageTimer
from celm.live.client_replies import ClientReplies
from celm.live.live_server import LiveServer
from celm.live.server_model import ServerModel
from celm.live.server_parts import build_server
from celm.live.state_store import StateStore
from celm.models.adapter_settings import AdapterSettings
from celm.rules.messages import ClientUpdate
from celm.rules.rule import ServerContext

CLASSES, TOKENS, WIDTH, ROUNDS, SEEDS = 4, 6, 16, 8, range(10)
HELD = {"north": (0, 1), "south": (0, 1), "west": (2, 3)}
SOLE_HOLDER = "west"
STARTS = ("random", "new head", "seen before")
EVIDENCE = {"calibrated": {"evidence": "calibrated"}, "paper": {"evidence": "paper"}}
"""Evidence to `rule_options`."""


def sample(classes: tuple[int, ...], rng: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.tensor(classes)[torch.randint(len(classes), (32,), generator=rng)]
    own = 8 * labels[:, None] + torch.randint(8, (32, TOKENS), generator=rng)
    others = torch.randint(8 * CLASSES, (32, TOKENS), generator=rng)
    return torch.where(torch.rand(32, TOKENS, generator=rng) < 0.7, own, others), labels


def train(model: Any, classes: tuple[int, ...], rng: torch.Generator, steps: int) -> None:
    """Train the parameters that require a gradient."""
    model.train()
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps):
        tokens, labels = sample(classes, rng)
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(tokens).logits, labels))
        optimiser.step()


def make_model(start: str, seed: int) -> Any:
    """Return a classifier with LoRA and a trained head."""
    options: dict[str, Any] = {
        "vocab_size": 8 * CLASSES, "dim": WIDTH, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "num_labels": CLASSES,
        "max_position_embeddings": TOKENS, "initializer_range": 0.4, "dropout": 0.0, "attention_dropout": 0.0,
        "seq_classif_dropout": 0.0, "attn_implementation": "eager",
    }  # fmt: skip
    torch.manual_seed(seed)
    model = DistilBertForSequenceClassification(DistilBertConfig(**options))
    if start != "random":
        train(model, tuple(range(CLASSES)), make_generator(seed, "before"), steps=100)
    if start == "new head":
        model.pre_classifier.reset_parameters()
        model.classifier.reset_parameters()
    return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_lin", "v_lin"]))


def adapter_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def run_federation(start: str, seed: int, evidence: str) -> list[Any]:
    """Return the server step of each round."""
    model = make_model(start, seed)
    shape, names = (TOKENS, WIDTH), list(HELD)
    adapters = AdapterSettings(layer="base_model.model.distilbert.embeddings")
    server_model = ServerModel.build(model, shape, CLASSES, "cpu", None, adapters, partial=True)
    context = ServerContext((), CLASSES, shape, 0, seed, server_model.probed_module, server_model.head)
    server = build_server("celm", EVIDENCE[evidence], "trust", None, None, None, context, adapters)
    live_server = LiveServer("celm", server, None, StateStore(None), None, server_model.reference(), "flwr")
    live_server.set_exchanged(adapter_of(model), server_model)
    live_server.prepare(ROUNDS, {})
    global_model, steps = adapter_of(model), []
    clients = {name: copy.deepcopy(model) for name in names}
    for number in range(1, ROUNDS + 1):
        live_server.register_clients(names, global_model)
        messages = live_server.make_messages(names)
        updates = {}
        for name, client in clients.items():
            client.load_state_dict(messages[name].model, strict=False)
            train(client, HELD[name], make_generator(seed, "client", number, name), steps=10)
            updates[name] = ClientUpdate(adapter_of(client), num_steps=10, num_examples=32)
        steps.append(live_server.step(messages, ClientReplies(updates, {}), StageTimer()))
        live_server.state = steps[-1].state
        global_model = steps[-1].state.model
    return steps


def summarise(start: str, evidence: str, seeds: range) -> str:
    """Return a row of the table."""
    on_held: list[float] = []
    first = last = flagged = 0
    for seed in seeds:
        steps = run_federation(start, seed, evidence)
        rows = next(step.result.evidence for step in reversed(steps) if step.result.evidence)
        on_held += [sum(row[k] for k in HELD[name]) / sum(row) for name, row in rows.items() if sum(row)]
        weights = steps[-1].result.client_weights
        first += weights[SOLE_HOLDER] == max(weights.values())
        last += weights[SOLE_HOLDER] == min(weights.values())
        flagged += any(step.flags for step in steps)
    count = len(seeds)
    numbers = f"{100 * mean(on_held):.0f} | {100 * min(on_held):.0f} | {first} of {count} | {last} of {count}"
    return f"| {start} | {evidence} | {numbers} | {flagged} of {count} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    seeds = range(int(sys.argv[1])) if sys.argv[1:] else SEEDS
    print("| before | evidence | on held classes, mean % | least % | sole holder first | last | flagged |")
    print("|---|---|---|---|---|---|---|")
    for start in STARTS:
        for evidence in EVIDENCE:
            print(summarise(start, evidence, seeds), flush=True)
