"""What the census makes of what it saw."""

from __future__ import annotations

from collections import Counter

import pytest

from pairbus.drill.census import Census
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
