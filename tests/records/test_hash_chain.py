"""The chained record: what a change to it looks like to whoever verifies it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from celm.base.errors import CelmError
from celm.records.hash_chain import GENESIS, parse_digest, verify_chain


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Four lines, written as the docs describe them and not by what verifies them."""
    lines: list[str] = []
    for number in (1, 2, 3, 4):
        previous = sha256(lines[-1]) if lines else GENESIS
        line = {"round": number, "weight": number / 10, "previous": previous}
        lines.append(json.dumps(line))
    (tmp_path / "rounds.jsonl").write_text("".join(line + "\n" for line in lines))
    return tmp_path


def lines_of(state: Path) -> list[str]:
    return (state / "rounds.jsonl").read_text().splitlines()


def write(state: Path, lines: list[str]) -> Path:
    (state / "rounds.jsonl").write_text("".join(line + "\n" for line in lines))
    return state / "rounds.jsonl"


def test_an_untouched_record_is_confirmed_up_to_the_digest_that_was_given_out(state: Path) -> None:
    last = sha256(lines_of(state)[-1])
    assert [line["round"] for line in verify_chain(state / "rounds.jsonl")] == [1, 2, 3, 4]
    for given in (last, last.upper(), f"{last}  -\n"):
        assert len(verify_chain(state / "rounds.jsonl", last=given)) == 4


@pytest.mark.parametrize("content", [None, "", "\n", '{"round": 1'])
def test_no_record_is_no_whole_record(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "rounds.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CelmError, match=r"rounds\.jsonl"):
        verify_chain(path)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_changed_line_is_one_of_the_two_that_are_named(state: Path, number: int) -> None:
    lines = lines_of(state)
    lines[number - 1] = lines[number - 1].replace('"weight": 0.', '"weight": 0.9')
    with pytest.raises(CelmError, match=f"at line {number} or {number + 1}"):
        verify_chain(write(state, lines))


def test_a_line_is_its_bytes(state: Path) -> None:
    """JSON that means the same is another line: a key given twice, of which readers take the last, among it."""
    lines = lines_of(state)
    lines[1] = lines[1].replace('"weight"', '"weight": 0.9, "weight"')
    with pytest.raises(CelmError, match="at line 2 or 3"):
        verify_chain(write(state, lines))


@pytest.mark.parametrize(
    ("kept", "where"),
    [([0, 2, 3], "line 1 or 2"), ([1, 2, 3], "first line"), ([0, 1, 1, 2, 3], "line 2 or 3")],
)
def test_a_dropped_or_repeated_line_is_found(state: Path, kept: list[int], where: str) -> None:
    lines = lines_of(state)
    with pytest.raises(CelmError, match=where):
        verify_chain(write(state, [lines[i] for i in kept]))


@pytest.mark.parametrize("act", ["change", "drop", "tear"])
def test_what_happens_to_the_last_line_is_found_by_its_digest(state: Path, act: str) -> None:
    lines = lines_of(state)
    last = sha256(lines[-1])
    path = state / "rounds.jsonl"
    if act == "change":
        write(state, [*lines[:3], lines[3].replace("0.4", "0.9")])
    elif act == "drop":
        write(state, lines[:3])
    else:
        path.write_text(path.read_text()[:-1])
    verify_chain(path)  # as it must, who kept nothing cannot know
    with pytest.raises(CelmError, match=f"no line of .* has the digest {last}"):
        verify_chain(path, last=last)


def test_an_earlier_digest_says_which_lines_it_vouches_for(state: Path) -> None:
    with pytest.raises(CelmError, match=r"digest of line 2, and 2 follow .*lines 1 to 2"):
        verify_chain(state / "rounds.jsonl", last=sha256(lines_of(state)[1]))


@pytest.mark.parametrize("text", ["", "abc", "g" * 64, "0" * 63, "0" * 65])
def test_what_is_no_digest_is_said_so(text: str) -> None:
    with pytest.raises(CelmError, match="not a SHA-256"):
        parse_digest(text)
