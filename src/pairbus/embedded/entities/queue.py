"""One ordered queue: the messages of a queue or subscription, or of one of its sub-queues.

Theory of operation
- `entries` holds each message under its sequence number, from `append` until `remove`. Sequence numbers only grow, so
  the dictionary is in order.
- A message that can be received is in exactly one ready heap: the queue's or its session's. Taking it sets a lock token
  and removes it from the heap; releasing it restores its old place, ahead of younger messages.
- Time is an argument. Lock ends, expiries and schedules are heaps. Stale items are skipped when they come up, and
  removed when they outnumber the others. `next_deadline` says when something may be due; `collect_due` ends locks and
  returns the messages that the namespace must move.
- Everything that must survive a restart is written to `changes`. Locks do not survive one.
"""

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pairbus.embedded.entities.message import Changes, QueueEntry, State
from pairbus.embedded.errors import (
    MessageLockLostError,
    MessageNotFoundError,
    NotAllowedError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

NEVER_MS = 1 << 62
# A list with stale items is compacted when it is longer than this and twice as long as necessary.
COMPACTION_FLOOR = 64


@dataclass(slots=True)
class MessageSession:
    """The messages that share a session id, and the receiver that holds them."""

    session_id: str
    ready: list[int] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    state: bytes | None = None
    updated_ms: int = 0
    messages: int = 0
    holder: int | None = None
    locked_until_ms: int = 0

    def __repr__(self) -> str:
        held = f"held by {self.holder} until {self.locked_until_ms}" if self.holder is not None else "free"
        return f"<MessageSession {self.session_id!r} {held}, {self.messages} messages>"


@dataclass(slots=True)
class DueWork:
    """Messages that the namespace must move, and sessions whose locks expired."""

    expired: list[QueueEntry] = field(default_factory=list)
    undeliverable: list[QueueEntry] = field(default_factory=list)
    scheduled: list[QueueEntry] = field(default_factory=list)
    lost_sessions: list[MessageSession] = field(default_factory=list)


class MessageQueue:
    """Messages in order, with locks, sessions and deadlines. The module's docstring states the rules."""

    def __init__(
        self,
        changes: Callable[[], Changes],
        touched: set["MessageQueue"],
        next_token: Callable[[], bytes],
        queue_id: int,
        lock_duration_ms: int,
        max_delivery_count: int,
        requires_session: bool,
    ) -> None:
        self.queue_id = queue_id
        self.lock_duration_ms = lock_duration_ms
        self.max_delivery_count = max_delivery_count
        self.requires_session = requires_session
        self.next_sequence = 1
        self.entries: dict[int, QueueEntry] = {}
        self.sessions: dict[str, MessageSession] = {}
        self.size_bytes = 0
        self.active = 0
        self.scheduled = 0
        self._changes = changes
        # A queue adds itself when it has a ready message or a new deadline.
        self._touched = touched
        self._next_token = next_token
        self._order: list[int] = []
        self._ready: list[int] = []
        self._locked: dict[bytes, QueueEntry] = {}
        self._lock_ends: list[tuple[int, bytes]] = []
        self._session_ends: list[tuple[int, str]] = []
        self._expiries: list[tuple[int, int]] = []
        self._schedule: list[tuple[int, int]] = []
        # Free sessions with a ready message, oldest first: the candidates for "next available session".
        self._ready_sessions: OrderedDict[str, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<MessageQueue {self.queue_id}: {len(self.entries)} messages, {len(self._locked)} locked>"

    def __len__(self) -> int:
        return len(self.entries)

    # -- adding and removing

    def append(
        self,
        payload_id: int,
        size: int,
        now: int,
        expires_ms: int,
        *,
        state: State = State.ACTIVE,
        session_id: str | None = None,
        scheduled_ms: int | None = None,
        delivery_count: int = 0,
        origin: str | None = None,
    ) -> QueueEntry:
        number = self.next_sequence
        entry = QueueEntry(
            number, payload_id, size, state, now, expires_ms, delivery_count, session_id, scheduled_ms, origin
        )
        self.next_sequence += 1
        self.load(entry)
        changes = self._changes()
        changes.put_entry(self.queue_id, entry)
        changes.sequences[self.queue_id] = self.next_sequence
        return entry

    def load(self, entry: QueueEntry) -> None:
        """Add an entry. Entries of the store are loaded in the order of their sequence numbers."""
        number = entry.sequence_number
        self.entries[number] = entry
        self._order.append(number)
        self.size_bytes += entry.size
        session = self._session_of(entry)
        if session is not None:
            session.messages += 1
        if entry.state is State.SCHEDULED:
            self._touched.add(self)
            self.scheduled += 1
            heapq.heappush(self._schedule, (entry.scheduled_ms or 0, number))
        elif entry.state is State.ACTIVE:
            self.active += 1
            self._make_ready(entry, session)
            if entry.expires_ms < NEVER_MS:
                heapq.heappush(self._expiries, (entry.expires_ms, number))

    def remove(self, entry: QueueEntry) -> None:
        """Remove the message for good. The caller drops its payload."""
        self._unlock(entry)
        if entry.state is State.ACTIVE:
            self.active -= 1
        elif entry.state is State.SCHEDULED:
            self.scheduled -= 1
        del self.entries[entry.sequence_number]
        self.size_bytes -= entry.size
        session = self._session_of(entry)
        if session is not None:
            session.messages -= 1
            if len(session.ready) > max(COMPACTION_FLOOR, 2 * session.messages):
                session.ready = sorted({number for number in session.ready if number in self.entries})
            self._forget_if_empty(session)
        self._changes().entry_drops.append((self.queue_id, entry.sequence_number))
        self._compact()

    def _compact(self) -> None:
        """Remove stale items: a message may leave long before its deadline."""
        entries = self.entries
        limit = max(COMPACTION_FLOOR, 2 * len(entries))
        if len(self._order) > limit:
            self._order = list(entries)
        if len(self._ready) > limit:
            self._ready = sorted({number for number in self._ready if number in entries})
        if len(self._expiries) > limit:
            self._expiries = sorted({item for item in self._expiries if item[1] in entries})
        if len(self._schedule) > limit:
            self._schedule = sorted(item for item in self._schedule if item[1] in entries)
        if len(self._lock_ends) > max(COMPACTION_FLOOR, 2 * len(self._locked)):
            self._lock_ends = sorted((entry.locked_until_ms, token) for token, entry in self._locked.items())

    # -- receiving

    def has_ready(self, session: MessageSession | None = None) -> bool:
        heap = session.ready if session is not None else self._ready
        while heap:
            entry = self.entries.get(heap[0])
            if entry is not None and entry.state is State.ACTIVE and entry.lock_token is None:
                return True
            heapq.heappop(heap)
        if session is not None:
            self._ready_sessions.pop(session.session_id, None)
        return False

    def take(self, now: int, session: MessageSession | None = None, *, delete: bool = False) -> QueueEntry | None:
        """Lock the oldest message that can be received, or remove it if `delete` is set."""
        entry = self._next_ready(now, session)
        if entry is not None and delete:
            self.remove(entry)
        elif entry is not None:
            self._lock(entry, now, session)
        return entry

    def _next_ready(self, now: int, session: MessageSession | None) -> QueueEntry | None:
        heap = session.ready if session is not None else self._ready
        while self.has_ready(session):
            entry = self.entries[heapq.heappop(heap)]
            if entry.expires_ms > now:
                return entry
            # It has expired: nobody receives it, and `collect_due` returns it.
        return None

    def _lock(self, entry: QueueEntry, now: int, session: MessageSession | None) -> None:
        token = self._next_token()
        entry.lock_token = token
        self._locked[token] = entry
        if session is not None:
            entry.locked_until_ms = session.locked_until_ms
            session.held.add(entry.sequence_number)
        else:
            entry.locked_until_ms = now + self.lock_duration_ms
            heapq.heappush(self._lock_ends, (entry.locked_until_ms, token))
            self._touched.add(self)

    def _unlock(self, entry: QueueEntry) -> None:
        if entry.lock_token is not None:
            del self._locked[entry.lock_token]
            entry.lock_token = None
            session = self._session_of(entry)
            if session is not None:
                session.held.discard(entry.sequence_number)

    def locked(self, token: bytes, now: int) -> QueueEntry:
        entry = self._locked.get(token)
        if entry is None or self._lock_end(entry) <= now:
            raise MessageLockLostError(
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed "
                "from the queue, or was received by a different receiver instance."
            )
        return entry

    def _lock_end(self, entry: QueueEntry) -> int:
        if self.requires_session and entry.session_id is not None:
            return self.session(entry.session_id).locked_until_ms
        return entry.locked_until_ms

    def renew(self, token: bytes, now: int) -> int:
        entry = self.locked(token, now)
        if self.requires_session:
            raise NotAllowedError("A message in a session has no lock of its own. Renew the session's lock.")
        entry.locked_until_ms = now + self.lock_duration_ms
        heapq.heappush(self._lock_ends, (entry.locked_until_ms, token))
        self._compact()
        return entry.locked_until_ms

    def release(self, entry: QueueEntry, *, count: bool = True) -> bool:
        """Unlock a message, and with `count` add one to its delivery count. True if that was its last delivery.

        A deferred message stays deferred. The caller dead-letters a message after its last delivery.
        """
        self._unlock(entry)
        if count:
            entry.delivery_count += 1
        if count and entry.delivery_count >= self.max_delivery_count:
            return True
        if count:
            self._changes().put_entry(self.queue_id, entry)
        if entry.state is State.ACTIVE:
            self._make_ready(entry, self._session_of(entry))
            if entry.expires_ms < NEVER_MS:
                heapq.heappush(self._expiries, (entry.expires_ms, entry.sequence_number))
        self._compact()
        return False

    def defer(self, entry: QueueEntry) -> None:
        self._unlock(entry)
        if entry.state is State.ACTIVE:
            entry.state = State.DEFERRED
            self.active -= 1
        entry.delivery_count += 1
        self._changes().put_entry(self.queue_id, entry)

    def deferred(self, sequence_number: int, session_id: str | None = None) -> QueueEntry:
        """The deferred, unlocked message with this number."""
        entry = self.entries.get(sequence_number)
        if entry is None or entry.state is not State.DEFERRED or entry.lock_token is not None:
            raise MessageNotFoundError(
                f"Failed to lock one or more specified messages. The message with sequence number {sequence_number} "
                "does not exist or is not deferred."
            )
        if self.requires_session and entry.session_id != session_id:
            raise MessageNotFoundError(
                f"The message with sequence number {sequence_number} does not belong to session {session_id!r}."
            )
        return entry

    def lock_deferred(self, entry: QueueEntry, now: int) -> None:
        self._lock(entry, now, self._session_of(entry))

    def replace_payload(self, entry: QueueEntry, payload_id: int, size: int) -> None:
        """Point the entry to the rewritten bytes of its message."""
        self.size_bytes += size - entry.size
        entry.payload_id = payload_id
        entry.size = size
        self._changes().put_entry(self.queue_id, entry)

    # -- reading

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> Iterator[QueueEntry]:
        position = bisect_left(self._order, from_sequence)
        yielded = 0
        while position < len(self._order) and yielded < count:
            entry = self.entries.get(self._order[position])
            position += 1
            if entry is None or (session_id is not None and entry.session_id != session_id):
                continue
            yielded += 1
            yield entry

    def scheduled_entry(self, sequence_number: int) -> QueueEntry:
        entry = self.entries.get(sequence_number)
        if entry is None or entry.state is not State.SCHEDULED:
            raise MessageNotFoundError(f"There is no scheduled message with sequence number {sequence_number}.")
        return entry

    # -- sessions

    def _session_of(self, entry: QueueEntry) -> MessageSession | None:
        """The session of an entry, made if it does not exist. An empty string is a valid session id."""
        if not self.requires_session or entry.session_id is None:
            return None
        return self.session(entry.session_id)

    def session(self, session_id: str) -> MessageSession:
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = MessageSession(session_id)
        return session

    def _make_ready(self, entry: QueueEntry, session: MessageSession | None) -> None:
        self._touched.add(self)
        if session is None:
            heapq.heappush(self._ready, entry.sequence_number)
            return
        heapq.heappush(session.ready, entry.sequence_number)
        if session.holder is None:
            self._ready_sessions[session.session_id] = None

    def first_ready_session(self) -> MessageSession | None:
        while self._ready_sessions:
            session_id = next(iter(self._ready_sessions))
            session = self.sessions.get(session_id)
            if session is not None and session.holder is None and self.has_ready(session):
                return session
            self._ready_sessions.pop(session_id, None)
        return None

    def accept_session(self, session_id: str | None, holder: int, now: int) -> MessageSession | None:
        """Lock a session for `holder`. Without an id it is the next free one with messages; None if there is none."""
        if session_id is None:
            session = self.first_ready_session()
            if session is None:
                return None
        else:
            session = self.session(session_id)
            if session.holder is not None and session.locked_until_ms > now:
                raise SessionCannotBeLockedError(
                    f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver."
                )
        self._touched.add(self)
        session.holder = holder
        session.locked_until_ms = now + self.lock_duration_ms
        heapq.heappush(self._session_ends, (session.locked_until_ms, session.session_id))
        self._ready_sessions.pop(session.session_id, None)
        return session

    def held_session(self, session_id: str, now: int) -> MessageSession:
        session = self.sessions.get(session_id)
        if session is None or session.holder is None or session.locked_until_ms <= now:
            raise SessionLockLostError(
                f"The session lock on '{session_id}' has expired or is not held. Accept the session again."
            )
        return session

    def renew_session(self, session_id: str, now: int) -> int:
        session = self.held_session(session_id, now)
        session.locked_until_ms = now + self.lock_duration_ms
        heapq.heappush(self._session_ends, (session.locked_until_ms, session_id))
        self._compact_sessions()
        return session.locked_until_ms

    def _compact_sessions(self) -> None:
        if len(self._session_ends) > max(COMPACTION_FLOOR, 2 * len(self.sessions)):
            self._session_ends = sorted(
                (session.locked_until_ms, session.session_id)
                for session in self.sessions.values()
                if session.holder is not None
            )

    def release_session(self, session: MessageSession, *, count: bool) -> list[QueueEntry]:
        """Release the session and its messages, counting a delivery if `count` is set (the lock expired).

        Returns the messages that had their last delivery.
        """
        self._touched.add(self)
        session.holder = None
        session.locked_until_ms = 0
        exhausted = []
        for number in sorted(session.held):
            entry = self.entries[number]
            if self.release(entry, count=count):
                exhausted.append(entry)
        if session.ready:
            self._ready_sessions[session.session_id] = None
        self._forget_if_empty(session)
        self._compact_sessions()
        return exhausted

    def set_session_state(self, session_id: str, state: bytes | None, now: int) -> None:
        session = self.session(session_id)
        session.state = state
        session.updated_ms = now
        self._changes().sessions[(self.queue_id, session_id)] = (state, now)

    def _forget_if_empty(self, session: MessageSession) -> None:
        if session.messages == 0 and session.holder is None and session.state is None:
            self.sessions.pop(session.session_id, None)
            self._ready_sessions.pop(session.session_id, None)

    # -- time

    def next_deadline(self) -> int:
        """The earliest time at which something may be due, or NEVER_MS."""
        deadline = NEVER_MS
        for heap in (self._lock_ends, self._session_ends, self._expiries, self._schedule):
            if heap:
                deadline = min(deadline, heap[0][0])
        return deadline

    def collect_due(self, now: int) -> DueWork:
        """End the locks that expired by `now`, and return the messages that must leave the queue."""
        result = DueWork()
        while self._lock_ends and self._lock_ends[0][0] <= now:
            until, token = heapq.heappop(self._lock_ends)
            entry = self._locked.get(token)
            if entry is not None and entry.locked_until_ms == until and self.release(entry):
                result.undeliverable.append(entry)
        while self._session_ends and self._session_ends[0][0] <= now:
            until, session_id = heapq.heappop(self._session_ends)
            session = self.sessions.get(session_id)
            if session is not None and session.holder is not None and session.locked_until_ms == until:
                result.lost_sessions.append(session)
                result.undeliverable.extend(self.release_session(session, count=True))
        exhausted = {entry.sequence_number for entry in result.undeliverable}
        expired: dict[int, QueueEntry] = {}
        while self._expiries and self._expiries[0][0] <= now:
            _, number = heapq.heappop(self._expiries)
            entry = self.entries.get(number)
            # A locked message expires later: its release puts it on the expiry heap again.
            if entry is None or number in exhausted:
                continue
            if entry.state is State.ACTIVE and entry.lock_token is None:
                expired[number] = entry
        result.expired.extend(expired.values())
        while self._schedule and self._schedule[0][0] <= now:
            _, number = heapq.heappop(self._schedule)
            scheduled = self.entries.get(number)
            if scheduled is not None and scheduled.state is State.SCHEDULED:
                result.scheduled.append(scheduled)
        return result
