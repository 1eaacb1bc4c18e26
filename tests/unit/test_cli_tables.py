"""Tables of what strangers wrote: whatever is in an id or a reason is shown, and does nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.cli.__main__ import _refuse
from pairbus.cli.plain import plain
from pairbus.cli.tables import print_rows


@dataclass(frozen=True, slots=True)
class Row:
    message_id: str
    reason: str | None = None


@pytest.mark.parametrize("text", ["[/oops]", "order[red]17", "[link=http://example.org]x[/link]", ":bomb:", "a\\[b"])
def test_markup_is_only_text(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([Row(text, text)], as_json=False)
    assert capsys.readouterr().out.count(f" {text} ") == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb\x1b]0;title\x07", r"a\x1b[31mb\x1b]0;title\x07"),
        ("one\ntwo\rthree", r"one\ntwo\rthree"),
        ("abc\u202edcba", r"abc\u202edcba"),
        ("half \ud800", r"half \ud800"),
        ("Bestellung-ü 注文 17", "Bestellung-ü 注文 17"),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([Row(text)], as_json=False)
    assert f" {shown} " in capsys.readouterr().out


def test_json_has_the_text_itself(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([Row("a\x1b[31m", "[/oops]")], as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"message_id": "a\x1b[31m", "reason": "[/oops]"}]


@given(st.text(st.characters()))
def test_nothing_that_is_not_printable_is_left(text: str) -> None:
    assert plain(text).isprintable()
    assert plain(plain(text)) == plain(text)


def test_a_refusal_keeps_its_lines_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    _refuse("The namespace said: \x1b[2Jgone\nand more")
    assert capsys.readouterr().err == "pairbus: The namespace said: \\x1b[2Jgone\nand more\n"
