"""From settings to a federation: resolve the settings, build the components, load and partition the data.

    Experiment --resolve_defaults--> ResolvedExperiment --build_federation--> Federation

`resolve_defaults` builds every component that the settings name, once. This checks the components' own settings.
`build_federation` uses the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from celm.attacks import attacks
from celm.attacks.attack import Attack
from celm.base.errors import CelmError, suggest_name
from celm.base.randomness import make_generator
from celm.base.registry import Component, Registry
from celm.data.dataset import Dataset, DatasetSource
from celm.data.registry import datasets, splits
from celm.data.split import Partition, Split
from celm.experiment.component_config import ComponentConfig, SplitConfig
from celm.experiment.config import Experiment, RunConfig
from celm.federation.client_trainer import ClientData, ClientTrainer
from celm.federation.model_spec import ModelSpec, build_from_spec
from celm.federation.server import Server
from celm.federation.text_data import probed_shape, share_tokenizer
from celm.models.averaging import weighted_mean
from celm.models.heads import head_keys, trained_keys
from celm.models.state_dict import StateDict, get_state
from celm.objectives import objectives
from celm.objectives.objective import AnyObjective
from celm.rules import rules
from celm.rules.messages import Aggregator
from celm.rules.robust import aggregators, filters
from celm.rules.robust.filter import Filter
from celm.rules.rule import AnyRule, ProbeSettings, ServerContext


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment in which every setting has a value, with the components that it names."""

    experiment: Experiment
    source: DatasetSource
    split: Split
    objective: AnyObjective
    rule: AnyRule
    observers: Mapping[str, AnyRule]
    filter: Filter | None
    aggregator: Aggregator | None
    attack: Attack | None


@dataclass(frozen=True)
class Federation:
    """Everything that does not change from round to round."""

    experiment: Experiment
    """The settings; every setting has a value."""
    server: Server
    attacks: Mapping[str, Attack]
    """Adversarial client -> its attack."""
    partition: Partition
    counts: Mapping[str, list[int]]
    """Client -> samples per class: the ground truth, for reports only; rules never see it."""
    class_names: tuple[str, ...]
    model_spec: ModelSpec
    trainer: ClientTrainer
    initial_model: StateDict

    @property
    def rule(self) -> AnyRule:
        return self.server.rule

    @property
    def context(self) -> ServerContext:
        return self.server.context

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.context.rounds

    def with_context(self, **changes: Any) -> Federation:
        """Return the federation with another server context."""
        return replace(self, server=replace(self.server, context=replace(self.context, **changes)))


def resolve_defaults(experiment: Experiment) -> ResolvedExperiment:
    """Give every setting a value and build the components. Raise CelmError if a component's setting is wrong."""
    experiment = share_tokenizer(experiment)
    source: DatasetSource = _build(datasets, experiment.dataset)
    split_config = _resolve_split(experiment, source)
    split = _build(splits, split_config)
    observers = {config.name: _build(rules, config) for config in experiment.observe}
    objective = _build(objectives, experiment.objective)
    rule = _build(rules, experiment.rule)
    run = _resolve_run(experiment.run, source, [rule, *observers.values()])
    resolved = experiment.model_copy(
        update={
            "split": split_config,
            "model": experiment.model.model_copy(
                update={"name": experiment.model.name or source.defaults.model}
            ),
            "train": experiment.train.model_copy(
                update={"lr": experiment.train.lr or float(source.defaults.lr)}
            ),
            "run": run,
        }
    )
    return ResolvedExperiment(
        experiment=resolved,
        source=source,
        split=split,
        objective=objective,
        rule=rule,
        observers=observers,
        filter=_build_optional(experiment.filter, filters),
        aggregator=_build_optional(experiment.aggregator, aggregators),
        attack=_build_optional(experiment.attack, attacks),
    )


def _resolve_split(experiment: Experiment, source: DatasetSource) -> SplitConfig:
    """Resolve the split's name and seed, and add the dataset's settings for it."""
    config, defaults = experiment.split, source.defaults
    if not config.name and not config.options and config.clients < defaults.min_clients:
        defaults = replace(defaults, split="iid", split_options={})
    name = config.name or defaults.split
    # The paper's authors chose these settings for five clients and all samples of a dataset.
    # More clients, or fewer samples, would leave clients without data.
    is_paper_size = config.clients <= 5 and experiment.dataset.limit is None
    paper_options = defaults.splits.get(name, {}) if is_paper_size else {}
    dataset_options = {**paper_options, **({} if config.name else defaults.split_options)}
    return config.model_copy(
        update={
            "name": name,
            "seed": experiment.run.seed if config.seed is None else config.seed,
            **{key: value for key, value in dataset_options.items() if key not in config.options},
        }
    )


def _resolve_run(run: RunConfig, source: DatasetSource, estimators: list[AnyRule]) -> RunConfig:
    """Resolve rounds, local heads and the hold-out.

    Local heads and the hold-out change the training, so the rule and all observers share them.
    """
    rounds = run.rounds or source.defaults.rounds
    local_heads, validation = run.local_heads, run.validation
    if local_heads is None:
        local_heads = max(estimator.local_head_rounds(rounds) for estimator in estimators)
    needs_validation = any(estimator.requirements.validation for estimator in estimators)
    if validation is None:
        validation = 0.1 if needs_validation else 0.0
    elif needs_validation and not validation:
        raise CelmError(
            "run.validation is 0, but a rule needs held-out data", "remove the setting, or set it to 0.1"
        )
    return run.model_copy(update={"rounds": rounds, "local_heads": local_heads, "validation": validation})


def _build_optional(config: ComponentConfig | None, registry: Registry[Component]) -> Component | None:
    return None if config is None else _build(registry, config)


def _build(registry: Registry[Component], config: ComponentConfig) -> Component:
    return registry.build(config.name, config.options, config.object)


def load_dataset(resolved: ResolvedExperiment) -> Dataset:
    """Load the dataset; `dataset.limit` keeps only the first training samples of each class."""
    dataset = resolved.source.load()
    limit = resolved.experiment.dataset.limit
    return dataset if limit is None else dataset.head_per_class(limit)


def partition_dataset(resolved: ResolvedExperiment, dataset: Dataset) -> Partition:
    """Partition a dataset among the clients, and drop clients that `run.clients` does not name."""
    experiment = resolved.experiment
    partition = resolved.split.partition(
        dataset.train_labels.numpy(),
        len(dataset.classes),
        experiment.split.clients,
        np.random.RandomState(experiment.split.seed),
        dataset.client_ids,
    )
    if resolved.attack is not None:
        partition = resolved.attack.transform_partition(partition)
    selected = experiment.run.clients
    if selected is None:
        return partition
    for name in selected:
        if name not in partition.clients:
            raise CelmError(f"run.clients: unknown client '{name}'", suggest_name(name, partition.clients))
    return partition.restricted_to(selected)


def build_federation(resolved: ResolvedExperiment) -> Federation:
    """Load the data, partition it and build the model: the federation of a resolved experiment."""
    experiment = resolved.experiment
    seed = experiment.run.seed
    dataset = load_dataset(resolved)
    classes = len(dataset.classes)
    partition = partition_dataset(resolved, dataset)
    if not any(len(rows) for rows in partition.clients.values()):
        raise CelmError(f"split '{experiment.split.name}' leaves every client without samples")
    device = check_device(experiment.run.device)
    clients = tuple(partition.clients)
    client_attacks = _assign_attacks(resolved, partition)

    model_spec = ModelSpec(experiment.model, experiment.objective, dataset.shape, dataset.classes, seed)
    built_model = build_from_spec(model_spec, resolved.objective)

    trainer = ClientTrainer(
        model_spec=model_spec,
        module=built_model.module,
        head=built_model.head,
        objective=built_model.objective,
        train_config=experiment.train,
        seed=seed,
        classes=classes,
        inputs=dataset.train_inputs,
        client_data={
            name: _make_client_data(name, dataset, partition, client_attacks.get(name), experiment.run)
            for name in clients
        },
        test_inputs=dataset.test_inputs,
        test_labels=dataset.test_labels,
        pad_value=dataset.pad_value,
        device=device,
    )
    if experiment.run.validation and not len(trainer.validation_set[1]):
        raise CelmError(
            f"run.validation: {experiment.run.validation} of each client's samples leaves no validation sample",
            "increase it",
        )
    context = ServerContext(
        clients=clients,
        classes=classes,
        input_shape=probed_shape(built_model.module, dataset),
        rounds=experiment.run.rounds or 0,
        seed=seed,
        module=trainer.module,
        head=head_keys(built_model.module, built_model.head),
        probe=ProbeSettings(**experiment.probe.model_dump()),
    )
    for name, attack in client_attacks.items():
        attack.check(context, trainer.client_data[name].labels)
    return Federation(
        experiment=experiment,
        server=Server(
            rule=resolved.rule,
            context=context,
            observers=resolved.observers,
            filter=resolved.filter,
            aggregator=resolved.aggregator or weighted_mean,
            hook=built_model.objective.server_hook(context.head, trained_keys(built_model.module)),
            local_head_rounds=experiment.run.local_heads or 0,
        ),
        attacks=client_attacks,
        partition=partition,
        counts=partition.counts(dataset.train_labels.numpy(), classes),
        class_names=dataset.classes,
        model_spec=model_spec,
        trainer=trainer,
        initial_model=get_state(trainer.module),
    )


def _assign_attacks(resolved: ResolvedExperiment, partition: Partition) -> dict[str, Attack]:
    """Return client -> attack: those that the split declares, and the experiment's own."""
    client_attacks: dict[str, Attack] = {}
    for client, table in partition.attacks.items():
        options = {key: value for key, value in table.items() if key != "name"}
        client_attacks[client] = attacks.build(str(table["name"]), {**options, "client": client})
    attack = resolved.attack
    if attack is None:
        return client_attacks
    for client in attack.attackers:
        if client not in partition.clients:
            setting = "client" if client == attack.client else "partner"
            raise CelmError(
                f"attack.{setting}: unknown client '{client}'", suggest_name(client, partition.clients)
            )
        split_attack = client_attacks.get(client)
        own_attack = replace(attack, client=client)
        combined = own_attack if split_attack is None else own_attack.combine_with(split_attack)
        if combined is None:
            config = resolved.experiment
            raise CelmError(
                f"attack '{config.attack.name if config.attack else ''}' of {client}: split"
                f" '{config.split.name}' already gives this client attack '{partition.attacks[client]['name']}'",
                "choose another attack.client",
            )
        client_attacks[client] = combined
    return client_attacks


def _make_client_data(
    client: str, dataset: Dataset, partition: Partition, attack: Attack | None, run: RunConfig
) -> ClientData:
    """Return a client's rows and labels, divided into training and validation samples."""
    rows = torch.from_numpy(partition.clients[client])
    labels = dataset.train_labels[rows]
    if client in partition.relabelled:
        labels = torch.from_numpy(partition.relabelled[client])
    if attack is not None:
        labels = attack.relabel(labels, len(dataset.classes), make_generator(run.seed, "relabel", client))
    num_validation = round((run.validation or 0.0) * len(rows))
    order = torch.randperm(len(rows), generator=make_generator(run.seed, "validation", client))
    validation_index, train_index = order[:num_validation].sort().values, order[num_validation:].sort().values
    return ClientData(
        rows[train_index], labels[train_index], rows[validation_index], labels[validation_index]
    )


def check_device(name: str) -> str:
    """Return the device's name. Raise CelmError if it cannot store numbers."""
    try:
        torch.zeros(1, device=name).item()  # the tensors of 'meta' have no numbers
    except (RuntimeError, AssertionError) as error:
        raise CelmError(f"run.device: '{name}' cannot be used: {str(error).splitlines()[0]}") from error
    return name
