"""Tables of what strangers wrote: whatever is in an id or a reason is shown, and does nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.cli.__main__ import _refuse, run
from pairbus.cli.cost import format_result
from pairbus.cli.output import counted, plain, print_rows


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


def test_things_are_counted_as_people_say_it() -> None:
    assert [counted(number, "day") for number in (0, 1, 1000)] == ["0 days", "1 day", "1,000 days"]


def test_a_row_of_a_simulation_has_one_format() -> None:
    assert [format_result("availability", value) for value in (1.0, 0.99951234)] == ["1.000000", "0.999512"]
    assert [format_result("amount", value) for value in (10.0, 1234.5678)] == ["10.00", "1,234.57"]
    assert [format_result("pings", value) for value in (3.0, 2.25, 12345.0)] == ["3.0", "2.2", "12,345.0"]


def test_a_fleet_with_an_unknown_tariff_is_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text('tariff = "other"\n')
    assert run(["simulate", str(fleet)]) == 2
    assert "no tariff 'other'" in capsys.readouterr().err
