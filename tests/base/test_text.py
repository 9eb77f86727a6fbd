"""Untrusted text: control characters, bidirectional overrides, surrogates and length."""

from __future__ import annotations

import ast
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.base.text import format_exception, printable, quote, single_line, truncate

UNSAFE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode's own: control, format (bidirectional overrides among them), surrogate, private, unassigned, separators."""

ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.sampled_from(
    ["\x1b[2J\x1b[31m", "a\u202eb\u2066c", "\udc80", "\x00", "\u2028", "é😀", "\\x1b"]
)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("ward 7é 😀", "ward 7é 😀"),
        ("a\x1b[2J", r"a\x1b[2J"),
        ("one\ntwo\r\t", r"one\ntwo\r\t"),
        ("abc\u202edcba\u2066", r"abc\u202edcba\u2066"),
        ("\udcff", r"\udcff"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, escaped: str) -> None:
    assert printable(text) == escaped


def test_unprintable_characters_are_replaced_on_request() -> None:
    assert printable("a\x1b\u202eb", replacement="?") == "a??b"
    assert printable("a\x1bb", replacement="") == "ab"


@given(ANY_TEXT)
def test_printable_text_has_no_unsafe_character_and_can_be_encoded(text: str) -> None:
    for safe in (printable(text), printable(text, replacement=" ")):
        assert not {unicodedata.category(char) for char in safe} & UNSAFE_CATEGORIES
        safe.encode()


@given(ANY_TEXT)
def test_escapes_can_be_read_back(text: str) -> None:
    """Python's own parser is the oracle; backslashes and quotes are doubled first, so that only escapes are read."""
    protected = text.replace("\\", "\\\\").replace('"', '\\"')
    assert ast.literal_eval(f'"{printable(protected)}"') == text


@given(ANY_TEXT, st.integers(1, 20))
def test_truncated_text_is_bounded_and_marked(text: str, limit: int) -> None:
    short = truncate(text, limit)
    assert len(short) <= limit
    assert short == text if len(text) <= limit else (short[-1] == "…" and text.startswith(short[:-1]))


@pytest.mark.parametrize("text", ["", "  ", "\n\t"])
def test_blank_text_is_an_empty_line(text: str) -> None:
    assert single_line(text) == ""


def test_a_single_line_keeps_the_words() -> None:
    assert single_line("a\n  b\r\n\tc\u2028d") == "a b c d"


@given(
    ANY_TEXT | st.sampled_from(["'" * 500, "\"'" * 500, "x" * 10_000, "\U0001f600" * 90]), st.integers(4, 100)
)
def test_a_quoted_name_is_bounded_ascii(name: str, limit: int) -> None:
    quoted = quote(name, limit)
    assert len(quoted) <= limit + 6
    assert quoted.isascii()
    assert quoted.isprintable()


def test_a_short_name_is_quoted_as_python_does_and_a_long_one_is_cut() -> None:
    assert quote("fc1.weight") == "'fc1.weight'"
    assert quote("a\n\u202e") == r"'a\n\u202e'"
    assert quote("x" * 100, 10) == "'xxxxxxxxx...'"


@pytest.mark.parametrize(("value", "described"), [(7, "of int name"), (None, "of NoneType name")])
def test_a_value_that_is_not_text_is_described_by_its_type(value: object, described: str) -> None:
    assert quote(value) == described


def test_an_exception_is_one_bounded_printable_line() -> None:
    assert format_exception(ValueError("a\nb")) == "ValueError: a b"
    assert format_exception(ValueError()) == "ValueError"
    assert format_exception(ValueError("\x1b\u202e")) == r"ValueError: \x1b\u202e"
    hostile = format_exception(ValueError("\u202e" * 10_000), limit=50)
    assert len(hostile) == 50
    assert hostile.isprintable()
