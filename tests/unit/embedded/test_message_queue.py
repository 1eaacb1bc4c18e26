"""One queue and its clock: at which moment a lock, a session or a message is over, and that each is counted once."""

from __future__ import annotations

from itertools import count

import pytest

from pairbus.embedded.entities.entity import SeenMessageIds
from pairbus.embedded.entities.message import Changes, QueueEntry, State
from pairbus.embedded.entities.queue import NEVER_MS, MessageQueue
from pairbus.embedded.errors import MessageLockLostError, SessionCannotBeLockedError, SessionLockLostError

LOCK_MS = 10_000
FIRST, SECOND = 1, 2


def make_queue(*, max_delivery_count: int = 10, requires_session: bool = False) -> MessageQueue:
    changes = Changes()
    tokens = count(1)
    return MessageQueue(
        lambda: changes,
        set(),
        lambda: next(tokens).to_bytes(16, "big"),
        4,
        LOCK_MS,
        max_delivery_count,
        requires_session,
    )


def append(queue: MessageQueue, *, expires_ms: int = NEVER_MS, session_id: str | None = None) -> QueueEntry:
    return queue.append(1, 100, 0, expires_ms, session_id=session_id)


def taken(queue: MessageQueue, now: int) -> bytes:
    entry = queue.take(now)
    assert entry is not None
    assert entry.lock_token is not None
    return entry.lock_token


def test_a_lock_is_over_at_its_end_and_not_a_moment_before() -> None:
    queue = make_queue()
    entry = append(queue)
    token = taken(queue, 0)
    assert queue.locked(token, LOCK_MS - 1) is entry
    with pytest.raises(MessageLockLostError):
        queue.locked(token, LOCK_MS)


def test_a_renewed_lock_outlives_its_first_end_and_counts_no_delivery() -> None:
    queue = make_queue()
    entry = append(queue)
    token = taken(queue, 0)
    assert queue.renew(token, LOCK_MS - 1) == 2 * LOCK_MS - 1
    queue.collect_due(LOCK_MS)
    assert queue.locked(token, LOCK_MS) is entry
    assert entry.delivery_count == 0
    assert queue.take(LOCK_MS) is None
    queue.collect_due(2 * LOCK_MS - 1)
    assert entry.delivery_count == 1
    assert queue.take(2 * LOCK_MS) is entry


def test_the_last_delivery_is_the_one_that_reaches_the_limit() -> None:
    queue = make_queue(max_delivery_count=2)
    entry = append(queue)
    taken(queue, 0)
    assert queue.collect_due(LOCK_MS).undeliverable == []
    taken(queue, LOCK_MS)
    assert queue.collect_due(2 * LOCK_MS).undeliverable == [entry]


def test_what_had_its_last_delivery_when_it_expired_leaves_once() -> None:
    queue = make_queue(max_delivery_count=1)
    entry = append(queue, expires_ms=LOCK_MS)
    taken(queue, 0)
    due = queue.collect_due(LOCK_MS)
    assert (due.undeliverable, due.expired) == ([entry], [])


def test_a_message_that_somebody_holds_expires_when_it_is_given_back() -> None:
    queue = make_queue()
    entry = append(queue, expires_ms=LOCK_MS // 2)
    token = taken(queue, 0)
    assert queue.collect_due(LOCK_MS // 2).expired == []
    assert queue.locked(token, LOCK_MS // 2) is entry
    assert queue.collect_due(LOCK_MS).expired == [entry]


def test_deferring_is_a_delivery() -> None:
    queue = make_queue()
    entry = append(queue)
    taken(queue, 0)
    queue.defer(entry)
    assert (entry.state, entry.delivery_count, queue.active) == (State.DEFERRED, 1, 0)
    assert queue.take(0) is None


def test_a_session_has_one_holder_until_its_lock_is_over() -> None:
    queue = make_queue(requires_session=True)
    append(queue, session_id="s")
    held = queue.accept_session("s", FIRST, 0)
    assert held is not None
    with pytest.raises(SessionCannotBeLockedError):
        queue.accept_session("s", SECOND, LOCK_MS - 1)
    assert queue.accept_session(None, SECOND, LOCK_MS - 1) is None
    with pytest.raises(SessionLockLostError):
        queue.held_session("s", LOCK_MS)
    assert queue.accept_session("s", SECOND, LOCK_MS) is held
    assert held.holder == SECOND


def test_a_renewed_session_outlives_its_first_end_and_keeps_what_it_holds() -> None:
    queue = make_queue(requires_session=True)
    entry = append(queue, session_id="s")
    session = queue.accept_session("s", FIRST, 0)
    assert session is not None
    assert queue.take(0, session) is entry
    queue.renew_session("s", LOCK_MS - 1)
    assert queue.collect_due(LOCK_MS).lost_sessions == []
    assert (session.holder, entry.delivery_count) == (FIRST, 0)
    assert queue.collect_due(2 * LOCK_MS - 1).lost_sessions == [session]
    assert (session.holder, entry.delivery_count) == (None, 1)


def test_an_id_is_a_duplicate_until_its_window_is_over() -> None:
    seen, changes = SeenMessageIds(1), Changes()
    assert not seen.is_duplicate("a", 0, 100, changes)
    assert not seen.is_duplicate("b", 50, 100, changes)
    assert seen.is_duplicate("a", 99, 100, changes)
    assert seen.has("a", 99, 100)
    assert not seen.has("a", 100, 100)
    assert not seen.is_duplicate("a", 100, 100, changes)
    assert changes.seen_drops == [(1, 0)]
    assert seen.is_duplicate("b", 149, 100, changes)
