"""The runbook: every command of the page runs, in its order, against a state folder.

A shell runs the commands, but `celm` itself runs in this process: to start it twenty times would take longer than all
else. Tests in tests/cli start it as a program.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.proto.node_pb2 import NodeInfo
from typer.testing import Result

from support.consortium import members, play_consortium
from support.http_receiver import http_receiver
from support.small_grid import SmallGrid, initial, network
from support.state_folders import lines_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")


class GridWithKeys(SmallGrid):
    """Nodes whose public keys are those of files, once these exist."""

    def __init__(self, folder: Path) -> None:
        super().__init__(members())
        self.folder = folder

    def get_nodes(self) -> Iterable[NodeInfo]:
        nodes = list(super().get_nodes())
        public_key = self.folder / "north-new.pub"
        if public_key.exists():
            command = ["ssh-keygen", "-e", "-m", "PKCS8", "-f", str(public_key)]
            pem = subprocess.run(command, capture_output=True, check=True).stdout
            nodes = [
                NodeInfo(node_id=node.node_id, name=node.name, public_key=pem)
                if node.name == "north"
                else node
                for node in nodes
            ]
        return nodes


def blocks() -> list[tuple[str, str]]:
    """Return language and text of each block of the page, in order."""
    found = re.findall(r"^( *)```(bash|python)\n(.*?)^\1```$", PAGE, re.DOTALL | re.MULTILINE)
    return [(language, textwrap.dedent(text)) for _, language, text in found]


@contextmanager
def celm_in_this_process(folder: Path, invoke: Callable[..., Result]) -> Iterator[Path]:
    """Yield a folder with a program `celm`, which passes its arguments on to this process."""
    programs = folder / "bin"
    programs.mkdir()
    request, reply = programs / "request", programs / "reply"
    os.mkfifo(request)
    os.mkfifo(reply)
    names = {"request": shlex.quote(str(request)), "reply": shlex.quote(str(reply))}
    script = """#!/usr/bin/env bash
printf '%s\\0' "$@" > {request}
{{ IFS= read -r -d '' code; IFS= read -r -d '' errors; printf %s "$errors" >&2; cat; }} < {reply}
exit "$code"
""".format(**names)
    (programs / "celm").write_text(script)
    (programs / "celm").chmod(0o755)

    def serve() -> None:
        while arguments := request.read_text().split("\0")[:-1]:
            result = invoke(*arguments)
            reply.write_text(f"{result.exit_code}\0{result.stderr}\0{result.stdout}")

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        yield programs
    finally:
        request.write_text("")
        server.join()


def run_bash(block: str, folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-ec", block], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_no_process_is_ended_by_a_broad_name() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")]:
        assert not re.search(r"\b(pkill|killall)\b", path.read_text(encoding="utf-8")), path


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="commands of a POSIX shell")
def test_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Callable[..., Result]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "nets.py").write_text("from support.small_grid import network as make\n")
    state = tmp_path / "consortium"
    play_consortium(state)
    names: dict[str, Any] = {"model": network(), "grid": GridWithKeys(tmp_path), "arrays": initial()}
    records: list[list[dict[str, Any]]] = []
    with http_receiver() as (url, received), celm_in_this_process(tmp_path, invoke) as programs:
        replacements = {
            "https://chat.example.org": url,
            "/usr/local/bin/page-operator": "true",
            "/var/lib/celm": str(tmp_path),
            "(1, 28, 28)": "(6,)",
            "1,28,28": "6",
            "classes=10": "classes=3",
            "--classes 10": "--classes 3",
        }
        for number, (language, text) in enumerate(blocks()):
            for shown, used in replacements.items():
                text = text.replace(shown, used)
            if language == "python":
                exec(compile(text, "<runbook>", "exec"), names)
                records.append(lines_of(state / "rounds.jsonl"))
                continue
            done = run_bash(text, tmp_path, programs)
            # The first command finds what is wrong in this federation.
            assert done.returncode == (4 if number == 0 else 0), (text, done.stdout, done.stderr)
    found = json.loads((tmp_path / "check.json").read_text())
    assert set(found["flags"]) >= {"east"}
    assert set(found["excluded"]) == {"west"}
    with (tmp_path / "final-payout.csv").open(newline="") as file:
        assert sum(Decimal(row["amount"]) for row in csv.DictReader(file)) == 10000
    assert not received  # the flags are as they were
    # Rounds 9 and 10 were added, then a round with a new key; then a new federation began.
    amended = [[a["setting"] for a in line["amendments"]] for line in records[-2]]
    assert "rounds" in amended[8]
    assert "key of north" in amended[10]
    fingerprint = (tmp_path / "new-fingerprint").read_text().strip()
    assert records[-2][10]["keys"]["north"] == f"key-{fingerprint}"
    assert len(records[-1]) == 2
    assert records[-1][0]["start"] == records[-2][10]["model"]
    assert (tmp_path / "dispute" / "report.html").exists()
