"""`celm.audit`: who contributed what, from models in memory or on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from celm.auditing.folder import Folder
from celm.auditing.ledger import written
from celm.auditing.result import Audit
from celm.auditing.settings import Settings, class_names
from celm.auditing.sources import sources_of
from celm.auditing.work import Watch, Work
from celm.method.probe import ProbeFunction, probe

Clients = Mapping[str, Any] | str | Path | Sequence[str | Path]


def audit(
    global_model: nn.Module | Mapping[str, Tensor] | str | Path | None,
    clients: Clients,
    *,
    classes: int | Sequence[str],
    input_shape: Sequence[int] = (),
    model: str | nn.Module | None = None,
    out: str | Path | None = None,
    strict: bool = False,
    watch: Watch | None = None,
    prober: ProbeFunction = probe,
    **settings: Any,
) -> Audit:
    """Who contributed what, from models alone.

    `global_model` is the model that the clients started from: a module, a state dict or a file; None where folders of
    rounds hold their own. `clients` are the same by name, or a folder of files, or several. `model` is the
    architecture: a module, a name, `package.module:factory` or a folder with a Hugging Face config.json; it can be left
    out where `global_model` is a module. `out` is a folder for the report, in which an audit that was stopped goes on.
    With `strict` the first client that cannot be audited is an error; otherwise it is left out and named in `excluded`.
    `prober` is who probes: a `celm.engines.ray_probe.RayProber` does it on a Ray cluster. All other settings are those
    of `Settings`.
    """
    architecture = model if isinstance(model, nn.Module) else None
    if model is None and isinstance(global_model, nn.Module):
        architecture = global_model
    given = {
        "classes": class_names(classes if isinstance(classes, int | str) else list(classes)),
        "input_shape": tuple(input_shape),
        "model": model if isinstance(model, str) else None,
    }
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    how = Settings.parse(plain | given)
    sources = sources_of(global_model, clients)
    if out is None:
        return Work(how, sources, architecture, strict, watch, None, prober).run({})
    inputs = inputs_of(global_model, clients, Path(out))
    folder = Folder(Path(out), {"settings": how.tables(), "inputs": inputs})
    with folder.in_use():
        return Work(how, sources, architecture, strict, watch, folder, prober).run(inputs)


def inputs_of(start: Any, clients: Any, folder: Path) -> dict[str, Any]:
    """The paths that were named, from the audit's folder; None for what is in memory."""

    def told(value: Any) -> str | None:
        return written(Path(value), folder) if isinstance(value, str | Path) else None

    if isinstance(clients, Mapping):
        return {"global": told(start), "clients": None}
    places = [clients] if isinstance(clients, str | Path) else list(clients)
    return {"global": told(start), "clients": [told(place) for place in places]}
