"""A mod for ClientApps: keep the signed heads of the record, and refuse a server that contradicts them.

    from celm.flower.witness import witness

    app = ClientApp(mods=[witness("/var/lib/celm/heads", key="/etc/celm/consortium.pub")])

Before the app trains or evaluates, the signed head in the message is checked: the consortium's key has signed it, and
it continues the last head that was kept. It is then appended to heads.jsonl in the folder, and the reply returns its
digest. The server records that this member has seen it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from logging import ERROR, WARNING
from pathlib import Path

from flwr.app import Context, Message
from flwr.common import log

from celm.base.errors import CelmError
from celm.base.files import PRIVATE_FOLDER, os_errors_as_celm_error
from celm.flower.head_records import WITNESS_RECORD, received_head, witness_record
from celm.records.signed.kept_heads import KeptHeads
from celm.records.signed.keys import PublicKey

_Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, _Call], Message]
FOLDER_SETTING, KEY_SETTING = "celm-heads", "celm-key"
"""Keys of the node's configuration for the folder and the public key."""


def witness(folder: str | Path | None = None, key: str | Path | None = None, on_fork: str = "stop") -> Mod:
    """Return a mod that keeps signed heads in `folder` and checks them with the public key in the file `key`.

    By default both are those of the node: `flower-supernode --node-config 'celm-heads="..." celm-key="..."'`. A head
    that fails a check is logged as an error. With `on_fork="stop"` the member does not train on it; with "log" it does.
    """
    if on_fork not in ("stop", "log"):
        raise CelmError(f"on_fork must be 'stop' or 'log', not {on_fork!r}")

    def check_then_call(message: Message, context: Context, call_next: _Call) -> Message:
        try:
            digest = _keep_head(message, _open(folder, key, context))
        except CelmError as error:
            log(ERROR, "the signed head of the record is refused: %s", error)
            if on_fork == "stop":
                raise
            digest = None
        reply = call_next(message, context)
        if digest is not None and reply.has_content():
            reply.content[WITNESS_RECORD] = witness_record(digest)
        return reply

    return check_then_call


def _open(folder: str | Path | None, key: str | Path | None, context: Context) -> KeptHeads:
    config = context.node_config
    paths = [given or config.get(name) for given, name in ((folder, FOLDER_SETTING), (key, KEY_SETTING))]
    for path, name in zip(paths, (FOLDER_SETTING, KEY_SETTING), strict=True):
        if not isinstance(path, str | Path):
            raise CelmError(f"the node has no setting '{name}'", f"--node-config '{name}=\"PATH\"'")
    kept_folder, key_path = (Path(str(path)) for path in paths)
    with os_errors_as_celm_error(kept_folder, "create"):
        kept_folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    return KeptHeads(kept_folder, PublicKey.read(key_path))


def _keep_head(message: Message, kept: KeptHeads) -> str | None:
    """Check and keep the head in a message; return its digest, None if the message has no head."""
    text = received_head(message.content)
    if text is None:
        if kept.read():
            log(WARNING, "the server sent no signed head, but did so before")
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CelmError("the signed head from the server is not JSON") from error
    if not isinstance(document, dict):
        raise CelmError("the signed head from the server is not a JSON object")
    return kept.accept(document).digest
