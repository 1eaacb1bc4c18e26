"""What the census makes of what it saw."""

from __future__ import annotations

from collections import Counter

import pytest

from pairbus.drill.census import Account, Census

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
