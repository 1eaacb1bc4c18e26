"""PURE. All decisions of a pump. The shell (`pump`) reports events and carries out the actions that `due` returns.

    arrived, sent, peeked, probed, renewed, lost_locks  ->  due(now) -> actions; next_deadline(now); free_slots(now)

Invariants, for every order of calls:
- A delivery is settled at most once, and completed only after the primary took its message.
- Messages for one destination are sent in the order of their sequence numbers. None is sent while an earlier message
  for the same destination is in the queue but not in our hands.
- The messages in hand are bounded in number and bytes, however many messages wait for a destination that is down.
- Neither a destination nor the primary is contacted before its pause is over.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pairbus import envelope
from pairbus.amqp.message import BATCH_ENTRY_BYTES
from pairbus.errors import PartError
from pairbus.syphon.deliveries import (
    DeadLetter,
    Delivery,
    Item,
    Peeked,
    destination_not_found,
    refused,
    restore_batch,
    unreadable,
)
from pairbus.syphon.parts import PartsBin
from pairbus.syphon.sequences import REMEMBERED, SequenceGuard, SettledMessages
from pairbus.syphon.transport import SendError, SendFailure

RECEIVE_LIMIT = 100
PEEK_LIMIT = 100
MISSING_SECONDS = 30.0
"""How long a destination that does not exist is assumed missing without another attempt."""


# --- pauses and rates -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Backoff:
    """The n-th pause in a row is `first * factor ** (n - 1)` seconds, at most `longest`.

    Each pause is shortened by up to the fraction `jitter`, so that pumps that failed together do not retry together.
    """

    first: float
    longest: float
    factor: float = 2.0
    jitter: float = 0.25

    def seconds(self, failures: int, draw: float) -> float:
        """`failures` counts from 1; `draw` is a random number from 0 to 1."""
        steps = min(failures - 1, 64)
        return min(self.longest, self.first * self.factor**steps) * (1 - self.jitter * draw)


@dataclass(slots=True)
class RetryPause:
    """No attempt is made before `until`; `failures` counts the failures in a row."""

    until: float
    failures: int
    cause: str

    @classmethod
    def after(cls, previous: RetryPause | None, backoff: Backoff, now: float, draw: float, cause: str) -> RetryPause:
        failures = previous.failures + 1 if previous is not None else 1
        return cls(now + backoff.seconds(failures, draw), failures, cause)


class RateLimit:
    """At most `per_second` messages per second on average, with bursts of at most one second's worth."""

    def __init__(self, per_second: float | None) -> None:
        if per_second is not None and not 0 < per_second < math.inf:
            raise ValueError(f"rate is {per_second!r}; allowed: messages per second, above 0, or None for no limit.")
        self.per_second = per_second
        self._tokens = max(1.0, per_second or 0.0)
        self._at = -math.inf

    def take(self, wanted: int, now: float) -> int:
        """How many of the wanted messages may be sent now."""
        if self.per_second is None:
            return wanted
        self._refill(self.per_second, now)
        granted = min(wanted, int(self._tokens))
        self._tokens -= granted
        return granted

    def give_back(self, unused: int) -> None:
        self._tokens += unused

    def next_at(self, now: float) -> float:
        """When the next message may be sent."""
        if self.per_second is None:
            return now
        self._refill(self.per_second, now)
        return now if self._tokens >= 1 else now + (1 - self._tokens) / self.per_second

    def _refill(self, per_second: float, now: float) -> None:
        if self._at > -math.inf:
            # The tiny surplus makes waiting until `next_at` sufficient despite float rounding.
            earned = (now - self._at) * per_second + 1e-9
            self._tokens = min(max(1.0, per_second), self._tokens + earned)
        self._at = now


@dataclass(frozen=True, slots=True)
class PumpRules:
    """The limits and pauses of a pump. Times are seconds, sizes bytes."""

    policy: envelope.TimeToLivePolicy = "restore"
    batch_messages: int = 100
    batch_bytes: int = 255_000
    in_hand_messages: int = 400
    in_hand_bytes: int = 16 << 20
    parts_bytes: int = 16 << 20
    held_messages: int = 10_000
    stuck_after: float = 2.0
    part_patience: float = 60.0
    destination_backoff: Backoff = Backoff(first=1.0, longest=120.0)
    primary_backoff: Backoff = Backoff(first=1.0, longest=60.0)
    turn_backoff: Backoff = Backoff(first=0.05, longest=15.0)


# --- actions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send these messages to the destination as one batch."""

    destination: str
    items: tuple[Item, ...]
    raws: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """Complete these deliveries, which carried the items home.

    `part_of`: they are the parts of this message and must leave the queue together or not at all.
    """

    deliveries: tuple[Delivery, ...]
    carried: tuple[Item, ...] = ()
    part_of: str | None = None


@dataclass(frozen=True, slots=True)
class Release:
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class Bury:
    """Move these deliveries to the dead-letter queue of the backlog queue."""

    letters: tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True)
class Peek:
    """Peek from the start of this gap."""

    gap: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Seek:
    """Look for parts of this message near this sequence number, locked or not.

    `until_ms`: the parts are about to be given up, so look at everything the queue stored up to this time.
    """

    part_of: str
    around: int
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """Check whether the primary answers at all."""


Action = SendBatch | Complete | Release | Bury | Peek | Seek | Probe


# --- lanes ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Lane:
    """The messages for one destination in one pump, in their order.

    A lane has at most one send in flight, so a failure never lets a later message overtake an earlier one. While its
    destination is paused, a lane keeps one message whole to retry with, and of the others only the locks: they do not
    come back and do not block other destinations. Once the destination takes the first message, the others are
    released and arrive again in order.
    """

    destination: str
    waiting: deque[Item] = field(default_factory=deque)
    in_flight: tuple[Item, ...] = ()
    started_at: float = 0.0
    held: list[Delivery] = field(default_factory=list)
    pause: RetryPause | None = None
    missing_until: float = 0.0
    token_refusals: int = 0
    """How many sends in a row the primary refused because of our credential, the first of them at `refused_since`."""
    refused_since: float = 0.0
    batch_limit: int = 1_000_000
    """Reduced while the refused message of a batch is searched for."""
    single_session: bool = False
    """The destination refused a batch, perhaps because its messages had different sessions."""

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.in_flight or self.held)

    def is_stuck(self, now: float, after: float) -> bool:
        return bool(self.in_flight) and now >= self.started_at + after

    def add(self, item: Item) -> None:
        """Insert a message by its number: a message released by us or another syphon may arrive after later ones."""
        waiting = self.waiting
        later = []
        while waiting and waiting[-1].sequence_number > item.sequence_number:
            later.append(waiting.pop())
        waiting.append(item)
        if later:
            waiting.extend(reversed(later))

    def cut(self, most: int, most_bytes: int) -> list[Item]:
        """Take the next batch off the front; at least one message."""
        waiting, most = self.waiting, min(most, self.batch_limit)
        first = waiting.popleft()
        items, size = [first], first.message.size + BATCH_ENTRY_BYTES
        while waiting and len(items) < most:
            message = waiting[0].message
            if self.single_session and message.session_id != first.message.session_id:
                break
            size += message.size + BATCH_ENTRY_BYTES
            if size > most_bytes:
                break
            items.append(waiting.popleft())
        return items

    def hold_all_but_first(self) -> int:
        """Keep only the locks of the messages behind the first one; returns how many bytes that frees."""
        freed = 0
        while len(self.waiting) > 1:
            item = self.waiting.pop()
            freed += item.message.size
            self.held.extend(item.deliveries)
        for delivery in self.held:
            delivery.drop_content()
        return freed

    def take_all(self) -> list[Delivery]:
        """Remove everything that is not in flight, lowest number first."""
        taken = [delivery for item in self.waiting for delivery in item.deliveries] + self.held
        self.waiting.clear()
        self.held = []
        return sorted(taken, key=lambda delivery: delivery.sequence_number)


# --- the planner ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Planner:
    rules: PumpRules = field(default_factory=PumpRules)
    rate: RateLimit = field(default_factory=lambda: RateLimit(None))
    lanes: dict[str, Lane] = field(default_factory=dict)
    primary_pause: RetryPause | None = None
    turn_pause: RetryPause | None = None
    """Another syphon holds earlier messages of this queue: let it go first."""
    in_hand: int = 0
    in_hand_bytes: int = 0
    is_stopping: bool = False
    """Receive nothing more; finish what can be finished now, release the rest."""
    accepted_at: dict[str, float] = field(default_factory=dict)
    """When each destination last took a message from us."""
    _parts: PartsBin = field(init=False)
    _order: SequenceGuard = field(default_factory=SequenceGuard)
    _mine: dict[int, Delivery] = field(default_factory=dict)
    _settled: SettledMessages = field(default_factory=SettledMessages)
    _actions: list[Action] = field(default_factory=list)
    _is_peeking: bool = False
    _wants_probe: bool = False
    _is_probing: bool = False
    _reads_slowly: bool = False
    """After a turn pause one message at a time is received, until it is our turn."""

    def __post_init__(self) -> None:
        self._parts = PartsBin(self.rules.part_patience, self.rules.parts_bytes)

    def restarted(self) -> Planner:
        """A planner with empty hands that remembers the messages this one settled."""
        return Planner(
            self.rules, self.rate, is_stopping=self.is_stopping, accepted_at=self.accepted_at, _settled=self._settled
        )

    # --- events -----------------------------------------------------------------------------------------------

    def arrived(self, deliveries: Iterable[Delivery], now: float) -> None:
        """The backlog queue delivered these messages, in this order."""
        for delivery in deliveries:
            number = delivery.sequence_number
            mine = self._mine.get(number)
            if self._settled.is_home(delivery):
                # Only the settlement was lost.
                self._order.seen(number)
                self._actions.append(Complete((delivery,)))
            elif mine is not None and mine.enqueued_ms == delivery.enqueued_ms:
                # Our lock expired, and we got a new one for a message that we already have.
                mine.handle, mine.renew_at = delivery.handle, delivery.renew_at
            else:
                if mine is not None:
                    self.lost_locks([mine])  # the queue was deleted and created again
                self._arrived(delivery, now)
        self._release(self._parts.overflow())

    def _arrived(self, delivery: Delivery, now: float) -> None:
        message, number = delivery.message, delivery.sequence_number
        if message.error is not None:
            self._order.seen(number)
            self._bury([unreadable(delivery, message.error)])
            return
        destination = message.destination
        self._order.arrived(number, destination)
        self._mine[number] = delivery
        if self.is_stopping or self.primary_pause is not None:
            self._release([delivery])
            return
        item: Item | None
        if message.part is None:
            item = Item(destination, number, (delivery,), message)
        else:
            item = self._arrived_part(delivery, message.part.of, now)
            if item is None:
                return
        lane = self.lanes.get(destination)
        if lane is None:
            lane = self.lanes[destination] = Lane(destination)
        if now < lane.missing_until:
            self._bury(destination_not_found(item.deliveries, destination))
        elif not lane.waiting or not (lane.pause is not None or lane.is_stuck(now, self.rules.stuck_after)):
            lane.add(item)
            self._count(item, 1)
        elif number < lane.waiting[0].sequence_number:
            lane.add(item)  # retries use the lowest number
            self._count(item, 1)
            self._slim(lane)
        else:
            for held in item.deliveries:
                held.drop_content()
            lane.held.extend(item.deliveries)

    def _arrived_part(self, delivery: Delivery, part_of: str, now: float) -> Item | None:
        """The whole message, if this was its last missing part and it must be sent."""
        if self._parts.is_gone(part_of):
            self._complete_parts((delivery,), part_of)
            return None
        try:
            item = self._parts.add(delivery, now)
        except PartError as error:
            self._bury([DeadLetter(delivery, "PartUnusable", str(error))])
            return None
        if item is not None and self._parts.is_home(part_of):
            self._complete_parts(item.deliveries, part_of)
            return None
        return item

    def sent(self, send: SendBatch, error: SendError | None, now: float, draw: float) -> None:
        """The primary took the batch (no error), or did not."""
        lane = self.lanes[send.destination]
        lane.in_flight = ()
        if error is None:
            self.accepted_at[lane.destination] = now
            lane.token_refusals = 0
            self._accepted(lane, send)
        elif error.failure is SendFailure.MISSING:
            self._put_back(lane, send)
            lane.pause = None
            lane.missing_until = now + MISSING_SECONDS
            self._bury(destination_not_found(self._take_all(lane), lane.destination))
        elif error.failure is SendFailure.REFUSED and len(send.items) > 1:
            # Halving the batch finds the refused message, and sends the messages before it home first.
            self._put_back(lane, send)
            lane.batch_limit = len(send.items) // 2
            lane.single_session = True
        elif error.failure is SendFailure.REFUSED:
            (item,) = send.items
            self._count(item, -1)
            self._bury(refused(item, error))
            self._resume(lane)
        else:
            self._put_back(lane, send)
            lane.refused_since = lane.refused_since if lane.token_refusals else now
            lane.token_refusals = lane.token_refusals + 1 if error.token_refused else 0
            lane.pause = RetryPause.after(lane.pause, self.rules.destination_backoff, now, draw, str(error))
            if self.primary_pause is not None:
                self._release(self._take_all(lane))
                return
            self._slim(lane)
            self._wants_probe = self._wants_probe or error.failure is SendFailure.UNREACHABLE

    def _accepted(self, lane: Lane, send: SendBatch) -> None:
        whole: list[Item] = []
        deliveries: list[Delivery] = []
        for item in send.items:
            self._count(item, -1)
            if item.part_of is None:
                (delivery,) = item.deliveries
                self._mine.pop(delivery.sequence_number, None)
                self._settled.add(delivery, is_home=True)
                whole.append(item)
                deliveries.append(delivery)
        if deliveries:
            self._actions.append(Complete(tuple(deliveries), tuple(whole)))
        for item in send.items:
            if item.part_of is not None:
                copies = self._parts.went_home(item.part_of)
                self._complete_parts((*item.deliveries, *copies), item.part_of, (item,))
        lane.batch_limit *= 2
        self._resume(lane)

    def _complete_parts(self, deliveries: Sequence[Delivery], of: str, carried: tuple[Item, ...] = ()) -> None:
        for delivery in deliveries:
            self._mine.pop(delivery.sequence_number, None)
            self._settled.add(delivery, is_home=False)  # PartsBin tracks whether its siblings have left
        self._actions.append(Complete(tuple(deliveries), carried, of))

    def completed(self, action: Complete) -> None:
        """The queue confirmed the whole action."""
        if action.part_of is not None and (copies := self._parts.gone(action.part_of)):
            self._complete_parts(copies, action.part_of)

    def _resume(self, lane: Lane) -> None:
        """The destination answers: release the held messages, which then arrive again in order."""
        lane.pause = None
        if lane.held:
            held, lane.held = lane.held, []
            self._release(held)

    def peeked(self, gap: tuple[int, int], peeked: Sequence[Peeked]) -> None:
        """Peeking from the gap's start showed these messages, lowest number first, `PEEK_LIMIT` at most."""
        self._is_peeking = False
        up_to = peeked[-1].sequence_number + 1 if len(peeked) >= PEEK_LIMIT else gap[1]
        others = [(message.sequence_number, message.destination) for message in peeked if self._is_foreign(message)]
        self._order.looked_at(gap, min(up_to, gap[1]), others)

    def sought(self, seek: Seek, peeked: Sequence[Peeked], now: float, draw: float) -> None:
        """Seeking showed these messages."""
        part_of = seek.part_of
        elsewhere = [
            message.sequence_number for message in peeked if message.part_of == part_of and self._is_foreign(message)
        ]
        released, given_up, text = self._parts.sought(part_of, elsewhere, is_last=seek.until_ms is not None)
        if released:
            self._release(released)
            self._let_others_go_first(now, draw, "another receiver holds a part of a message")
        elif given_up and self._parts.is_home(part_of):
            self._complete_parts(given_up, part_of)
        else:
            self._bury([DeadLetter(delivery, "PartMissing", text) for delivery in given_up])

    def _is_foreign(self, peeked: Peeked) -> bool:
        mine = self._mine.get(peeked.sequence_number)
        return (mine is None or mine.enqueued_ms != peeked.enqueued_ms) and peeked not in self._settled

    def probed(self, answers: bool, now: float, draw: float) -> None:
        self._is_probing = False
        if answers:
            self.primary_pause = None
            return
        self.primary_pause = RetryPause.after(
            self.primary_pause, self.rules.primary_backoff, now, draw, "the primary does not answer"
        )
        self._release_waiting()

    def renewed(self, deliveries: Iterable[Delivery], renew_at: float) -> None:
        for delivery in deliveries:
            delivery.renew_at = renew_at

    def lost_locks(self, deliveries: Iterable[Delivery]) -> None:
        """We no longer hold these. They will be delivered again, to us or to another receiver."""
        gone = {delivery.sequence_number: delivery for delivery in deliveries}
        lost = set(gone)
        for lane in self.lanes.values():
            for item in [item for item in lane.waiting if any(d.sequence_number in lost for d in item.deliveries)]:
                lane.waiting.remove(item)
                self._count(item, -1)
                self._release([d for d in item.deliveries if d.sequence_number not in lost])
            lane.held = [delivery for delivery in lane.held if delivery.sequence_number not in lost]
            for item in lane.in_flight:
                for delivery in item.deliveries:
                    gone.pop(delivery.sequence_number, None)
        self._parts.drop(lost)
        for number, delivery in gone.items():
            if self._mine.pop(number, None) is not None:
                self._order.released(number, delivery.message.destination)

    def lost_receiver(self) -> None:
        """The link to the backlog queue is gone. All messages will be delivered again. Sends in flight continue."""
        for lane in self.lanes.values():
            lane.waiting.clear()
            lane.held = []
        self._parts.clear()
        in_flight = [item for lane in self.lanes.values() for item in lane.in_flight]
        self.in_hand = len(in_flight)
        self.in_hand_bytes = sum(item.message.size for item in in_flight)
        self._mine.clear()
        self._order.forget()
        self._is_peeking = False
        self._actions = [action for action in self._actions if not isinstance(action, Complete | Release | Bury | Peek)]

    # --- actions and deadlines --------------------------------------------------------------------------------

    def due(self, now: float, now_ms: int, draw: float) -> list[Action]:
        """All actions to carry out now."""
        if self.primary_pause is not None and now >= self.primary_pause.until:
            self._wants_probe = True
        if self._wants_probe and not self._is_probing:
            self._wants_probe, self._is_probing = False, True
            self._actions.append(Probe())
        if self.turn_pause is not None and now >= self.turn_pause.until and not self._reads_slowly:
            self._reads_slowly = True
            if self.turn_pause.failures >= 3:
                self._order.recheck_open()
        self._actions += [Seek(*wanted) for wanted in self._parts.to_seek(now)]
        if self.is_stopping:
            self._release_blocked(now)
        for lane in list(self.lanes.values()):
            if lane.in_flight:
                if lane.is_stuck(now, self.rules.stuck_after):
                    self._slim(lane)
            elif lane.waiting and (lane.pause is None or now >= lane.pause.until):
                self._dispatch(lane, now, now_ms, draw)
            elif lane.held and not lane.waiting:
                self._resume(lane)  # the message to retry with is gone
            elif lane.is_empty and lane.pause is None and now >= lane.missing_until:
                del self.lanes[lane.destination]
                if len(self.accepted_at) > REMEMBERED:
                    self.accepted_at.pop(next(iter(self.accepted_at)))
        actions, self._actions = self._actions, []
        return actions

    def _dispatch(self, lane: Lane, now: float, now_ms: int, draw: float) -> None:
        if not self._in_turn(lane, now, draw):
            return
        most = 1 if lane.pause is not None else self.rules.batch_messages
        granted = self.rate.take(min(most, len(lane.waiting)), now)
        if granted == 0:
            return
        batch = lane.cut(granted, self.rules.batch_bytes)
        self.rate.give_back(granted - len(batch))
        restored = restore_batch(batch, self.rules.policy, now_ms)
        for item in restored.failed:
            self._count(item, -1)
        self._bury(restored.dead_letters)
        if restored.items:
            lane.in_flight, lane.started_at = restored.items, now
            self._actions.append(SendBatch(lane.destination, restored.items, restored.raws))

    def _in_turn(self, lane: Lane, now: float, draw: float) -> bool:
        """Whether the first waiting message may go: no earlier message for its destination is in other hands.

        Waiting messages that must not go yet are released, so that they arrive again after the earlier ones.
        """
        first, last = lane.waiting[0].sequence_number, lane.waiting[-1].sequence_number
        gap = self._order.next_gap(last)
        if gap is not None:
            if not self._is_peeking:
                self._is_peeking = True
                self._actions.append(Peek(gap))
            return False
        lowest = self._order.lowest_open(lane.destination)
        if lowest is None or lowest > last:
            self._reads_slowly, self.turn_pause = False, None
            return True
        late = [item for item in lane.waiting if item.sequence_number > lowest]
        for item in late:
            lane.waiting.pop()
            self._count(item, -1)
        held, lane.held = lane.held, []
        self._release([delivery for item in late for delivery in item.deliveries] + held)
        self._let_others_go_first(now, draw, "another receiver holds earlier messages")
        return first < lowest

    def _let_others_go_first(self, now: float, draw: float, cause: str) -> None:
        self.turn_pause = RetryPause.after(self.turn_pause, self.rules.turn_backoff, now, draw, cause)
        self._reads_slowly = False

    def free_slots(self, now: float) -> int:
        """How many messages to receive now."""
        if self.is_silent(now) or self._is_peeking or self._is_probing:
            return 0
        room = self.rules.in_hand_messages - self.in_hand
        if room <= 0 or self.in_hand_bytes >= self.rules.in_hand_bytes or self.held >= self.rules.held_messages:
            return 0
        if self._reads_slowly:
            return 0 if self.is_flowing else 1
        return min(RECEIVE_LIMIT, room)

    def is_silent(self, now: float) -> bool:
        """Whether no message may arrive: credit that was already granted must be withdrawn."""
        waits_for_turn = self.turn_pause is not None and now < self.turn_pause.until
        return self.is_stopping or self.primary_pause is not None or waits_for_turn

    def next_deadline(self, now: float) -> float | None:
        """When `due` has something to do even if no event occurs; locks apart."""
        times = []
        if self.primary_pause is not None and not self._is_probing:
            times.append(self.primary_pause.until)
        if self.turn_pause is not None and not self._reads_slowly:
            times.append(self.turn_pause.until)
        parts = self._parts.next_deadline()
        if parts is not None:
            times.append(parts)
        for lane in self.lanes.values():
            if lane.in_flight:
                if len(lane.waiting) > 1:
                    times.append(lane.started_at + self.rules.stuck_after)
            elif lane.waiting and not self._is_peeking:
                times.append(self.rate.next_at(now) if lane.pause is None else lane.pause.until)
        return min(times, default=None)

    def to_renew(self, now: float) -> list[Delivery]:
        """The deliveries whose locks should be renewed now."""
        return [delivery for delivery in self._mine.values() if delivery.renew_at <= now]

    @property
    def is_idle(self) -> bool:
        """Nothing is in our hands and nothing is left to do."""
        return not self._mine and not self._actions and all(not lane.in_flight for lane in self.lanes.values())

    @property
    def held(self) -> int:
        """How many messages of paused destinations we hold only the lock of."""
        return sum(len(lane.held) for lane in list(self.lanes.values()))  # other threads read this

    @property
    def locks(self) -> int:
        """How many locks we have."""
        return len(self._mine)

    @property
    def is_flowing(self) -> bool:
        """A message in our hands is in flight or can be sent now."""
        return any(lane.in_flight or (lane.waiting and lane.pause is None) for lane in self.lanes.values())

    # --- bookkeeping ------------------------------------------------------------------------------------------

    def _count(self, item: Item, sign: int) -> None:
        self.in_hand += sign
        self.in_hand_bytes += sign * item.message.size

    def _put_back(self, lane: Lane, send: SendBatch) -> None:
        # After the receiver was lost we no longer hold them: they are delivered again.
        ours = tuple(item for item in send.items if all(d.sequence_number in self._mine for d in item.deliveries))
        lane.waiting.extendleft(reversed(ours))
        for item in send.items:
            if item not in ours:
                self._count(item, -1)

    def _slim(self, lane: Lane) -> None:
        """Keep only the locks of messages that cannot be sent now."""
        before = len(lane.waiting)
        self.in_hand_bytes -= lane.hold_all_but_first()
        self.in_hand -= before - len(lane.waiting)

    def _take_all(self, lane: Lane) -> list[Delivery]:
        for item in lane.waiting:
            self._count(item, -1)
        return lane.take_all()

    def _release(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            return
        ordered = sorted(deliveries, key=lambda delivery: delivery.sequence_number)
        for delivery in ordered:
            self._mine.pop(delivery.sequence_number, None)
            self._order.released(delivery.sequence_number, delivery.message.destination)
        self._actions.append(Release(tuple(ordered)))

    def _bury(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            self._mine.pop(letter.delivery.sequence_number, None)
            self._settled.add(letter.delivery, is_home=False)
        if letters:
            self._actions.append(Bury(tuple(letters)))

    def _release_waiting(self) -> None:
        for lane in self.lanes.values():
            lane.pause = None if not lane.in_flight else lane.pause
            self._release(self._take_all(lane))
        self._release(self._parts.clear())

    def _release_blocked(self, now: float) -> None:
        """Stopping: release the messages of paused or stuck lanes, and incomplete parts."""
        for lane in self.lanes.values():
            if lane.pause is not None or lane.is_stuck(now, self.rules.stuck_after):
                self._release(self._take_all(lane))
        self._release(self._parts.clear())
