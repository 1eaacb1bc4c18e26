"""What the census makes of what it saw."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pairbus.drill.census import Account, Census
from pairbus.drill.running import MAX_LOST_SHOWN, _Drill
from pairbus.drill.scenario import parse_scenario
from pairbus.drill.senders import Senders
from pairbus.drill.stage import RealStage
from pairbus.syphon import Namespace

ACCEPTED = ["a", "b", "c", "d"]


def test_what_is_delivered_and_still_on_its_way_is_there_twice() -> None:
    census = Census({"orders": Counter({"a": 1, "b": 2, "c": 1})}, waiting={"a", "b"}, spooled={"a", "d"})
    account, lost = census.account("orders", ACCEPTED)
    assert (account.delivered, account.waiting, account.spooled, account.duplicates) == (3, 2, 2, 4)
    assert lost == []


@pytest.mark.parametrize(("copies", "duplicates"), [(1, 0), (3, 2)])
def test_an_entity_that_detects_duplicates_keeps_what_it_has(copies: int, duplicates: int) -> None:
    census = Census({"orders": Counter({"a": copies})}, waiting={"a"}, spooled={"b"})
    account, lost = census.account("orders", ACCEPTED, detects_duplicates=True)
    assert account.duplicates == duplicates
    assert lost == ["c", "d"]


def test_all_that_is_lost_is_counted_and_named() -> None:
    ids = [f"m{number}" for number in range(25)]
    account, lost = Census().account("orders", ids, refused=2)
    assert account == Account(accepted=25, refused=2, lost=25)
    assert lost == ids


def test_of_the_lost_the_first_few_of_each_entity_are_named(tmp_path: Path) -> None:
    scenario = parse_scenario(
        {
            "name": "x",
            "expect": ["lost == 0"],
            "entities": [{"queue": "orders"}, {"topic": "prices"}],
            "steps": [{"do": "kill"}],
        }
    )
    namespace = Namespace.parse("Endpoint=sb://contoso/;SharedAccessKeyName=n;SharedAccessKey=k")
    drill = _Drill(scenario, RealStage(tmp_path, namespace, namespace), 1, print)
    drill._senders = Senders(None, {})
    ids = {name: [f"{name}-{number}" for number in range(MAX_LOST_SHOWN + 5)] for name in scenario.entities}
    for name in ids:
        drill._senders.sent[name].accepted = ids[name]
    result = drill.judge(Census())
    assert MAX_LOST_SHOWN == 20
    assert result.account == Account(accepted=50, lost=50)
    assert result.lost == (*ids["orders"][:20], *ids["prices"][:20])
    assert not result.passed


def test_accounts_are_added_up() -> None:
    assert Account.sum_of([Account(accepted=2, lost=1), Account(accepted=3, waiting=3)]) == Account(
        accepted=5, lost=1, waiting=3
    )
    assert Account.sum_of([]) == Account()


def test_what_another_entity_was_given_is_not_delivered_here() -> None:
    census = Census({"orders": Counter({"a": 1}), "invoices": Counter({"a": 1, "b": 1})}, dead_lettered={"c"})
    account, lost = census.account("orders", ACCEPTED)
    assert (account.delivered, account.dead_lettered, account.duplicates, account.lost) == (1, 1, 0, 2)
    assert lost == ["b", "d"]
