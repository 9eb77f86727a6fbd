"""Signed heads in a real deployment: SuperNodes that keep heads, and servers that rewrite what they signed.

The record of three honest rounds is copied for each kind of dishonest server. Each server chains and signs its copy
anew with the consortium's own key and goes on with the same nodes, which have kept the heads of the honest rounds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from typer.testing import Result

from celm.records.signed.kept_heads import KeptHeads
from celm.records.signed.keys import PublicKey
from support.deployment import PATIENCE, Deployment, deployment
from support.signed_folders import REWRITES, change_salt, make_key, public, rewrite, sign_every_round
from support.state_folders import lines_of

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c")
WATCHERS = ("a", "b")
"""Members that keep heads; c has the unchanged client app."""


def serve(place: Deployment, app: Path, name: str, state: Path, rounds: int) -> str:
    process = place.run(name, app, rounds=rounds, nodes=3, state=state)
    process.wait(2 * PATIENCE)  # several rounds
    return place.log(name)


def kept(folder: Path, key: Path) -> list[int]:
    return [head.round for head in KeptHeads(folder, PublicKey.read(public(key))).read()]


def check_refused(place: Deployment, log: str, state: Path) -> None:
    """Check that the members with kept heads took no part in the last round, and said why."""
    last = lines_of(state / "rounds.jsonl")[-1]
    assert set(last["received"]) == {"c"}, log
    for name in WATCHERS:
        assert "its app raised an error" in last["excluded"][name]
        assert "ForkError" in last["excluded"][name]
        assert "the signed head of the record is refused" in place.log(name)


def test_members_that_kept_a_head_catch_a_dishonest_server(
    tmp_path: Path, invoke: Callable[..., Result]
) -> None:
    key, honest = make_key(tmp_path), tmp_path / "honest"
    with deployment(tmp_path, secure=True) as place:
        place.superlink()
        for i, name in enumerate(NAMES):
            watch = {"celm-heads": str(tmp_path / "heads" / name), "celm-key": str(public(key))}
            place.supernode(name, i, 3, place.key(name), **(watch if name in WATCHERS else {}))
        app = place.app()
        client, server = (app / "quickstart" / f"{side}_app.py" for side in ("client", "server"))
        text = client.read_text()
        client.write_text(
            text.replace(
                "app = ClientApp()",
                "from celm.flower.witness import witness\n\n"
                "def watch(message, context, call_next):\n"
                '    if "celm-heads" not in context.node_config:\n'
                "        return call_next(message, context)\n"
                "    return witness()(message, context, call_next)\n\n"
                "app = ClientApp(mods=[watch])",
            )
        )
        assert client.read_text() != text
        text = server.read_text()
        settings = f'classes=10, signing_key="{key}", min_clients=1, retries=0,'
        server.write_text(text.replace("classes=10,", settings))
        assert server.read_text() != text

        serve(place, app, "honest", honest, 3)
        records = lines_of(honest / "rounds.jsonl")
        assert len(records) == 3
        assert all(set(record["received"]) == set(NAMES) for record in records)
        assert set(records[2]["witnesses"]) == set(WATCHERS)
        seen = {name: kept(tmp_path / "heads" / name, key) for name in WATCHERS}
        assert all(rounds[:2] == [1, 2] for rounds in seen.values())

        # Servers that change what was signed up to round 3, and chain and sign it anew.
        for name, edit in REWRITES.items():
            state = tmp_path / name.split()[0]
            shutil.copytree(honest, state)
            rewrite(state, edit)
            sign_every_round(state, key)
            check_refused(place, serve(place, app, state.name, state, 4), state)

        # A server that goes on with what it signed is not refused.
        shutil.copytree(honest, tmp_path / "same")
        log = serve(place, app, "same", tmp_path / "same", 4)
        assert set(lines_of(tmp_path / "same" / "rounds.jsonl")[3]["received"]) == set(NAMES), log

        # The same rounds with another salt in round 3: another head of this round, for the same members.
        shutil.copytree(honest, tmp_path / "other")
        rewrite(tmp_path / "other", change_salt)
        sign_every_round(tmp_path / "other", key)
        check_refused(place, serve(place, app, "other", tmp_path / "other", 4), tmp_path / "other")
        for name in WATCHERS:
            assert "two different heads of round 3 are signed" in place.log(name)
            assert kept(tmp_path / "heads" / name, key) == [1, 2, 3]

    # What the member kept also shows the fork without the server: the proof of a dishonest record fails.
    proof, heads = tmp_path / "proof.json", tmp_path / "heads" / "a" / "heads.jsonl"
    arguments = ("--key", public(key), "--head", heads)
    for name, since, code in (("same", 2, 0), ("rewrites", 2, 2)):
        made = invoke("audit-verify", tmp_path / name, "--proof", "a", 2, "--since", since, "--out", proof)
        assert made.exit_code == 0, made.output
        assert invoke("verify-proof", proof, "--key", public(key)).exit_code == 0
        assert invoke("verify-proof", proof, *arguments).exit_code == code
