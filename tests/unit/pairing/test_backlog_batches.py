"""How many messages one send into the backlog takes: what each costs in a batch beyond its own bytes counts too."""

from __future__ import annotations

import pytest

from pairbus.amqp.message import BATCH_ENTRY_BYTES
from pairbus.pairing.queues import count_that_fits

SIZE = 100
RAWS = [bytes(SIZE - BATCH_ENTRY_BYTES)] * 5


@pytest.mark.parametrize(
    ("first", "limit", "count"),
    [
        (0, SIZE - 1, 0),
        (0, SIZE, 1),
        (0, 3 * SIZE - 1, 2),
        (0, 3 * SIZE, 3),
        (0, 100 * SIZE, 5),
        (3, 100 * SIZE, 2),
        (4, SIZE, 1),
    ],
)
def test_as_many_as_the_links_limit_holds(first: int, limit: int, count: int) -> None:
    assert count_that_fits(RAWS, first, limit) == count
