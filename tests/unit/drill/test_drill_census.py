"""What the census makes of what it saw."""

from __future__ import annotations

from collections import Counter

import pytest

from pairbus.drill.census import Census
from pairbus.drill.result import MOST_LOST_SHOWN
from pairbus.drill.scenario import Entity
from pairbus.drill.sending import Sent

SENT = Sent(accepted=["a", "b", "c", "d"])


def test_what_is_delivered_and_still_on_its_way_is_there_twice() -> None:
    census = Census({"orders": Counter({"a": 1, "b": 2, "c": 1})}, waiting={"a", "b"}, spooled={"a", "d"})
    account, lost = census.account(Entity("orders"), SENT)
    assert (account.delivered, account.waiting, account.spooled, account.duplicates) == (3, 2, 2, 4)
    assert lost == []


@pytest.mark.parametrize(("copies", "duplicates"), [(1, 0), (3, 2)])
def test_an_entity_that_detects_duplicates_keeps_what_it_has(copies: int, duplicates: int) -> None:
    census = Census({"orders": Counter({"a": copies})}, waiting={"a"}, spooled={"b"})
    account, lost = census.account(Entity("orders", duplicate_detection=True), SENT)
    assert account.duplicates == duplicates
    assert lost == ["c", "d"]


def test_all_that_is_lost_is_counted_and_the_first_few_are_named() -> None:
    ids = [f"m{number}" for number in range(MOST_LOST_SHOWN + 5)]
    account, lost = Census().account(Entity("orders"), Sent(accepted=ids))
    assert account.lost == len(ids)
    assert lost == ids[:MOST_LOST_SHOWN]


def test_what_another_entity_was_given_is_not_delivered_here() -> None:
    census = Census({"orders": Counter({"a": 1}), "invoices": Counter({"a": 1, "b": 1})}, dead_lettered={"c"})
    account, lost = census.account(Entity("orders"), SENT)
    assert (account.delivered, account.dead_lettered, account.duplicates, account.lost) == (1, 1, 0, 2)
    assert lost == ["b", "d"]
