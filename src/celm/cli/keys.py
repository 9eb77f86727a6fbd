"""`celm keys`: make, show, rotate and revoke the key that signs a record."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from celm.base.errors import CelmError
from celm.cli import options
from celm.cli.output import Format, print_json, stdout_console

if TYPE_CHECKING:
    from celm.records.signed.keys import SigningKey


class KeyAlgorithm(StrEnum):
    ed25519 = "ed25519"
    ecdsa = "ecdsa"


_StateFolder = Annotated[Path, typer.Argument(metavar="STATE_DIR", help="State folder of a Flower strategy.")]
_NewKey = Annotated[Path, typer.Option("--new", help="The new private key.")]


def keys_make_command(
    path: Annotated[Path, typer.Argument(help="File for the private key; the public key gets .pub.")],
    algorithm: Annotated[
        KeyAlgorithm,
        typer.Option(help="ecdsa (on the curve P-256): for members who also verify by model-signing."),
    ] = KeyAlgorithm.ed25519,
    format: options.FormatOption = Format.text,
) -> None:
    """Make a key that signs a record, and its public key for the members.

    The private key is not encrypted. Only its owner may read it (POSIX).

    [bold]Example[/bold]

      celm keys make /etc/celm/consortium
    """
    from celm.records.signed.keys import SigningKey

    key = SigningKey.make(algorithm.value)
    public_path = key.write(path)
    if format is Format.json:
        print_json({"private": str(path), "public": str(public_path), "key": key.public.id})
        return
    stdout_console().print(
        Text(f"private key: {path}\npublic key for members: {public_path}\nkey id: {key.public.id}"),
        soft_wrap=True,
    )


def keys_show_command(
    path: Annotated[Path, typer.Argument(help="A public key, or a private one.")],
    format: options.FormatOption = Format.text,
) -> None:
    """Print the id of a key and its public part, for members to compare.

    [bold]Example[/bold]

      celm keys show consortium.pub
    """
    from celm.records.signed.keys import PublicKey, SigningKey

    try:
        key = PublicKey.read(path)
    except CelmError:
        key = SigningKey.read(path).public
    if format is Format.json:
        print_json({"key": key.id, "public": key.pem})
        return
    stdout_console().print(Text(f"key id: {key.id}\n{key.pem.rstrip()}"), soft_wrap=True)


def keys_rotate_command(
    folder: _StateFolder,
    key: Annotated[Path, typer.Option(help="The private key that signs the record now.")],
    new: _NewKey,
    format: options.FormatOption = Format.text,
) -> None:
    """Record a new key, signed by both: members may keep the old public key.

    Stop the server first, and start it with the new key.

    [bold]Example[/bold]

      celm keys rotate /var/lib/celm/consortium --key /etc/celm/consortium --new /etc/celm/consortium-2
    """
    from celm.records.signed.keys import SigningKey

    _change_key(folder, SigningKey.read(new), SigningKey.read(key), format)


def keys_revoke_command(
    folder: _StateFolder, new: _NewKey, format: options.FormatOption = Format.text
) -> None:
    """Revoke a lost or stolen key: record a new one, signed by the new key only.

    The old public key no longer vouches for the record, so members need the
    new one, by a way that whoever stole the key cannot use. Stop the server
    first, and start it with the new key.

    [bold]Example[/bold]

      celm keys revoke /var/lib/celm/consortium --new /etc/celm/consortium-2
    """
    from celm.records.signed.keys import SigningKey

    _change_key(folder, SigningKey.read(new), None, format)


def _change_key(folder: Path, new_key: SigningKey, old_key: SigningKey | None, format: Format) -> None:
    from celm.live.federation_folder import FederationFolder
    from celm.records.federation_files import is_state_folder
    from celm.records.signed.head_log import read_signed_record

    if not is_state_folder(folder):
        raise CelmError(f"{folder} is not a state folder, which has a rounds.jsonl")
    with FederationFolder(folder).lock():
        heads = read_signed_record(folder).heads
        head = heads.change_key(new_key, old_key)
    event = heads.events[-1]
    if format is Format.json:
        print_json(
            {"event": event.event, "key": event.key.id, "replaces": event.replaces, "round": head.round}
        )
        return
    text = f"{event.event}: the key {event.key.id} signs the record from round {head.round} on"
    stdout_console().print(Text(f"{text}, in place of {event.replaces}"), soft_wrap=True)
