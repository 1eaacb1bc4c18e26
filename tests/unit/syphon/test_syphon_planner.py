"""What a pump decides, without any IO: the planner and its parts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest

from pairbus import envelope
from pairbus.amqp.client import Received
from pairbus.amqp.codec import encode
from pairbus.amqp.conditions import CONDITIONS
from pairbus.amqp.links import IncomingDelivery
from pairbus.amqp.message import (
    APPLICATION_PROPERTIES,
    edited_map,
    message_key,
    read_facts,
    with_application_properties,
    with_message_id,
)
from pairbus.amqp.types import ULong
from pairbus.failover.classification import ErrorDescription
from pairbus.failover.classification import Verdict as Classified
from pairbus.failover.classification import verdict as classify
from pairbus.syphon.amqp_transport import _deliveries
from pairbus.syphon.deliveries import Delivery, Peeked
from pairbus.syphon.planner import (
    Action,
    Backoff,
    Bury,
    Complete,
    Peek,
    Planner,
    Probe,
    RateLimit,
    Release,
    RetryPause,
    SendBatch,
)
from pairbus.syphon.sequences import SequenceGuard
from pairbus.syphon.transport import SendError, SendFailure, failure_of_link, failure_of_send

NOW_MS = 1_700_000_000_000
DOWN = SendError(SendFailure.UNAVAILABLE, "amqp:internal-error")


def raw(name: str, destination: str = "orders", body: bytes = b"x") -> bytes:
    data = b"\x00\x53\x75\xb0" + len(body).to_bytes(4) + body
    return envelope.to_backlog(with_message_id(data, name), destination)


def delivery(number: int, destination: str = "orders", content: bytes | None = None) -> Delivery:
    return stamped(number, content if content is not None else raw(f"{number}", destination), 1e9)


def stamped(number: int, content: bytes, renew_at: float) -> Delivery:
    return Delivery(replace(envelope.inspect(content), sequence_number=number), object(), renew_at)


def planner_at_the_head(first: int = 1) -> Planner:
    """A planner that knows that nothing stands before the number `first`."""
    planner = Planner()
    planner._order.looked_at((0, first), first, [])
    planner._order._next[0] = first
    return planner


def due(planner: Planner, now: float = 0.0) -> list[Action]:
    return planner.due(now, NOW_MS, 0.5)


def only_send(planner: Planner, now: float = 0.0) -> SendBatch:
    (action,) = [one for one in due(planner, now) if isinstance(one, SendBatch)]
    return action


def test_nothing_is_sent_before_it_is_known_what_stands_in_front() -> None:
    planner = Planner()
    planner.arrived([delivery(5)], 0.0)
    assert due(planner) == [Peek((0, 5))]
    planner.peeked((0, 5), [Peeked(5, "orders")])
    assert [item.sequence_number for item in only_send(planner).items] == [5]


def test_messages_behind_a_foreign_one_of_their_destination_are_released_others_go() -> None:
    planner = Planner()
    planner.arrived([delivery(5), delivery(6, "invoices")], 0.0)
    due(planner)
    planner.peeked((0, 5), [Peeked(3, "orders"), Peeked(5, "orders"), Peeked(6, "invoices")])
    actions = due(planner)
    assert [one.destination for one in actions if isinstance(one, SendBatch)] == ["invoices"]
    (release,) = [one for one in actions if isinstance(one, Release)]
    assert [one.sequence_number for one in release.deliveries] == [5]
    planner = Planner()
    planner.arrived([delivery(5)], 0.0)
    due(planner)
    planner.peeked((0, 5), [Peeked(3, "orders"), Peeked(5, "orders")])
    due(planner)
    assert planner.free_slots(0.0) == 0, "the other syphon goes first"
    assert planner.turn_pause is not None
    due(planner, planner.turn_pause.until)
    assert planner.free_slots(planner.turn_pause.until) == 1, "one sip shows whether it is our turn"


def test_completed_only_after_the_primary_took_it() -> None:
    planner = planner_at_the_head()
    planner.arrived([delivery(1)], 0.0)
    send = only_send(planner)
    assert not any(isinstance(one, Complete) for one in due(planner))
    planner.sent(send, None, 0.0, 0.5)
    (complete,) = due(planner)
    assert isinstance(complete, Complete)
    assert complete.carried == send.items


def test_a_lane_has_one_send_under_way() -> None:
    planner = planner_at_the_head()
    planner.arrived([delivery(1)], 0.0)
    only_send(planner)
    planner.arrived([delivery(2)], 0.0)
    assert due(planner) == []


def test_after_a_failure_only_one_message_is_tried_and_success_brings_the_others_back() -> None:
    planner = planner_at_the_head()
    planner.arrived([delivery(n) for n in range(1, 51)], 0.0)
    send = only_send(planner)
    assert len(send.items) == 50
    planner.sent(send, DOWN, 0.0, 0.0)
    assert due(planner, 0.9) == []
    assert (planner.in_hand, planner.held) == (1, 49)
    trial = only_send(planner, 1.0)
    assert [item.sequence_number for item in trial.items] == [1]
    planner.sent(trial, DOWN, 1.0, 0.0)
    assert due(planner, 2.9) == [], "the pause has doubled"
    trial = only_send(planner, 3.0)
    planner.sent(trial, None, 3.0, 0.0)
    actions = due(planner, 3.0)
    (release,) = [one for one in actions if isinstance(one, Release)]
    assert [one.sequence_number for one in release.deliveries] == list(range(2, 51))
    assert (planner.in_hand, planner.held) == (0, 0)
    planner.arrived([delivery(51)], 3.0)
    assert not any(isinstance(one, SendBatch) for one in due(planner, 3.0)), "2 to 50 come first"


def test_every_lock_is_renewed_in_time_also_those_of_what_is_only_held() -> None:
    planner = planner_at_the_head()
    arrived = [stamped(number, raw(f"{number}"), 30.0) for number in (1, 2, 3)]
    planner.arrived(arrived, 0.0)
    planner.sent(only_send(planner), DOWN, 0.0, 0.0)
    assert planner.held == 2
    assert planner.to_renew(29.0) == []
    assert planner.to_renew(30.0) == arrived
    planner.renewed(arrived, 60.0)
    assert planner.to_renew(59.0) == []
    planner.sent(only_send(planner, 59.0), None, 59.0, 0.0)
    assert planner.to_renew(60.0) == [], "the first is home, the others were given back"


def test_the_lowest_message_is_the_one_to_try_with_however_late_it_came() -> None:
    planner = planner_at_the_head()
    planner.arrived([delivery(1)], 0.0)
    planner.sent(only_send(planner), DOWN, 0.0, 0.0)
    planner.lost_receiver()
    planner.arrived([delivery(n) for n in (3, 2, 1)], 0.5)
    gap = (0, 3)
    assert due(planner, 1.0) == [Peek(gap)]
    planner.peeked(gap, [Peeked(n, "orders") for n in (1, 2, 3)])
    assert [item.sequence_number for item in only_send(planner, 1.0).items] == [1]
    assert (planner.in_hand, planner.held) == (1, 2)


def test_a_message_that_came_home_is_completed_when_it_comes_again() -> None:
    planner = planner_at_the_head()
    planner.arrived([delivery(1)], 0.0)
    planner.sent(only_send(planner), None, 0.0, 0.5)
    due(planner)
    again = delivery(1)
    planner.arrived([again], 5.0)
    assert due(planner, 5.0) == [Complete((again,))]


def test_a_message_that_was_only_joined_is_not_taken_for_home() -> None:
    parts = envelope.split(raw("large", body=bytes(5000)), "orders", "id", 3000)
    planner = planner_at_the_head()
    planner.arrived([delivery(1, content=parts[0]), delivery(2, content=parts[1])], 0.0)
    planner.sent(only_send(planner), DOWN, 0.0, 0.0)
    planner.is_stopping = True
    (release,) = due(planner)
    assert isinstance(release, Release)
    planner.is_stopping = False
    planner.arrived([delivery(1, content=parts[0]), delivery(2, content=parts[1])], 10.0)
    send = only_send(planner, 10.0)
    assert len(send.items[0].deliveries) == 2
    planner.sent(send, None, 10.0, 0.0)
    late = delivery(3, content=parts[0])
    planner.arrived([late], 10.0)
    (complete,) = due(planner, 10.0)
    assert isinstance(complete, Complete)
    assert [one.sequence_number for one in complete.deliveries] == [1, 2]
    assert complete.part_of == "id", "the parts leave together"
    planner.completed(complete)
    assert due(planner, 10.0) == [Complete((late,), (), "id")], "a copy leaves when the others have left"
    another = delivery(4, content=parts[1])
    planner.arrived([another], 10.0)
    assert due(planner, 10.0) == [Complete((another,), (), "id")]


def test_a_new_lock_for_what_we_have_replaces_the_old_one() -> None:
    planner = planner_at_the_head()
    planner.arrived([delivery(1)], 0.0)
    send = only_send(planner)
    renewed = delivery(1)
    planner.arrived([renewed], 1.0)
    planner.sent(send, None, 1.0, 0.5)
    (complete,) = due(planner)
    assert isinstance(complete, Complete)
    assert complete.deliveries[0].handle is renewed.handle


def test_a_silent_primary_is_probed_and_everything_released() -> None:
    planner = planner_at_the_head()
    planner.arrived([delivery(1), delivery(2, "invoices")], 0.0)
    sends = [one for one in due(planner) if isinstance(one, SendBatch)]
    planner.sent(sends[0], SendError(SendFailure.UNREACHABLE, "amqp:connection:forced"), 0.0, 0.0)
    assert due(planner) == [Probe()]
    assert planner.free_slots(0.0) == 0
    planner.probed(False, 0.0, 0.0)
    (release,) = due(planner)
    assert isinstance(release, Release)
    planner.sent(sends[1], SendError(SendFailure.UNREACHABLE, "amqp:connection:forced"), 0.1, 0.0)
    (release,) = due(planner, 0.2)
    assert isinstance(release, Release)
    assert planner.is_silent(0.5)
    assert due(planner, 1.0) == [Probe()]
    planner.probed(True, 1.0, 0.0)
    assert planner.free_slots(1.0) == 100


def test_messages_of_a_lost_lock_are_not_sent() -> None:
    planner = planner_at_the_head()
    first, second = delivery(1), delivery(2)
    planner.arrived([first, second], 0.0)
    planner.lost_locks([first])
    actions = due(planner)
    assert not any(isinstance(one, SendBatch) for one in actions), "2 waits for 1, which comes again"
    assert planner.in_hand == 0


def test_a_lost_receiver_forgets_what_waits_and_a_send_under_way_still_counts() -> None:
    planner = planner_at_the_head()
    planner.arrived([delivery(1), delivery(2, "invoices")], 0.0)
    orders, invoices = (one for one in due(planner) if isinstance(one, SendBatch))
    planner.lost_receiver()
    planner.sent(orders, None, 0.0, 0.5)
    planner.sent(invoices, DOWN, 0.0, 0.5)
    due(planner)
    assert (planner.in_hand, planner.in_hand_bytes, planner.held, planner.locks) == (0, 0, 0, 0)
    again = delivery(1)
    planner.arrived([again], 1.0)
    assert Complete((again,)) in due(planner, 1.0)


def test_unreadable_messages_are_buried_with_a_reason_that_names_the_cause() -> None:
    planner = planner_at_the_head()
    alias = edited_map(APPLICATION_PROPERTIES, b"", add=[("x-ms-path", "orders"), ("x-ms-timetolive", True)])
    planner.arrived([delivery(1, content=alias), delivery(2, content=b"\x00\x53\x75\xa0\x00")], 0.0)
    letters = [letter for one in due(planner) if isinstance(one, Bury) for letter in one.letters]
    assert [letter.reason for letter in letters] == ["AliasUnreadable", "DestinationMissing"]
    assert "'x-ms-timetolive' has a value of type bool" in letters[0].description


@pytest.mark.parametrize(
    ("alias", "value", "reason"),
    [
        ("x-ms-timetolive", "P" + "9" * 400 + "D", "AliasUnreadable"),
        ("x-ms-timetolive", "P99999999999999999999D", "AliasUnreadable"),
        ("x-ms-timetolive", 2**63 - 1, None),
        ("x-ms-timetolive", 1e300, "AliasUnreadable"),
        ("x-ms-scheduledenqueuetimeutc", 1e300, "AliasUnreadable"),
        ("x-ms-scheduledenqueuetimeutc", "9999-12-31T23:59:59.999999-23:59", None),
        ("x-ms-scheduledenqueuetimeutc", "0001-01-01T00:00:00+23:59", None),
    ],
)
def test_one_strange_alias_concerns_one_message(alias: str, value: object, reason: str | None) -> None:
    strange = with_application_properties(raw("strange"), {alias: value})
    planner = planner_at_the_head()
    planner.arrived([delivery(1, content=strange), delivery(2, "events")], 0.0)
    actions = due(planner)
    sends = [one.destination for one in actions if isinstance(one, SendBatch)]
    buried = [letter.reason for one in actions if isinstance(one, Bury) for letter in one.letters]
    assert buried == ([] if reason is None else [reason])
    assert sorted(sends) == (["events", "orders"] if reason is None else ["events"])


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_pauses_grow_to_their_longest_and_jitter_shortens(draw: float) -> None:
    growth = Backoff(first=1.0, longest=120.0, jitter=0.25)
    pause: RetryPause | None = None
    lengths = []
    for _ in range(200):
        pause = RetryPause.after(pause, growth, 100.0, draw, "down")
        lengths.append(pause.until - 100.0)
    assert lengths[0] == pytest.approx(1 - 0.25 * draw)
    assert lengths == sorted(lengths)
    assert lengths[-1] == pytest.approx(120 * (1 - 0.25 * draw))


def test_a_rate_gives_what_was_earned_and_says_when_more_comes() -> None:
    rate = RateLimit(5.0)
    assert rate.take(100, 0.0) == 5
    assert rate.take(1, 0.0) == 0
    assert rate.next_at(0.0) == pytest.approx(0.2)
    assert rate.take(100, 0.4) == 2
    rate.give_back(2)
    assert rate.take(100, 0.4) == 2
    assert rate.take(100, 3600.0) == 5, "an idle hour earns no more than a second"
    with pytest.raises(ValueError, match="rate is 0"):
        RateLimit(0)


def test_the_guard_keeps_partitions_apart_and_doubts_only_what_is_open() -> None:
    guard = SequenceGuard()
    other = 7 << 48
    guard.arrived(0, "a")
    guard.arrived(other, "a")
    guard.arrived(other + 5, "a")
    assert guard.next_gap(1) is None
    assert guard.next_gap(other + 5) == (other + 1, other + 5)
    guard.looked_at((other + 1, other + 5), other + 5, [(other + 2, "b"), (other + 3, None)])
    assert guard.lowest_open("b") == other + 2
    assert guard.lowest_open("a") is None
    guard.recheck_open()
    assert guard.lowest_open("b") is None
    assert guard.next_gap(other + 9) == (other + 2, other + 3)


@pytest.mark.parametrize(
    ("condition", "failure"),
    [
        ("amqp:not-found", SendFailure.MISSING),
        ("amqp:link:message-size-exceeded", SendFailure.REFUSED),
        ("com.microsoft:server-busy", SendFailure.UNAVAILABLE),
        ("amqp:resource-limit-exceeded", SendFailure.UNAVAILABLE),
        ("amqp:unauthorized-access", SendFailure.UNAVAILABLE),
        ("amqp:connection:forced", SendFailure.UNREACHABLE),
        ("something:new", SendFailure.UNAVAILABLE),
    ],
)
def test_only_what_the_service_refused_for_good_is_given_up(condition: str, failure: SendFailure) -> None:
    assert failure_of_send(condition) is failure


def test_what_a_paired_client_diverts_is_never_taken_for_refused() -> None:
    for condition in CONDITIONS:
        names = {"ServiceBusError"} | ({"MessageSizeExceededError"} if "size-exceeded" in condition else set())
        diverts = classify(ErrorDescription(frozenset(names), condition)) is Classified.COUNTS
        assert not (failure_of_send(condition) is SendFailure.REFUSED and diverts), condition


def test_a_link_that_is_refused_says_nothing_about_a_message() -> None:
    assert failure_of_send("amqp:not-allowed") is SendFailure.REFUSED
    assert failure_of_link("amqp:not-allowed") is SendFailure.UNAVAILABLE
    assert failure_of_link("amqp:link:message-size-exceeded") is SendFailure.REFUSED
    assert failure_of_link("amqp:not-found") is SendFailure.MISSING


@pytest.mark.parametrize("message_id", ["text", UUID(int=7), ULong(7), b"\x01\xff", None])
def test_ids_are_read_as_everywhere_else(message_id: object) -> None:
    body = b"\x00\x53\x75\xa0\x01x"
    for fields in ([message_id], [message_id, None, "to" * 200], []):
        whole = b"\x00\x53\x70\x45\x00\x53\x73" + encode(fields) + body
        assert message_key(whole) == read_facts(whole).message_key
    assert message_key(body) is None
    assert message_key(b"") is None


def test_a_held_delivery_of_the_amqp_transport_keeps_no_bytes() -> None:
    async def play() -> Delivery:
        (arrived,) = _deliveries([Received(raw("1"), b"t" * 16, cast(IncomingDelivery, object()))])
        return arrived

    held = asyncio.run(play())
    held.drop_content()
    assert (held.message.raw, held.handle.raw, held.handle.tag) == (b"", b"", b"t" * 16)
    assert (held.message.message_id, held.message.destination) == ("1", "orders")
