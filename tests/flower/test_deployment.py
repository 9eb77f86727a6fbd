"""The strategy in real deployments on loopback: keys and certificates, kills, resumption, malice.

An exchange with SuperNodes takes about ten seconds, whatever the work; these tests take minutes.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from celm.live.round_record import verify_chain
from support.deployment import PATIENCE, Deployment, deployment, kill, until

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "east")


def rounds_in(state: Path) -> int:
    path = state / "rounds.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def finished(process: Any, place: Deployment, name: str) -> str:
    assert process.wait(PATIENCE) == 0, place.log(name)
    return place.log(name)


def on_simplex(weights: dict[str, float]) -> bool:
    return min(weights.values()) >= 0 and math.isclose(sum(weights.values()), 1, abs_tol=1e-9)


def test_a_node_that_is_killed_and_comes_back_keeps_its_place_under_tls_and_node_authentication(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    with deployment(tmp_path, secure=True) as place:
        place.superlink()
        keys = {name: place.key(name) for name in NAMES}
        stranger = place.key("stranger", register=False)
        for i, name in enumerate(NAMES):
            place.supernode(name, i, 3, keys[name])
        # Who has no key, or one that nobody registered, does not get in: Flower's exit 305 is a refusal.
        for name, key in (("keyless", None), ("unknown", stranger)):
            outsider = place.supernode(name, 0, 3, key)
            assert outsider.wait(PATIENCE) != 0, place.log(name)
            assert "305" in place.log(name)
        run = place.run("run", place.app(), rounds=6, nodes=2, state=state)
        until(lambda: rounds_in(state) >= 2, "two rounds are done")
        place.stop("south")
        until(lambda: rounds_in(state) >= 4, "four rounds are done")
        place.supernode("south", 1, 3, keys["south"])
        finished(run, place, "run")
    records = verify_chain(state / "rounds.jsonl")
    assert len(records) == 6
    assert all(on_simplex(record["client_weights"]) and on_simplex(record["weights"]) for record in records)
    assert set(records[1]["weights"]) == set(NAMES)
    # In the middle of a round it is excluded; in the next it is known to be absent.
    missed = [record for record in records if "south" not in record["weights"]]
    assert missed
    assert all("south" in record["absent"] or "south" in record["excluded"] for record in missed)
    assert any("south" in record["absent"] for record in missed)
    assert all(set(record["client_weights"]) == set(NAMES) for record in records)


@pytest.mark.parametrize("after", [1, 3], ids=["in-warm-up", "after-warm-up"])
def test_a_server_killed_with_9_goes_on_to_the_same_weights(tmp_path: Path, after: int) -> None:
    """Two rounds of warm-up; a run without a kill beside it, on the same nodes."""
    with deployment(tmp_path) as place:
        place.superlink()
        for i, name in enumerate(NAMES):
            place.supernode(name, i, 3)
        server = (place.app() / "quickstart" / "server_app.py").read_text()
        app = tmp_path / "app"
        warm = server.replace("classes=10,", 'classes=10, rule_options={"warmup": 2},')
        assert warm != server
        (app / "quickstart" / "server_app.py").write_text(warm)
        whole, killed = tmp_path / "whole", tmp_path / "killed"
        finished(place.run("whole", app, rounds=4, nodes=3, state=whole), place, "whole")
        place.run("killed", app, rounds=4, nodes=3, state=killed)
        until(lambda: rounds_in(killed) >= after, f"{after} rounds are done")
        kill(place.serverapp())
        place.stop("killed")
        done = rounds_in(killed)
        assert done < 4
        finished(place.run("resumed", app, rounds=4, nodes=3, state=killed), place, "resumed")
        # A round's line comes before its state: killed between the two, the round is done again.
        gone_on = re.search(r"Resuming after round (\d)", place.log("resumed"))
        assert gone_on or done == 1, place.log("resumed")
        assert not gone_on or int(gone_on[1]) in (done - 1, done)
    expected, found = verify_chain(whole / "rounds.jsonl"), verify_chain(killed / "rounds.jsonl")
    for key in ("model", "client_weights", "weights", "evidence", "received"):
        assert [record[key] for record in found] == [record[key] for record in expected]


MALICIOUS = '''
"""The example's client, which misbehaves as its node's configuration says."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.recorddict_pb2 import MetricRecord as ProtoMetricRecord
from flwr.proto.recorddict_pb2 import MetricRecordValue
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

from quickstart import honest

app = ClientApp()


class UnsetMetrics(MetricRecord):
    def deflate(self):
        items = [ProtoMetricRecord.Item(key="loss", value=MetricRecordValue())]
        return add_header_to_object_body(ProtoMetricRecord(items=items).SerializeToString(), self)


UnsetMetrics.__qualname__ = "MetricRecord"


@app.train()
def fit(message, context):
    reply = honest.fit(message, context)
    arrays = dict(reply.content["arrays"])
    name = next(iter(arrays))
    behaviour = context.node_config.get("behaviour", "")
    if behaviour == "nan":
        arrays[name] = Array(np.full(arrays[name].shape, np.nan, np.float32))
    elif behaviour == "shape":
        arrays[name] = Array(np.zeros((3, 3), np.float32))
    elif behaviour == "huge":
        arrays[name] = Array(np.zeros(50_000_000, np.float32))
    elif behaviour == "name":
        arrays["\\x1b[2J<script>alert(1)</script>" + 5000 * "x"] = Array(np.zeros(1))
    content = RecordDict({"arrays": ArrayRecord(arrays)})
    if behaviour == "unset":
        content["metrics"] = UnsetMetrics()
    return Message(content, reply_to=message)
'''


def test_malicious_nodes_are_excluded_and_named_and_the_run_finishes(tmp_path: Path) -> None:
    state = tmp_path / "state"
    reasons = {
        "nan": "values are not finite",
        "shape": "expected shape (32, 64), declared (3, 3)",
        "huge": "expected shape (32, 64), declared (50000000,)",
        "name": "unexpected array '\\x1b[2J<script>",
        "unset": "Flower cannot read it (AttributeError",
    }
    with deployment(tmp_path, secure=True) as place:
        place.superlink()
        members = [*NAMES[:2], *reasons]
        for i, name in enumerate(members):
            key = place.key(name)
            place.supernode(name, i, len(members), key, **({"behaviour": name} if name in reasons else {}))
        app = place.app(client_app=MALICIOUS)
        (app / "quickstart" / "honest.py").write_text(
            (Path(__file__).parents[2] / "examples/flower-quickstart/quickstart/client_app.py").read_text()
        )
        log = finished(place.run("run", app, rounds=2, nodes=7, state=state), place, "run")
    records = verify_chain(state / "rounds.jsonl")
    assert len(records) == 2
    for record in records:
        assert set(record["weights"]) == set(NAMES[:2])
        assert set(record["excluded"]) == set(reasons)
        for name, reason in reasons.items():
            assert reason in record["excluded"][name]
            assert len(record["excluded"][name]) < 300
    for name in reasons:
        assert f"round 1: {name} is flagged" in log
    assert "\x1b[2J" not in log
    text = (state / "rounds.jsonl").read_text()
    assert "\x1b" not in text
    json.loads(text.splitlines()[0])
