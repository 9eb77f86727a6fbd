"""A run as a cooperative game: what each coalition of its clients reaches if it trains by itself.

    v(S) = utility on the test set of the model of the clients S, by plain averaging among them alone       v(∅) = 0

Nothing is approximated: a coalition is trained anew, with the run's data, split, seeds, objective and number of rounds.
So N clients cost 2^N - 1 runs if all values are asked for. The rule of the run, its observers, filter and aggregator
have no part in v. If clients are removed, their attack is removed with them. v(∅) shifts all values equally. These
are the coalitions of a study with `ground_truth`.
Reference: Shapley, A Value for n-Person Games, 1953. Libraries such as shapiq take the game as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from celm.base.errors import CelmError, suggest_name
from celm.experiment.config import Experiment
from celm.federation.build import resolve_defaults
from celm.models import require_confirmed_factory
from celm.rules.coalitions import Game
from celm.runs.run import Run
from celm.runs.run_folder import RunFolder
from celm.runs.runner import continue_run, create_run_folder

GameUtility = Literal["accuracy", "balanced_accuracy", "rare_class_accuracy"]


class RunGame:
    """The game of a run; call it with coalitions, or ask for the `value` of clients by name."""

    def __init__(self, run: Run, utility: GameUtility, out: Path | None) -> None:
        self.clients = tuple(run.weights)
        """The players, in this order."""
        self._experiment = run.experiment
        self._utility = utility
        self._out = out
        self._game = Game(len(self.clients), self._evaluate, batch_size=1)

    @property
    def n_players(self) -> int:
        """Number of clients."""
        return len(self.clients)

    @property
    def evaluations(self) -> int:
        """Number of coalitions that were evaluated, each once."""
        return self._game.evaluations

    def __call__(self, coalitions: ArrayLike) -> NDArray[np.float64]:
        """Return v of coalitions `[..., N]` of 0 and 1, one column for each of `clients`; the result is `[...]`."""
        members = np.asarray(coalitions)
        if members.ndim == 0 or members.shape[-1] != self.n_players:
            raise CelmError(
                f"coalitions have shape {members.shape}, and the run has {self.n_players} clients",
                "give one column for each client",
            )
        if not np.isin(members, (0, 1)).all():
            raise CelmError("coalitions must be 0 or 1, or false or true")
        masks = [
            sum(1 << i for i in np.flatnonzero(row).tolist()) for row in members.reshape(-1, self.n_players)
        ]
        return np.array(self._game.values(masks), dtype=np.float64).reshape(members.shape[:-1])

    def value(self, *clients: str) -> float:
        """Return v of the clients with these names."""
        for name in clients:
            if name not in self.clients:
                raise CelmError(f"unknown client '{name}'", suggest_name(name, self.clients))
        return float(self([name in clients for name in self.clients]))

    def _evaluate(self, coalitions: Sequence[int]) -> list[float]:
        return [self._retrain(coalition) if coalition else 0.0 for coalition in coalitions]

    def _retrain(self, coalition: int) -> float:
        positions = [i for i in range(self.n_players) if coalition >> i & 1]
        experiment = self._coalition_experiment([self.clients[i] for i in positions])
        if self._out is None:
            with tempfile.TemporaryDirectory(prefix="celm-") as folder:
                finished = _run_or_continue(experiment, Path(folder) / "run")
        else:
            finished = _run_or_continue(experiment, self._out / ("clients-" + "+".join(map(str, positions))))
        utility: float | None = finished.metrics[self._utility]
        if utility is None:
            raise CelmError(f"utility '{self._utility}' is not defined: the split has no rare classes")
        return utility

    def _coalition_experiment(self, members: list[str]) -> Experiment:
        tables: dict[str, Any] = self._experiment.to_dict()
        for name in ("observe", "filter", "aggregator"):
            tables.pop(name, None)
        if tables.get("attack") and tables["attack"].get("client", "client-0") not in members:
            del tables["attack"]
        tables["rule"] = {"name": "fedavg"}
        tables["run"] |= {"clients": members, "local_heads": 0, "workers": 0}
        return resolve_defaults(Experiment.parse(tables)).experiment


def as_game(run: Run, utility: GameUtility = "accuracy", out: str | Path | None = None) -> RunGame:
    """Return a finished run as a game on coalitions of its clients, for shapiq and other libraries.

    Each coalition is retrained when its value is first asked for, and remembered. With `out`, its run is saved in that
    folder, and read from there the next time; other settings in the folder are an error.

    Args:
        run: a finished run.
        utility: the worth of a model on the test set.
        out: a folder for the runs of coalitions.
    """
    if utility not in get_args(GameUtility):
        raise CelmError(f"unknown utility '{utility}'", suggest_name(utility, get_args(GameUtility)))
    require_confirmed_factory(run.experiment.model.name, run.confirmed_model, run.folder)
    return RunGame(run, utility, None if out is None else Path(out))


def _run_or_continue(experiment: Experiment, path: Path) -> Run:
    if not (path / "settings.toml").exists():
        resolved = resolve_defaults(experiment)
        return continue_run(create_run_folder(experiment, resolved, path), resolved=resolved)
    folder = RunFolder.open(path)
    if folder.settings() != experiment:
        raise CelmError(f"{path} contains a run with other settings", "choose another folder")
    return continue_run(folder)
