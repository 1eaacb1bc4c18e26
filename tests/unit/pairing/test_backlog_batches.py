"""How many messages one send into the backlog takes: what each costs in a batch beyond its own bytes counts too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pairbus.amqp.message import BATCH_ENTRY_BYTES
from pairbus.pairing._aio.backlog import _count_that_fits as fits_aio
from pairbus.pairing._sync.backlog import _count_that_fits as fits_sync

SIZE = 100
RAWS = [bytes(SIZE - BATCH_ENTRY_BYTES)] * 5


@pytest.mark.parametrize("fits", [fits_aio, fits_sync])
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
def test_as_many_as_the_links_limit_holds(
    fits: Callable[[Sequence[bytes], int, int], int], first: int, limit: int, count: int
) -> None:
    assert fits(RAWS, first, limit) == count
