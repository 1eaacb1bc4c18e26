"""The reference pages name everything there is: an option, error or metric that is not documented fails here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pairbus import TransitionEvent, errors
from pairbus.pairing import observers
from pairbus.pairing.options import OPTION_NAMES

DOCS = Path(__file__).parents[3] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_option_has_its_row_and_no_other_has() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]*\| [^|]+ \|$", page("reference/options.md"), re.MULTILINE))
    assert rows == set(OPTION_NAMES)


def test_every_error_is_in_the_tree_of_the_page_and_of_the_module() -> None:
    ours = {
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.PairbusError)
    }
    for text in (page("reference/errors.md"), str(errors.__doc__)):
        tree = set(re.findall(r"── (\w+)", text))
        assert tree == ours


def test_every_metric_is_on_the_page() -> None:
    named = set(re.findall(r"`(pairbus_\w+)`", page("reference/metrics.md")))
    of_pairs = {name for name in named if not name.startswith("pairbus_syphon_")}
    assert set(re.findall(r"\| (pairbus_\w+) \|", str(observers.__doc__))) == of_pairs


def test_every_field_of_an_event_is_on_the_page() -> None:
    text = page("reference/events.md")
    for field in TransitionEvent.__dataclass_fields__:
        assert f"`{field}`" in text


@pytest.mark.parametrize(
    "name",
    [
        "tutorial.md",
        "guarantees.md",
        "moving-from-dotnet.md",
        "reference/options.md",
        "reference/errors.md",
        "reference/events.md",
        "reference/metrics.md",
        "reference/states.md",
    ],
)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page(name)):
        assert ((DOCS / name).parent / target).exists(), target


def test_the_python_of_the_pages_can_be_read() -> None:
    for name in ("tutorial.md", "moving-from-dotnet.md", "reference/events.md"):
        for block in re.findall(r"```python\n(.*?)```", page(name), re.DOTALL):
            compile(block, name, "exec")
