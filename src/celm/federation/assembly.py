"""From settings to a federation: load, deal, build, and check every setting on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from celm.attacks import attacks
from celm.attacks.attack import Attack
from celm.base.errors import CelmError, nearest
from celm.base.randomness import generator
from celm.base.registry import Registry
from celm.data.catalogue import datasets, splits
from celm.data.dataset import Dataset, Source
from celm.data.split import Dealing
from celm.federation.architecture import Recipe, build_architecture
from celm.federation.experiment import Choice, Experiment, Running
from celm.federation.jobs import LocalData, Workbench
from celm.models.anatomy import head_keys, trained_keys
from celm.models.averaging import weighted_mean
from celm.models.state import StateDict, state_of
from celm.objectives import objectives
from celm.objectives.objective import ServerPart
from celm.rules import rules
from celm.rules.exchange import Average
from celm.rules.robust import combines, filters
from celm.rules.robust.filter import Filter
from celm.rules.rule import AnyRule, Facts, ProbeSettings


@dataclass(frozen=True)
class Federation:
    """Everything that does not change from round to round."""

    experiment: Experiment
    """Every setting, defaults included."""
    facts: Facts
    rule: AnyRule
    observers: Mapping[str, AnyRule]
    filter: Filter | None
    average: Average
    server: ServerPart[Any] | None
    """The objective's part at the server."""
    attacks: Mapping[str, Attack]
    dealing: Dealing
    counts: Mapping[str, list[int]]
    """Client to samples by class: the truth, for reports only; no rule sees it."""
    class_names: tuple[str, ...]
    local_heads: int
    recipe: Recipe
    workbench: Workbench
    initial: StateDict

    @property
    def rounds(self) -> int:
        return self.facts.rounds


def resolve(experiment: Experiment) -> Experiment:
    """Every setting with a value, those of the chosen things included; anything ill-fitting is an error."""
    source: Source = datasets.build(experiment.dataset.name, experiment.dataset.options)
    usual = source.defaults
    split, model, run, train = experiment.split, experiment.model, experiment.run, experiment.train
    split_name = split.name or usual.split
    # What the paper's authors set for a dataset, they set for five clients and all of its samples; more clients
    # would run out of them, and so would five of a part.
    whole = split.clients <= 5 and experiment.dataset.limit is None
    customary = usual.splits.get(split_name, {}) if whole else {}
    split_options = {**customary, **split.options}
    tables: dict[str, Any] = experiment.tables()
    tables["split"] = {
        **tables["split"],
        "name": split_name,
        "seed": run.seed if split.seed is None else split.seed,
    }
    tables["split"] |= split_options
    tables["model"]["name"] = model.name or usual.model
    tables["train"]["lr"] = train.lr or usual.lr
    tables["run"]["rounds"] = rounds = run.rounds or usual.rounds
    observers = [rules.build(choice.name, choice.options) for choice in experiment.observe]
    splits.build(split_name, split_options)
    objectives.build(experiment.objective.name, experiment.objective.options)
    rule = rules.build(experiment.rule.name, experiment.rule.options)
    # What one estimator needs (local heads, a hold-out) is part of the trajectory, so all that watch it share it.
    if run.local_heads is None:
        tables["run"]["local_heads"] = max(each.local_heads(rounds) for each in (rule, *observers))
    needed = any(each.needs.validation for each in (rule, *observers))
    if run.validation is None:
        tables["run"]["validation"] = 0.1 if needed else 0.0
    elif needed and not run.validation:
        raise CelmError(
            "run.validation is 0, but a rule needs held-out data", "leave it out, or set it to 0.1"
        )
    for choice, registry in optional_parts(experiment):
        registry.build(choice.name, choice.options)
    return Experiment.parse(tables)


def optional_parts(experiment: Experiment) -> list[tuple[Choice, Registry[Any]]]:
    parts: list[tuple[Choice | None, Registry[Any]]] = [
        (experiment.attack, attacks),
        (experiment.filter, filters),
        (experiment.combine, combines),
    ]
    return [(choice, registry) for choice, registry in parts if choice is not None]


def load(experiment: Experiment) -> Dataset:
    """The experiment's data, cut to `dataset.limit` training samples of each class."""
    choice = experiment.dataset
    dataset = datasets.build(choice.name, choice.options).load()
    return dataset if choice.limit is None else dataset.limited(choice.limit)


def deal(experiment: Experiment, dataset: Dataset) -> Dealing:
    """Deal a dataset as a resolved experiment says, to those that take part."""
    split = splits.build(experiment.split.name, experiment.split.options)
    rng = np.random.RandomState(experiment.split.seed)
    labels = dataset.train_labels.numpy()
    dealing = split.deal(labels, len(dataset.classes), experiment.split.clients, rng, dataset.owners)
    if experiment.attack is not None:
        dealing = attacks.build(experiment.attack.name, experiment.attack.options).deal(dealing)
    wanted = experiment.run.clients
    if wanted is None:
        return dealing
    for name in wanted:
        if name not in dealing.clients:
            raise CelmError(f"run.clients: no client '{name}'", nearest(name, dealing.clients))
    return dealing.among(wanted)


def assemble(experiment: Experiment) -> Federation:
    """The federation of a resolved experiment."""
    seed = experiment.run.seed
    dataset = load(experiment)
    classes = len(dataset.classes)
    dealing = deal(experiment, dataset)
    if not any(len(rows) for rows in dealing.clients.values()):
        raise CelmError(f"split '{experiment.split.name}' leaves every client without samples")
    device = checked_device(experiment.run.device)
    clients = tuple(dealing.clients)
    misbehaving = attackers(experiment, dealing)

    recipe = Recipe(experiment.model, experiment.objective, dataset.shape, dataset.classes, seed)
    built = build_architecture(recipe)

    workbench = Workbench(
        recipe=recipe,
        module=built.module,
        head=built.head,
        objective=built.objective,
        train=experiment.train,
        seed=seed,
        classes=classes,
        inputs=dataset.train_inputs,
        holdings={
            name: local_data(name, dataset, dealing, misbehaving.get(name), experiment.run)
            for name in clients
        },
        test_inputs=dataset.test_inputs,
        test_labels=dataset.test_labels,
        fill=dataset.fill,
        device=device,
    )
    if experiment.run.validation and not len(workbench.validation[1]):
        raise CelmError(
            f"run.validation: {experiment.run.validation} of every client's samples leaves none to validate on"
        )
    facts = Facts(
        clients=clients,
        classes=classes,
        input_shape=dataset.shape,
        rounds=experiment.run.rounds or 0,
        seed=seed,
        module=workbench.module,
        head=head_keys(built.module, built.head),
        probe=ProbeSettings(**experiment.probe.model_dump()),
    )
    for name, attack in misbehaving.items():
        attack.check(facts, workbench.holdings[name].labels)
    return Federation(
        experiment=experiment,
        facts=facts,
        rule=rules.build(experiment.rule.name, experiment.rule.options),
        observers={choice.name: rules.build(choice.name, choice.options) for choice in experiment.observe},
        filter=filters.build(experiment.filter.name, experiment.filter.options)
        if experiment.filter
        else None,
        average=combines.build(experiment.combine.name, experiment.combine.options)
        if experiment.combine
        else weighted_mean,
        server=built.objective.server(facts.head, trained_keys(built.module)),
        attacks=misbehaving,
        dealing=dealing,
        counts=dealing.counts(dataset.train_labels.numpy(), classes),
        class_names=dataset.classes,
        local_heads=experiment.run.local_heads or 0,
        recipe=recipe,
        workbench=workbench,
        initial=state_of(workbench.module),
    )


def attackers(experiment: Experiment, dealing: Dealing) -> dict[str, Attack]:
    """Who misbehaves and how: what the split says, and the experiment's own attack."""
    found: dict[str, Attack] = {}
    for client, table in dealing.behaviours.items():
        options = {key: value for key, value in table.items() if key != "name"}
        found[client] = attacks.build(str(table["name"]), {**options, "client": client})
    if experiment.attack is not None:
        attack = attacks.build(experiment.attack.name, experiment.attack.options)
        if attack.client not in dealing.clients:
            raise CelmError(
                f"attack.client: no client '{attack.client}'", nearest(attack.client, dealing.clients)
            )
        behaviour = found.get(attack.client)
        does = attack if behaviour is None else attack.beside(behaviour)
        if does is None:
            raise CelmError(
                f"attack '{experiment.attack.name}' of {attack.client}: by split '{experiment.split.name}'"
                f" it does '{dealing.behaviours[attack.client]['name']}' already",
                "choose another attack.client",
            )
        found[attack.client] = does
    return found


def local_data(
    client: str, dataset: Dataset, dealing: Dealing, attack: Attack | None, run: Running
) -> LocalData:
    rows = torch.from_numpy(dealing.clients[client])
    labels = dataset.train_labels[rows]
    if client in dealing.relabelled:
        labels = torch.from_numpy(dealing.relabelled[client])
    if attack is not None:
        labels = attack.relabel(labels, len(dataset.classes), generator(run.seed, "relabel", client))
    held = round((run.validation or 0.0) * len(rows))
    order = torch.randperm(len(rows), generator=generator(run.seed, "validation", client))
    out, kept = order[:held].sort().values, order[held:].sort().values
    return LocalData(rows[kept], labels[kept], rows[out], labels[out])


def checked_device(name: str) -> str:
    try:
        torch.zeros(1, device=name).item()  # a device that holds no numbers is none
    except (RuntimeError, AssertionError) as error:
        raise CelmError(f"run.device: '{name}' cannot be used: {str(error).splitlines()[0]}") from error
    return name
