"""The settings of a strategy as a tree of lines, as Flower's own strategies log them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from celm.engines.ray_prober import RayProber
from celm.models.averaging import weighted_mean

if TYPE_CHECKING:
    from celm.flower.strategy import ContributionStrategy


def settings_tree(strategy: ContributionStrategy) -> list[str]:
    """Return the lines of the tree."""
    live_server = strategy.live_server
    server, context = live_server.server, live_server.server.context
    last = server.local_head_rounds
    rounds = live_server.settings.get("rounds", context.rounds)
    num_rounds = f" of {rounds}" if rounds else ""
    heads = f"clients keep their own head in rounds 1-{last}{num_rounds}" if last else "none"
    if not strategy.is_prepared:
        heads = "decided in the first round"
    device = next(iter(live_server.reference.values())).device
    on_ray = isinstance(context.probe_fn, RayProber)
    location = "Ray" if on_ray else f"{device}, {torch.get_num_threads()} threads"
    mean = "weighted mean" if server.aggregator is weighted_mean else server.aggregator
    nodes = f"train ({strategy.min_train_nodes}) | evaluate ({strategy.min_evaluate_nodes})"
    available = f"{strategy.min_available_nodes} within {strategy.node_timeout:g} s"
    folder, signer = strategy.state_store.folder, strategy.state_store.signer
    signed = "" if signer is None else f", signed by the key {signer.key.public.id[:16]}"
    return [
        "├──> Rule:",
        f"│\t├──{live_server.rule_name}: {asdict(server.rule)}",
        f"│\t├──Warm-up: {heads}",
        f"│\t├──Clients must also send: {server.rule.requirements.extra_exchange or 'nothing'}",
        f"│\t├──Filter: {server.filter or 'none'}; aggregator: {mean}",
        f"│\t└──Probe: {asdict(context.probe)} on {location}",
        "├──> Sampling:",
        f"│\t├──Fraction: train ({strategy.fraction_train:.2f}) | evaluate ({strategy.fraction_evaluate:.2f})",
        f"│\t├──Minimum nodes: {nodes}",
        f"│\t├──Minimum available nodes: {available}",
        f"│\t└──Minimum usable replies: {strategy.federation.min_clients} in {1 + strategy.retries} attempts",
        "├──> Keys in records:",
        f"│\t├── Samples: '{strategy.weighted_by_key}'",
        f"│\t├── ArrayRecord key: '{strategy.arrayrecord_key}'",
        f"│\t└── ConfigRecord key: '{strategy.configrecord_key}'",
        f"└──> State and record: {folder.path if folder else 'not saved (set folder=...)'}{signed}",
    ]
