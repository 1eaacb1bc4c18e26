"""Two engines, a plain variable as the clock, and bytes carried between them by hand: no socket, no loop."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pairbus.amqp.codec import encode
from pairbus.amqp.engine import (
    ConnectionLost,
    ConnectionOpened,
    CreditChanged,
    DeliveryUpdated,
    Engine,
    EngineLimits,
    Event,
    LinkClosed,
    LinkOpened,
    MessageReceived,
    MessageTooLarge,
    OutcomeConfirmed,
    UnfinishedBudget,
)
from pairbus.amqp.links import Link
from pairbus.amqp.outcomes import Accepted, AmqpError, LinkLostError, Rejected
from pairbus.amqp.types import Described, UInt, ULong


class Pair:
    """A client and a server that share a clock. Every event is kept until it is taken."""

    def __init__(self, budget: UnfinishedBudget | None = None, **limits: float) -> None:
        self.now = 1_000.0
        self.client = Engine(server=False, container_id="client", hostname="localhost")
        bounds = EngineLimits(**limits)  # type: ignore[arg-type]
        self.server = Engine(server=True, container_id="server", limits=bounds, budget=budget)
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self.client.start(self.now)
        self.server.start(self.now)

    def pump(self, piece: int = 1 << 20) -> None:
        """Carry bytes both ways, `piece` bytes at a time, until neither side has any."""
        moved = True
        while moved:
            moved = False
            for source, target, events in (
                (self.client, self.server, self.server_events),
                (self.server, self.client, self.client_events),
            ):
                while data := source.data_to_send():
                    moved = True
                    for at in range(0, len(data), piece):
                        events.extend(target.receive_data(data[at : at + piece], self.now))
            self.client_events.extend(self.client.events())
            self.server_events.extend(self.server.events())

    def pass_time(self, seconds: float) -> None:
        """Move the clock on, stopping at each deadline of either side."""
        end = self.now + seconds
        while True:
            deadlines = [e.next_deadline for e in (self.client, self.server) if e.next_deadline is not None]
            self.now = min([end, *(max(deadline, self.now) for deadline in deadlines)])
            self.client_events.extend(self.client.handle_timeout(self.now))
            self.server_events.extend(self.server.handle_timeout(self.now))
            self.pump()
            if self.now >= end:
                return
            self.now += 0.001

    def open_link(self, *, sender: bool) -> tuple[Link, Link]:
        """A link that the client opens and the server accepts: the client's handle, and the server's."""
        link = self.client.new_link(self.client.new_session(), "a link", sender=sender)
        link.open(source="orders", target="orders", second=not sender)
        self.pump()
        (opened,) = (event for event in self.server_events if isinstance(event, LinkOpened))
        opened.link.accept(max_message_size=1_000_000)
        self.pump()
        self.server_events.clear()
        self.client_events.clear()
        return link, opened.link


def transfer(*fields: object, payload: bytes) -> bytes:
    """A transfer frame on channel 0."""
    body = encode(Described(ULong(0x14), list(fields))) + payload
    return (len(body) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + body


def is_cut(engine: Engine) -> bool:
    return engine.aborted


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_message_is_sent_and_accepted(piece: int) -> None:
    pair = Pair()
    pair.pump(piece)
    assert pair.client_events == [ConnectionOpened()]
    assert pair.server_events == [ConnectionOpened()]
    sender, receiver = pair.open_link(sender=True)
    receiver.grant(10)
    pair.pump(piece)
    assert pair.client_events == [CreditChanged(sender)]
    assert sender.credit == 10
    sent = sender.send(b"tag", b"x" * 200_000, message_format=0x80013700)
    pair.pump(piece)
    (event,) = pair.server_events
    assert isinstance(event, MessageReceived)
    assert (event.link, event.raw, event.message_format) == (receiver, b"x" * 200_000, 0x80013700)
    assert event.delivery.tag == b"tag"
    event.delivery.settle()
    pair.pump(piece)
    assert sent is not None
    assert pair.client_events[-1] == DeliveryUpdated(sender, sent)
    assert (sent.state, sent.settled) == (Accepted(), True)


def test_an_outcome_is_proposed_and_confirmed_with_another() -> None:
    pair = Pair()
    pair.pump()
    receiver, sender = pair.open_link(sender=False)
    receiver.grant(1)
    pair.pump()
    sender.send(b"lock", b"body")
    pair.pump()
    (message,) = pair.client_events
    assert isinstance(message, MessageReceived)
    message.delivery.propose(Accepted())
    pair.pump()
    (*_, update) = pair.server_events
    assert isinstance(update, DeliveryUpdated)
    assert update.delivery.state == Accepted()
    refusal = Rejected(AmqpError("com.microsoft:message-lock-lost", "too late"))
    update.delivery.settle(refusal)
    pair.pump()
    (*_, confirmed) = pair.client_events
    assert isinstance(confirmed, OutcomeConfirmed)
    assert isinstance(confirmed.state, Rejected)
    assert confirmed.state.error is not None
    assert confirmed.state.error.condition == "com.microsoft:message-lock-lost"


def test_a_message_above_the_limit_is_reported_without_its_bytes() -> None:
    pair = Pair(max_message=100_000)
    pair.pump()
    sender, receiver = pair.open_link(sender=True)
    receiver.grant(1)
    pair.pump()
    sender.send(b"tag", b"x" * 300_000)
    pair.pump()
    (event,) = pair.server_events
    assert isinstance(event, MessageTooLarge)
    assert event.size == 300_000
    assert pair.server.unfinished_bytes == 0


def test_a_connection_that_is_not_opened_in_time_is_aborted() -> None:
    pair = Pair(open_timeout=30.0)
    assert pair.server.next_deadline == 1_030.0
    assert list(pair.server.handle_timeout(1_029.9)) == []
    assert not is_cut(pair.server)
    assert list(pair.server.handle_timeout(1_030.0)) == []
    assert is_cut(pair.server)
    (lost,) = pair.server.connection_lost()
    assert isinstance(lost, ConnectionLost)
    assert lost.error.condition == "amqp:resource-limit-exceeded"


def _unfinished(handle: int) -> bytes:
    return transfer(UInt(handle), UInt(handle), b"tag", UInt(0), False, True, payload=b"x" * 15_000)


def _with_links(pair: Pair, number: int) -> list[Link]:
    pair.pump()
    session = pair.client.new_session()
    for name in range(number):
        pair.client.new_link(session, f"link {name}", sender=True).open(source="orders", target="orders")
    pair.pump()
    return [event.link for event in pair.server_events if isinstance(event, LinkOpened)]


def test_nothing_is_kept_of_messages_to_a_refused_link() -> None:
    pair = Pair()
    (link,) = _with_links(pair, 1)
    link.refuse(AmqpError("amqp:unauthorized-access", "no token"))
    for _ in range(100):
        assert list(pair.server.receive_data(_unfinished(0), pair.now)) == []
        assert pair.server.unfinished_bytes == 0


def test_beyond_the_common_budget_the_connection_that_holds_most_is_closed() -> None:
    budget = UnfinishedBudget(100_000)
    greedy, modest = Pair(budget), Pair(budget)
    for pair in (greedy, modest):
        for link in _with_links(pair, 6):
            link.accept()
        pair.pump()
    for handle in range(6):
        list(greedy.server.receive_data(_unfinished(handle), greedy.now))
    list(modest.server.receive_data(_unfinished(0), modest.now))
    assert (greedy.server.unfinished_bytes, modest.server.unfinished_bytes, budget.total) == (0, 15_000, 15_000)
    assert b"90000 bytes of unfinished messages are too many" in greedy.server.data_to_send()
    greedy.server.connection_lost()
    modest.server.connection_lost()
    assert budget.total == 0


def test_too_many_unfinished_messages_end_the_connection_and_nothing_more_is_kept() -> None:
    def unfinished(handle: int) -> bytes:
        return transfer(UInt(handle), UInt(handle), b"tag", UInt(0), False, True, payload=b"x" * 15_000)

    pair = Pair(max_unfinished=50_000, max_message=20_000)
    pair.pump()
    session = pair.client.new_session()
    for number in range(4):
        pair.client.new_link(session, f"link {number}", sender=True).open(source="orders", target="orders")
    pair.pump()
    for event in pair.server_events:
        if isinstance(event, LinkOpened):
            event.link.accept()
            event.link.grant(10)
    pair.pump()
    for handle in range(4):
        assert not pair.server.finished
        assert list(pair.server.receive_data(unfinished(handle), pair.now)) == []
    assert pair.server.unfinished_bytes == 0
    assert b"60000 bytes of unfinished messages are too many" in pair.server.data_to_send()
    for _ in range(1_000):
        assert list(pair.server.receive_data(unfinished(3), pair.now)) == []
    assert pair.server.unfinished_bytes == 0
    list(pair.server.handle_timeout(pair.now + 5.0))
    assert is_cut(pair.server)
    pair.server.connection_lost()
    assert pair.server.unfinished_bytes == 0


@pytest.mark.parametrize("at_once", [False, True])
def test_an_aborted_message_leaves_nothing_to_the_next(at_once: bool) -> None:
    pair = Pair()
    pair.pump()
    session = pair.client.new_session()
    for name in ("aborts", "interleaves"):
        pair.client.new_link(session, name, sender=True).open(source="orders", target="orders")
    pair.pump()
    for opened in pair.server_events:
        if isinstance(opened, LinkOpened):
            opened.link.accept()
            opened.link.grant(10)
    pair.pump()
    aborted = [UInt(0), UInt(0), b"one", UInt(0x80013700), False]
    frames = [
        transfer(*aborted, True, payload=b"half"),
        transfer(UInt(1), UInt(1), b"other", UInt(0), False, True, payload=b"half"),
        transfer(*aborted, False, None, None, None, True, payload=b""),
        transfer(UInt(0), UInt(2), b"two", UInt(7), False, False, payload=b"whole"),
        transfer(UInt(0), UInt(3), b"three", UInt(8), False, False, payload=b"whole"),
    ]
    events: list[Event] = []
    for data in [b"".join(frames)] if at_once else frames:
        events.extend(pair.server.receive_data(data, pair.now))
    received = [event for event in events if isinstance(event, MessageReceived)]
    assert [(event.raw, event.message_format) for event in received] == [(b"whole", 7), (b"whole", 8)]
    assert pair.server.unfinished_bytes == 4


def test_heartbeats_keep_an_idle_connection_and_silence_ends_it() -> None:
    pair = Pair(idle_timeout=10.0)
    pair.pump()
    pair.pass_time(60.0)
    assert pair.server_events == [ConnectionOpened()]
    silent_since = pair.now
    while not pair.server.finished:
        assert pair.server.next_deadline is not None
        pair.now = max(pair.server.next_deadline, pair.now) + 0.001
        pair.server_events.extend(pair.server.handle_timeout(pair.now))
        while pair.server.data_to_send():
            pass
    assert 10.0 <= pair.now - silent_since < 21.0
    (*_, lost) = pair.server.connection_lost()
    assert isinstance(lost, ConnectionLost)
    assert lost.error.condition == "amqp:resource-limit-exceeded"


def test_a_peer_that_does_not_answer_a_close_is_aborted() -> None:
    pair = Pair()
    pair.pump()
    pair.client.close(pair.now)
    list(pair.client.handle_timeout(pair.now + 4.9))
    assert not is_cut(pair.client)
    list(pair.client.handle_timeout(pair.now + 5.0))
    assert is_cut(pair.client)


def test_a_close_that_is_answered_finishes_both_sides() -> None:
    pair = Pair()
    pair.pump()
    pair.server.close(pair.now, AmqpError("amqp:connection:forced", "The namespace is being stopped."))
    pair.pump()
    assert pair.client.finished
    assert pair.server.finished
    (lost,) = pair.client.connection_lost()
    assert isinstance(lost, ConnectionLost)
    assert str(lost.error) == "amqp:connection:forced: The namespace is being stopped."


def test_handles_do_nothing_once_the_connection_is_lost() -> None:
    pair = Pair()
    pair.pump()
    sender, receiver = pair.open_link(sender=True)
    receiver.grant(10)
    pair.pump()
    sent = sender.send(b"tag", b"body")
    pair.pump()
    (message,) = pair.server_events
    assert isinstance(message, MessageReceived)
    closed, lost = pair.server.connection_lost("cable cut")
    assert isinstance(closed, LinkClosed)
    assert closed.link is receiver
    assert lost == ConnectionLost(AmqpError("amqp:connection:forced", "cable cut"))
    message.delivery.settle()
    receiver.grant(1)
    receiver.close()
    assert not receiver.alive
    assert (receiver.credit, receiver.queued_bytes, message.delivery.tag) == (0, 0, b"")
    assert pair.server.connection_lost() == []
    assert pair.server.data_to_send() == b""
    assert list(pair.server.receive_data(b"more", pair.now)) == []
    with pytest.raises(LinkLostError):
        pair.server.new_session()
    pair.client.connection_lost()
    assert sent is not None
    assert (sent.state, sent.settled) == (None, False)
    sent.settle()


def test_the_end_of_a_session_closes_its_links() -> None:
    pair = Pair()
    pair.pump()
    sender, receiver = pair.open_link(sender=True)
    end = bytes.fromhex("0000000c 02000000 00531745")
    assert list(pair.server.receive_data(end, pair.now)) == [LinkClosed(receiver, None)]
    assert not receiver.alive
    pair.pump()
    assert pair.client_events == [LinkClosed(sender, None)]


def test_a_peer_that_does_not_speak_amqp_gets_our_header_and_an_end() -> None:
    server = Engine(server=True, container_id="server")
    server.start(0.0)
    assert list(server.receive_data(b"GET / HTTP/1.1\r\n", 0.0)) == []
    assert server.data_to_send() == b"AMQP\x03\x01\x00\x00"
    assert server.data_to_send() == b""
    assert server.finished
    (lost,) = server.connection_lost()
    assert isinstance(lost, ConnectionLost)
    assert lost.error.condition == "amqp:connection:framing-error"


def test_the_engine_loads_no_loop_no_socket_and_no_clock() -> None:
    code = (
        "import sys; before = set(sys.modules); import pairbus.amqp.engine; "
        "assert not {'asyncio', 'socket', 'selectors'} & (set(sys.modules) - before)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
