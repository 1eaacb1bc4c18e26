"""PURE. Everything a pump decides. The shell (`pump`) tells what happened, and does what `due` says.

    arrived, sent, peeked, probed, renewed, lost_locks  ->  due(now) -> actions; next_deadline(now); appetite(now)

Invariants, for every order of calls:
- A delivery is settled at most once, and completed only after the primary took its message.
- Within one destination messages are sent in the order of their numbers; none is sent while an earlier one of the
  same destination is in the queue but not in our hands.
- What is at hand is bounded in messages and bytes, however many messages a destination that is down has in front.
- Nothing is asked of a destination, or of the primary, before its pause is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pairbus import envelope
from pairbus.errors import PartError
from pairbus.syphon import letters
from pairbus.syphon.actions import Action, Bury, Complete, Peek, Probe, Release, Seek, Send
from pairbus.syphon.deliveries import DeadLetter, Delivery, Item, Peeked
from pairbus.syphon.lanes import Lane
from pairbus.syphon.memory import SettledLately
from pairbus.syphon.parts import PartsBin
from pairbus.syphon.pauses import Pause, RateLimit
from pairbus.syphon.restoring import restored
from pairbus.syphon.rules import MISSING_FOR_SECONDS, PEEK_AT_MOST, RECEIVE_AT_MOST, REMEMBERED, PumpRules
from pairbus.syphon.send_errors import SendError, SendFailure
from pairbus.syphon.sequences import SequenceGuard


@dataclass(slots=True)
class Planner:
    rules: PumpRules = field(default_factory=PumpRules)
    rate: RateLimit = field(default_factory=lambda: RateLimit(None))
    lanes: dict[str, Lane] = field(default_factory=dict)
    primary_pause: Pause | None = None
    turn: Pause | None = None
    """Another syphon has earlier messages of this queue: let it go first."""
    in_hand: int = 0
    in_hand_bytes: int = 0
    held: int = 0
    stopping: bool = False
    taken_at: dict[str, float] = field(default_factory=dict)
    """When each destination last took something from us, as long as we have a lane for it, and a while longer."""
    _parts: PartsBin = field(init=False)
    _order: SequenceGuard = field(default_factory=SequenceGuard)
    _mine: dict[int, Delivery] = field(default_factory=dict)
    _settled: SettledLately = field(default_factory=SettledLately)
    _actions: list[Action] = field(default_factory=list)
    _peeking: bool = False
    _probe_wanted: bool = False
    _probing: bool = False
    _sipping: bool = False

    def __post_init__(self) -> None:
        self._parts = PartsBin(self.rules.part_patience, self.rules.parts_bytes)

    def fresh(self) -> Planner:
        """One with empty hands, that remembers what this one settled."""
        return Planner(self.rules, self.rate, stopping=self.stopping, taken_at=self.taken_at, _settled=self._settled)

    # --- what happened ------------------------------------------------------------------------------------

    def arrived(self, deliveries: Iterable[Delivery], now: float) -> None:
        """The backlog queue gave us these, in this order."""
        for delivery in deliveries:
            number = delivery.sequence_number
            mine = self._mine.get(number)
            if self._settled.is_home(delivery):
                # Only the settlement was lost.
                self._order.seen(number)
                self._actions.append(Complete((delivery,)))
            elif mine is not None and mine.enqueued_ms == delivery.enqueued_ms:
                # Our lock ran out and we were given a new one for what we already have.
                mine.handle, mine.renew_at = delivery.handle, delivery.renew_at
            else:
                if mine is not None:
                    self.lost_locks([mine])  # the queue was made again
                self._arrived(delivery, now)
        self._release(self._parts.overflow())

    def _arrived(self, delivery: Delivery, now: float) -> None:
        number = delivery.sequence_number
        try:
            message = envelope.read(delivery.raw)
        except letters.UNREADABLE as error:
            self._order.seen(number)
            self._bury([letters.unreadable(delivery, error)])
            return
        destination = message.destination
        delivery.destination = destination
        self._order.arrived(number, destination)
        self._mine[number] = delivery
        if self.stopping or self.primary_pause is not None:
            self._release([delivery])
            return
        item: Item | None
        if message.part is not None:
            if self._parts.is_gone(message.part.of):
                self._complete_parts((delivery,), message.part.of)
                return
            try:
                item = self._parts.add(message, delivery, now)
            except PartError as error:
                self._bury([DeadLetter(delivery, "PartUnusable", str(error))])
                return
            if item is None:
                return
            if self._parts.is_home(message.part.of):
                self._complete_parts(item.deliveries, message.part.of)
                return
        else:
            item = Item(destination, number, (delivery,), delivery.raw, message.session_id)
        lane = self.lanes.get(destination)
        if lane is None:
            lane = self.lanes[destination] = Lane(destination)
        if now < lane.missing_until:
            self._bury(letters.missing(item.deliveries, destination))
        elif not lane.waiting or not (lane.pause is not None or lane.stuck(now, self.rules.stuck_after)):
            lane.add(item)
            self._count([item], 1)
        elif number < lane.waiting[0].sequence_number:
            lane.add(item)  # the lowest is the one to try with
            self._count([item], 1)
            self._slim(lane)
        else:
            for one in item.deliveries:
                one.raw = b""
            lane.held.extend(item.deliveries)
            self.held += len(item.deliveries)

    def sent(self, send: Send, error: SendError | None, now: float, draw: float) -> None:
        """The primary took the batch, or did not."""
        lane = self.lanes[send.destination]
        lane.under_way = ()
        if error is None:
            self.taken_at[lane.destination] = now
            lane.token_refusals = 0
            self._taken(lane, send)
        elif error.failure is SendFailure.MISSING:
            self._put_back(lane, send)
            lane.pause = None
            lane.missing_until = now + MISSING_FOR_SECONDS
            self._bury(letters.missing(self._take_all(lane), lane.destination))
        elif error.failure is SendFailure.REFUSED and len(send.items) > 1:
            # One of them is wrong. Halving finds it, and what stands before it goes home first.
            self._put_back(lane, send)
            lane.most = len(send.items) // 2
            lane.one_session_each = True
        elif error.failure is SendFailure.REFUSED:
            (item,) = send.items
            self._count(send.items, -1)
            self._bury(letters.refused(item, error))
            self._resume(lane)
        else:
            self._put_back(lane, send)
            lane.refused_since = lane.refused_since if lane.token_refusals else now
            lane.token_refusals = lane.token_refusals + 1 if error.token_refused else 0
            lane.pause = Pause.after(lane.pause, self.rules.destination_pauses, now, draw, str(error))
            if self.primary_pause is not None:
                self._release(self._take_all(lane))
                return
            self._slim(lane)
            self._probe_wanted = self._probe_wanted or error.failure is SendFailure.UNREACHABLE

    def _taken(self, lane: Lane, send: Send) -> None:
        self._count(send.items, -1)
        whole = tuple(item for item in send.items if item.part_of is None)
        deliveries = tuple(delivery for item in whole for delivery in item.deliveries)
        for delivery in deliveries:
            self._mine.pop(delivery.sequence_number, None)
            self._settled.note(delivery, home=True)
        if deliveries:
            self._actions.append(Complete(deliveries, whole))
        for item in send.items:
            if item.part_of is not None:
                copies = self._parts.went_home(item.part_of)
                self._complete_parts((*item.deliveries, *copies), item.part_of, (item,))
        lane.most *= 2
        self._resume(lane)

    def _complete_parts(self, deliveries: Sequence[Delivery], of: str, carried: tuple[Item, ...] = ()) -> None:
        for delivery in deliveries:
            self._mine.pop(delivery.sequence_number, None)
            self._settled.note(delivery, home=False)  # whether its siblings have left is for the parts to know
        self._actions.append(Complete(tuple(deliveries), carried, of))

    def completed(self, action: Complete) -> None:
        """The queue confirmed all of it."""
        if action.part_of is not None and (copies := self._parts.gone(action.part_of)):
            self._complete_parts(copies, action.part_of)

    def _resume(self, lane: Lane) -> None:
        """The destination answers: what was only held comes again, in order."""
        lane.pause = None
        if lane.held:
            held, lane.held = lane.held, []
            self.held -= len(held)
            self._release(held)

    def peeked(self, gap: tuple[int, int], found: Sequence[Peeked]) -> None:
        """What peeking from the gap's start showed, lowest number first, `PEEK_AT_MOST` at most."""
        self._peeking = False
        up_to = found[-1].sequence_number + 1 if len(found) >= PEEK_AT_MOST else gap[1]
        others = [(one.sequence_number, one.destination) for one in found if self._is_foreign(one)]
        self._order.looked_at(gap, min(up_to, gap[1]), others)

    def sought(self, seek: Seek, found: Sequence[Peeked], now: float, draw: float) -> None:
        """These messages are in the queue, where it was looked into."""
        part_of = seek.part_of
        elsewhere = [one.sequence_number for one in found if one.part_of == part_of and self._is_foreign(one)]
        released, given_up, text = self._parts.sought(part_of, elsewhere, last=seek.until_ms is not None)
        if released:
            self._release(released)
            self._let_others_go_first(now, draw, "a part of a message is in other hands")
        elif given_up and self._parts.is_home(part_of):
            self._complete_parts(given_up, part_of)
        else:
            self._bury([DeadLetter(one, "PartMissing", text) for one in given_up])

    def _is_foreign(self, seen: Peeked) -> bool:
        mine = self._mine.get(seen.sequence_number)
        return (mine is None or mine.enqueued_ms != seen.enqueued_ms) and not self._settled.has(seen)

    def probed(self, answers: bool, now: float, draw: float) -> None:
        """The primary answers, or nobody is there."""
        self._probing = False
        if answers:
            self.primary_pause = None
            return
        self.primary_pause = Pause.after(
            self.primary_pause, self.rules.primary_pauses, now, draw, "the primary does not answer"
        )
        self._release_what_waits()

    def renewed(self, deliveries: Iterable[Delivery], renew_at: float) -> None:
        for delivery in deliveries:
            delivery.renew_at = renew_at

    def lost_locks(self, deliveries: Iterable[Delivery]) -> None:
        """These are no longer ours: they will come again, to us or to another."""
        gone = {delivery.sequence_number: delivery for delivery in deliveries}
        lost = set(gone)
        for lane in self.lanes.values():
            for item in [item for item in lane.waiting if any(d.sequence_number in lost for d in item.deliveries)]:
                lane.waiting.remove(item)
                self._count([item], -1)
                self._release([d for d in item.deliveries if d.sequence_number not in lost])
            self.held -= len(lane.held)
            lane.held = [delivery for delivery in lane.held if delivery.sequence_number not in lost]
            self.held += len(lane.held)
            for item in lane.under_way:
                for delivery in item.deliveries:
                    gone.pop(delivery.sequence_number, None)
        self._parts.drop(lost)
        for number, delivery in gone.items():
            if self._mine.pop(number, None) is not None:
                self._order.released(number, delivery.destination)

    def lost_receiver(self) -> None:
        """The connection to the backlog queue is gone: what we held will come again. Sends under way go on."""
        for lane in self.lanes.values():
            lane.waiting.clear()
            lane.held = []
        self._parts.clear()
        self.in_hand = sum(len(lane.under_way) for lane in self.lanes.values())
        self.in_hand_bytes = sum(item.size for lane in self.lanes.values() for item in lane.under_way)
        self.held = 0
        self._mine.clear()
        self._order.forget()
        self._peeking = False
        self._actions = [one for one in self._actions if not isinstance(one, Complete | Release | Bury | Peek)]

    def stop(self) -> None:
        """Take nothing more; finish what can be finished now, release the rest."""
        self.stopping = True

    def go_on(self) -> None:
        self.stopping = False

    # --- what to do ---------------------------------------------------------------------------------------

    def due(self, now: float, now_ms: int, draw: float) -> list[Action]:
        """Everything that is to be done now."""
        if self.primary_pause is not None and now >= self.primary_pause.until:
            self._probe_wanted = True
        if self._probe_wanted and not self._probing:
            self._probe_wanted, self._probing = False, True
            self._actions.append(Probe())
        if self.turn is not None and now >= self.turn.until and not self._sipping:
            self._sipping = True
            if self.turn.failures >= 3:
                self._order.doubt()
        self._actions += [Seek(*wanted) for wanted in self._parts.to_seek(now)]
        if self.stopping:
            self._release_what_cannot_go(now)
        for lane in list(self.lanes.values()):
            if lane.under_way:
                if lane.stuck(now, self.rules.stuck_after):
                    self._slim(lane)
            elif lane.waiting and (lane.pause is None or now >= lane.pause.until):
                self._dispatch(lane, now, now_ms, draw)
            elif lane.held and not lane.waiting:
                self._resume(lane)  # what we would have tried with is gone
            elif lane.empty and lane.pause is None and now >= lane.missing_until:
                del self.lanes[lane.destination]
                if len(self.taken_at) > REMEMBERED:
                    self.taken_at.pop(next(iter(self.taken_at)))
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
        ready = restored(batch, self.rules.policy, now_ms)
        self._count(ready.stay, -1)
        self._bury(ready.dead)
        if ready.items:
            lane.under_way, lane.started_at = ready.items, now
            self._actions.append(Send(lane.destination, ready.items, ready.raws))

    def _in_turn(self, lane: Lane, now: float, draw: float) -> bool:
        """Whether nothing of this destination stands before the first waiting message and is not in our hands.

        Later messages that something stands before are released: they come again after it.
        """
        first = lane.waiting[0].sequence_number
        gap = self._order.next_gap(lane.waiting[-1].sequence_number)
        if gap is not None:
            if not self._peeking:
                self._peeking = True
                self._actions.append(Peek(gap))
            return False
        lowest = self._order.lowest_open(lane.destination)
        if lowest is None or lowest > lane.waiting[-1].sequence_number:
            self._sipping, self.turn = False, None
            return True
        late = [item for item in lane.waiting if item.sequence_number > lowest]
        for _ in late:
            lane.waiting.pop()
        self._count(late, -1)
        held, lane.held = lane.held, []
        self.held -= len(held)
        self._release([one for item in late for one in item.deliveries] + held)
        self._let_others_go_first(now, draw, "earlier messages are in other hands")
        return first < lowest

    def _let_others_go_first(self, now: float, draw: float, cause: str) -> None:
        self.turn = Pause.after(self.turn, self.rules.turn_pauses, now, draw, cause)
        self._sipping = False

    def appetite(self, now: float) -> int:
        """How many messages to receive now; 0: none."""
        if self.silent(now) or self._peeking or self._probing:
            return 0
        room = self.rules.in_hand_messages - self.in_hand
        if room <= 0 or self.in_hand_bytes >= self.rules.in_hand_bytes or self.held >= self.rules.held_messages:
            return 0
        if self._sipping:
            return 0 if self.flowing else 1
        return min(RECEIVE_AT_MOST, room)

    def silent(self, now: float) -> bool:
        """Whether nothing must come in: not even what was asked for before."""
        waits_for_turn = self.turn is not None and now < self.turn.until
        return self.stopping or self.primary_pause is not None or waits_for_turn

    def next_deadline(self, now: float) -> float | None:
        """When `due` will have something to do although nothing happened; locks apart."""
        times = []
        if self.primary_pause is not None and not self._probing:
            times.append(self.primary_pause.until)
        if self.turn is not None and not self._sipping:
            times.append(self.turn.until)
        parts = self._parts.next_deadline()
        if parts is not None:
            times.append(parts)
        for lane in self.lanes.values():
            if lane.under_way:
                if len(lane.waiting) > 1:
                    times.append(lane.started_at + self.rules.stuck_after)
            elif lane.waiting and not self._peeking:
                times.append(self.rate.next_at(now) if lane.pause is None else lane.pause.until)
        return min(times, default=None)

    def to_renew(self, now: float) -> list[Delivery]:
        """Everything in our hands whose lock should be renewed now."""
        return [delivery for delivery in self._mine.values() if delivery.renew_at <= now]

    @property
    def idle(self) -> bool:
        """Nothing is in our hands and nothing is left to do."""
        return not self._mine and not self._actions and all(not lane.under_way for lane in self.lanes.values())

    @property
    def holding(self) -> int:
        """How many locks we have."""
        return len(self._mine)

    @property
    def flowing(self) -> bool:
        """Something in our hands can go now or is on its way."""
        return any(lane.under_way or (lane.waiting and lane.pause is None) for lane in self.lanes.values())

    # --- inside -------------------------------------------------------------------------------------------

    def _count(self, items: Sequence[Item], sign: int) -> None:
        self.in_hand += sign * len(items)
        self.in_hand_bytes += sign * sum(item.size for item in items)

    def _put_back(self, lane: Lane, send: Send) -> None:
        # After the receiver was lost our hold on them is gone: they come again by themselves.
        ours = tuple(item for item in send.items if all(d.sequence_number in self._mine for d in item.deliveries))
        lane.put_back(ours)
        self._count([item for item in send.items if item not in ours], -1)

    def _slim(self, lane: Lane) -> None:
        """Keep only the locks of what cannot go now."""
        before_items, before_held = len(lane.waiting), len(lane.held)
        freed = lane.hold_all_but_first()
        self.in_hand -= before_items - len(lane.waiting)
        self.in_hand_bytes -= freed
        self.held += len(lane.held) - before_held

    def _take_all(self, lane: Lane) -> list[Delivery]:
        self._count(list(lane.waiting), -1)
        self.held -= len(lane.held)
        return lane.take_all()

    def _release(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            return
        ordered = sorted(deliveries, key=lambda delivery: delivery.sequence_number)
        for delivery in ordered:
            self._mine.pop(delivery.sequence_number, None)
            self._order.released(delivery.sequence_number, delivery.destination)
        self._actions.append(Release(tuple(ordered)))

    def _bury(self, dead: Sequence[DeadLetter]) -> None:
        for letter in dead:
            self._mine.pop(letter.delivery.sequence_number, None)
            self._settled.note(letter.delivery, home=False)
        if dead:
            self._actions.append(Bury(tuple(dead)))

    def _release_what_waits(self) -> None:
        for lane in self.lanes.values():
            lane.pause = None if not lane.under_way else lane.pause
            self._release(self._take_all(lane))
        self._release(self._parts.clear())

    def _release_what_cannot_go(self, now: float) -> None:
        """Stopping: a lane that is paused or stuck, and parts without their siblings, go back."""
        for lane in self.lanes.values():
            if lane.pause is not None or lane.stuck(now, self.rules.stuck_after):
                self._release(self._take_all(lane))
        self._release(self._parts.clear())
