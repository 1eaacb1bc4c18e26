"""The two ways of showing the story."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pairbus import EntityState
from pairbus.demo.display import DemoStatus, EntityStatus, LiveNarrator, PlainNarrator, narrator

STATUS = DemoStatus(
    (
        EntityStatus("orders", EntityState.HEALTHY, 1_200, (("orders", 1_100),)),
        EntityStatus("prices", EntityState.FAILED_OVER, 30, (("prices/europe", 7), ("prices/large", 12))),
    ),
    backlog=1_234,
)


def test_a_line_says_states_routes_and_depth() -> None:
    assert STATUS.line == (
        "orders healthy -> primary, 1,200 sent; prices failed over -> backlog, 30 sent; 1,234 in the backlog"
    )
    assert DemoStatus((), None).line.endswith("? in the backlog")


def test_plain_lines_have_no_control_codes() -> None:
    output = io.StringIO()
    plain = PlainNarrator(output)
    with plain.watching():
        plain.show(STATUS)
        plain.say("Killed the primary.")
    assert output.getvalue().endswith(" s  Killed the primary.\n")
    assert "\x1b" not in output.getvalue()


def test_a_terminal_gets_a_table_below_the_sentences() -> None:
    output = io.StringIO()
    live = LiveNarrator(Console(file=output, force_terminal=True, width=100, height=30))
    with live.watching():
        live.show(STATUS)
        live.say("Killed the primary.")
    shown = output.getvalue()
    for part in ("Killed the primary.", "failed over", "1,234 messages in the backlog", "europe 7", "large 12"):
        assert part in shown
    assert shown.index("Killed the primary.") < shown.rindex("failed over")
    assert shown.rstrip().endswith("\x1b[?25h"), "the cursor is hidden"


def test_a_quiet_narrator_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = PlainNarrator(None)
    with quiet.watching():
        quiet.show(STATUS)
        quiet.say("Killed the primary.")
    assert capsys.readouterr() == ("", "")


def test_captured_output_gets_plain_lines() -> None:
    assert isinstance(narrator(), PlainNarrator)
