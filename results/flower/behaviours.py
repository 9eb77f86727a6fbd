"""Seven behaviours of one member, and ten seeds of honest members: python -m results.flower.behaviours.

The app is in `members/`. Each behaviour is a run in a real deployment on loopback: a SuperLink with TLS, and five
SuperNodes with registered keys. The honest seeds run in Flower's simulation. Runs that the file has are not repeated.
About 40 minutes on two cores; `--table` prints the table of what the file has.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.deployment import PATIENCE, Deployment, deployment, until

from celm.live.summary_table import format_contributions
from celm.records.class_evidence import claims_from_records
from celm.records.hash_chain import verify_chain
from celm.report.build import build_report

APP = Path(__file__).parent / "members"
BEHAVIOURS = ("honest", "nan", "wrong shape", "unchanged", "head x 10", "idle", "gone")
NAMES = ("north", "south", "east", "west", "centre")
MISBEHAVING = 2
SEED, HONEST_SEEDS, ROUNDS, LAST_ROUND_BEFORE_LEAVING = 1, range(1, 11), 12, 3


def run_behaviour(place: Deployment, behaviour: str, state: Path) -> dict[str, Any]:
    """Run the app once in the deployment, and return what the operator sees of the member."""
    member, name = NAMES[MISBEHAVING], behaviour.replace(" ", "-")
    process = place.run(name, APP, rounds=ROUNDS, seed=SEED, behaviour=behaviour, state=state)
    if behaviour == "gone":
        lines = state / "rounds.jsonl"
        until(
            lambda: lines.exists() and len(lines.read_text().splitlines()) >= LAST_ROUND_BEFORE_LEAVING,
            f"{LAST_ROUND_BEFORE_LEAVING} rounds are done",
        )
        place.stop(member)
    if process.wait(4 * PATIENCE):
        raise RuntimeError(place.log(name))
    return {
        **describe(state),
        "log": [
            re.sub(r"\x1b\[\d+m", "", line)
            for line in place.log(name).splitlines()
            if re.search(rf"round \d+: {member} is (no longer )?flagged|only .* rounds", line)
        ],
        "sentence": sentence(state, member),
        "table": format_contributions(verify_chain(state / "rounds.jsonl"), None).splitlines()[:-1],
    }


def simulate(place: Deployment, seed: int, state: Path) -> dict[str, Any]:
    """Run the app once, with honest members, in Flower's simulation."""
    name = f"seed-{seed}"
    resources = f"num-supernodes={len(NAMES)} client-resources-num-cpus=1"
    config = f'rounds={ROUNDS} seed={seed} behaviour="honest" state="{state}"'
    process = place.launch(
        name, "flwr", "run", APP, "sim", "--stream", "--federation-config", resources, "-c", config
    )
    if process.wait(4 * PATIENCE):
        raise RuntimeError(place.log(name))
    return describe(state)


def describe(state: Path) -> dict[str, Any]:
    """Return weights, earned shares, flags, claims and accuracy from a federation's record."""
    records = verify_chain(state / "rounds.jsonl")
    claims = claims_from_records(records)
    evaluations = [json.loads(line) for line in (state / "evaluations.jsonl").read_text().splitlines()]
    return {
        "weights": records[-1]["client_weights"],
        "earned": records[-1]["earned"],
        "flags": [
            [record["round"], client, kind, reason]
            for record in records
            for client, reasons in record["flags"].items()
            for kind, reason in reasons.items()
        ],
        "surely": None if claims is None else {client: list(held) for client, held in claims.surely.items()},
        "accuracy": [(line["server"] or line["clients"])["accuracy"] for line in evaluations[1:]],
    }


def sentence(state: Path, member: str) -> str:
    """Return what the summary of the report says of a member."""
    page = build_report(state)
    item = re.search(rf"<li><strong><bdi[^>]*>{member}</bdi></strong>: ([^<]*)", page)
    if item is None:
        raise RuntimeError(f"{state}: the report has no line for {member}")
    return item[1]


def table(results: Mapping[str, Any]) -> str:
    """Return the table of behaviours, and the count over the honest seeds."""
    member = NAMES[MISBEHAVING]
    lines = [
        f"| {member} | weight, % | earned, % | others' weights, % | accuracy, % | in the log | in the report |",
        "|---|---|---|---|---|---|---|",
    ]
    for behaviour in BEHAVIOURS:
        if (found := results["behaviours"].get(behaviour)) is None:
            continue
        others = " ".join(f"{100 * found['weights'].get(name, 0):.1f}" for name in NAMES if name != member)
        log = "<br>".join(re.sub(r"^\W*WARNING\W*|^\W*INFO\W*", "", line) for line in found["log"]) or "–"
        lines.append(
            f"| {behaviour} | {100 * found['weights'].get(member, 0):.1f} | {100 * found['earned'].get(member, 0):.1f} "
            f"| {others} | {100 * found['accuracy'][-1]:.1f} | {log} | {found['sentence']} |"
        )
    honest = results["honest seeds"]
    flagged = {seed: found["flags"] for seed, found in honest.items() if found["flags"]}
    lines += ["", f"Honest seeds: {len(honest)}; with a flag: {len(flagged)} {flagged or ''}"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--table", action="store_true", help="print the table of what the file has, and end")
    options = parser.parse_args()
    results: dict[str, Any] = {"behaviours": {}, "honest seeds": {}}
    if options.out.exists():
        results |= json.loads(options.out.read_text())
    if options.table:
        print(table(results))
        return

    def keep(group: str, key: str, found: dict[str, Any]) -> None:
        results[group][key] = found
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        print(group, key, {k: f"{100 * v:.1f}" for k, v in found["earned"].items()}, flush=True)

    folder = Path(tempfile.mkdtemp())
    with deployment(folder, secure=True) as place:
        with (place.home / "config.toml").open("a") as config:
            config.write('\n[superlink.sim]\naddress = ":local:"\n')
        for seed in map(str, HONEST_SEEDS):
            if seed not in results["honest seeds"]:
                keep("honest seeds", seed, simulate(place, int(seed), folder / f"state-seed-{seed}"))
        place.superlink()
        for partition, name in enumerate(NAMES):
            place.supernode(name, partition, len(NAMES), place.key(name))
        for behaviour in BEHAVIOURS:
            if behaviour not in results["behaviours"]:
                state = folder / f"state-{behaviour.replace(' ', '-')}"
                keep("behaviours", behaviour, run_behaviour(place, behaviour, state))
    print(table(results))


if __name__ == "__main__":
    main()
