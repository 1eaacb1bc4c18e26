"""The syphon between two embedded namespaces, over plain AMQP and over web sockets."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue, TransportType
from azure.servicebus.amqp import AmqpAnnotatedMessage
from tests.support.backlogs import backlog_form, encoded, ids, make_backlog, put, take_from

from pairbus import envelope
from pairbus.amqp.codec import encode
from pairbus.amqp.message import Sections, with_message_id
from pairbus.amqp.types import Byte, Char, Symbol, UInt, ULong, UShort
from pairbus.syphon import Carried, Namespace, Syphon
from pairbus.syphon.amqp_transport import AmqpTransport
from pairbus.syphon.deliveries import Delivery
from pairbus.testing import EmbeddedNamespace, EmbeddedPair, embedded_pair, wait_until

_numbers = itertools.count()


def plain(namespace: EmbeddedNamespace) -> Namespace:
    return Namespace.parse(namespace.connection_string, connection_verify=namespace.ca_file)


def over_web_sockets(namespace: EmbeddedNamespace) -> Namespace:
    """As the syphon of a client that goes through web sockets sees it."""
    client = ServiceBusClient.from_connection_string(
        namespace.connection_string,
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"https://localhost:{namespace.port}",
        connection_verify=namespace.ca_file,
    )
    # The administration, which finds extra queues, needs the key itself.
    return replace(Namespace.of(client), _connection_string=namespace.connection_string)


@dataclass(frozen=True)
class Stage:
    """One test's own backlog queue and names on a pair that all tests share."""

    pair: EmbeddedPair
    primary: Namespace
    secondary: Namespace
    name: str
    backlog: str

    def entity(self, kind: str) -> str:
        return f"{self.name}-{kind}"

    def put(self, *raws: bytes) -> None:
        put(self.pair.secondary, self.backlog, raws)

    def syphon(self, **options: Any) -> Syphon:
        return Syphon(self.primary, self.secondary, primary_name=self.name, queues=[0], **options)

    @contextmanager
    def running(self, **options: Any) -> Iterator[Syphon]:
        syphon = self.syphon(**options)
        thread = threading.Thread(target=syphon.run_blocking, daemon=True)
        thread.start()
        try:
            yield syphon
        finally:
            syphon.stop()
            thread.join(30)
            assert not thread.is_alive()

    def dead(self, count: int) -> list[tuple[str | None, str | None, str | None]]:
        messages = take_from(self.pair.secondary, self.backlog, count, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        return [(one.message_id, one.dead_letter_reason, one.dead_letter_error_description) for one in messages]

    def waiting(self) -> int:
        with self.pair.secondary.admin() as admin:
            return admin.get_queue_runtime_properties(self.backlog).active_message_count or 0


@pytest.fixture(scope="module")
def pair() -> Iterator[EmbeddedPair]:
    with embedded_pair() as running:
        yield running


@pytest.fixture(params=[plain, over_web_sockets])
def stage(pair: EmbeddedPair, request: pytest.FixtureRequest) -> Stage:
    name = f"contoso{next(_numbers)}"
    (backlog,) = make_backlog(pair.secondary, name)
    return Stage(pair, request.param(pair.primary), request.param(pair.secondary), name, backlog)


def test_a_message_arrives_as_it_was_sent(stage: Stage) -> None:
    orders = stage.entity("orders")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(orders, requires_session=True)
    message = ServiceBusMessage(
        b"\x00\xffbody",
        message_id="m1",
        session_id="s1",
        correlation_id="c",
        content_type="text/x",
        subject="subject",
        to="to",
        reply_to="reply",
        reply_to_session_id="rs",
        time_to_live=timedelta(hours=5),
        application_properties={"text": "é", "int": 2**30, "float": 1.5, "bool": True, "bytes": b"\x01"},
    )
    stage.put(backlog_form(message, orders))
    report = stage.syphon().run_blocking(once=True)
    assert (report.restored, report.dead_lettered) == (1, 0)
    (found,) = take_from(stage.pair.primary, orders, 1, session_id="s1")
    assert b"".join(found.body) == b"\x00\xffbody"
    assert (found.message_id, found.session_id, found.correlation_id) == ("m1", "s1", "c")
    assert (found.content_type, found.subject, found.to, found.reply_to) == ("text/x", "subject", "to", "reply")
    assert found.reply_to_session_id == "rs"
    assert found.time_to_live == timedelta(hours=5)
    assert found.application_properties == {
        b"text": b"\xc3\xa9",
        b"int": 2**30,
        b"float": 1.5,
        b"bool": True,
        b"bytes": b"\x01",
    }
    assert stage.waiting() == 0


def test_bodies_and_properties_keep_their_bytes(stage: Stage) -> None:
    orders = stage.entity("orders")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(orders)
    # Types that the SDK decodes to something else: unsigned numbers, a char, a list of symbols.
    properties = {"uint": UInt(7), "ushort": UShort(7), "ulong": ULong(7), "char": Char("A")}
    body = b"\x00\x53\x77" + encode([Symbol("a"), UInt(0), {"k": Byte(1)}])
    odd = with_message_id(b"\x00\x53\x74" + encode(properties) + body, "odd")
    stage.put(envelope.to_backlog(odd, orders))
    stage.syphon().run_blocking(once=True)
    raw = asyncio.run(_first_raw(stage.pair.primary.connection_string, orders))
    before, after = Sections.split(odd), Sections.split(raw)
    assert after.body == before.body
    assert after.application_properties == before.application_properties


async def _first_raw(connection_string: str, queue: str) -> bytes:
    namespace = Namespace.parse(connection_string)
    receiver = await AmqpTransport(namespace, namespace).open_receiver(queue)
    (delivery,) = await receiver.receive(1, 10.0)
    await receiver.complete([delivery])
    await receiver.close()
    return delivery.message.raw


def test_queues_topics_and_sessions_get_their_messages_in_order(stage: Stage) -> None:
    orders, sessions, news = stage.entity("orders"), stage.entity("sessions"), stage.entity("news")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(orders)
        admin.create_queue(sessions, requires_session=True)
        admin.create_topic(news)
        admin.create_subscription(news, "all")
        admin.create_queue(f"{news}-copy")
    raws = []
    for number in range(600):
        destination = (orders, sessions, news)[number % 3]
        session = f"s{number % 2}" if destination == sessions else None
        message = ServiceBusMessage(b"x" * (number * 7 % 900), message_id=f"{number}", session_id=session)
        raws.append(backlog_form(message, destination))
    stage.put(*raws)
    carried: list[Carried] = []
    report = stage.syphon(on_carried=carried.extend).run_blocking(once=True)
    assert report.restored == 600
    assert sorted(int(one.message_id or -1) for one in carried) == list(range(600))
    assert all(one.settled and one.fate == "restored" for one in carried)
    assert ids(take_from(stage.pair.primary, orders, 200)) == [f"{n}" for n in range(0, 600, 3)]
    for parity in range(2):
        expected = [f"{n}" for n in range(1, 600, 3) if n % 2 == parity]
        assert ids(take_from(stage.pair.primary, sessions, 100, session_id=f"s{parity}")) == expected
    with stage.pair.primary.client() as client:
        receiver = client.get_subscription_receiver(news, "all", receive_mode="receiveanddelete")
        with receiver:
            found: list[str | None] = []
            while len(found) < 200:
                found += ids(receiver.receive_messages(200, max_wait_time=10))
    assert found == [f"{n}" for n in range(2, 600, 3)]


def test_what_cannot_go_home_is_dead_lettered_with_the_cause(stage: Stage) -> None:
    sessions, orders, gone = stage.entity("sessions"), stage.entity("orders"), stage.entity("gone")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(sessions, requires_session=True)
        admin.create_queue(orders)
    alias = AmqpAnnotatedMessage(
        data_body=b"x",
        properties={"message_id": "alias"},
        application_properties={"x-ms-path": orders, "x-ms-timetolive": True},
    )
    stage.put(
        encoded(ServiceBusMessage(b"x", message_id="no path")),
        encoded(alias),  # type: ignore[arg-type]
        backlog_form(ServiceBusMessage(b"x", message_id="nowhere"), gone),
        backlog_form(ServiceBusMessage(b"x", message_id="fine 1"), orders),
        backlog_form(ServiceBusMessage(b"x", message_id="no session"), sessions),
        backlog_form(ServiceBusMessage(b"x", message_id="fine 2"), orders),
        backlog_form(ServiceBusMessage(b"x", message_id="session", session_id="s"), sessions),
    )
    report = stage.syphon().run_blocking(once=True)
    assert (report.restored, report.dead_lettered) == (3, 4)
    dead = {message_id: (reason, text or "") for message_id, reason, text in stage.dead(4)}
    assert {message_id: reason for message_id, (reason, _) in dead.items()} == {
        "no path": "DestinationMissing",
        "alias": "AliasUnreadable",
        "nowhere": "DestinationNotFound",
        "no session": "MessageRefused",
    }
    assert "x-ms-timetolive" in dead["alias"][1]
    assert gone in dead["nowhere"][1]
    assert ids(take_from(stage.pair.primary, orders, 2)) == ["fine 1", "fine 2"]
    assert ids(take_from(stage.pair.primary, sessions, 1, session_id="s")) == ["session"]


def test_a_disabled_destination_stops_only_its_own_messages(stage: Stage) -> None:
    names = [stage.entity(f"q{number}") for number in range(4)]
    with stage.pair.primary.admin() as admin:
        for name in names:
            admin.create_queue(name)
        disabled = admin.get_queue(names[0])
        disabled.status = "SendDisabled"
        admin.update_queue(disabled)
    stage.put(
        *(backlog_form(ServiceBusMessage(b"x", message_id=f"{n}"), names[0 if n < 150 else n % 4]) for n in range(400))
    )
    with stage.running() as syphon:
        for number in (1, 2, 3):
            expected = [f"{n}" for n in range(150, 400) if n % 4 == number]
            assert ids(take_from(stage.pair.primary, names[number], len(expected))) == expected
        assert [one.destination for one in syphon.state().queues[0].paused] == [names[0]]
        with stage.pair.primary.admin() as admin:
            disabled.status = "Active"
            admin.update_queue(disabled)
        expected = [f"{n}" for n in range(400) if n < 150 or n % 4 == 0]
        assert ids(take_from(stage.pair.primary, names[0], len(expected), wait=60)) == expected


@pytest.mark.parametrize(
    "trouble",
    [
        {"mode": "error", "condition": "amqp:resource-limit-exceeded"},
        {"mode": "error", "condition": "com.microsoft:server-busy"},
        {"mode": "drop"},
    ],
    ids=["full", "throttled", "dropping connections"],
)
def test_a_destination_in_trouble_gets_its_messages_later_and_the_others_at_once(
    stage: Stage, trouble: dict[str, Any]
) -> None:
    ill, well = stage.entity("ill"), stage.entity("well")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(ill, requires_duplicate_detection=True)
        admin.create_queue(well)
    stage.pair.primary.fault(entity=ill, **trouble)
    stage.put(*(backlog_form(ServiceBusMessage(b"x", message_id=f"{n}"), (ill, well)[n % 2]) for n in range(60)))
    with stage.running() as syphon:
        assert ids(take_from(stage.pair.primary, well, 30, wait=60)) == [f"{n}" for n in range(1, 60, 2)]
        wait_until(lambda: [one.destination for one in syphon.state().queues[0].paused] == [ill])
        stage.pair.primary.clear_faults(ill)
        assert ids(take_from(stage.pair.primary, ill, 30, wait=60)) == [f"{n}" for n in range(0, 60, 2)]
        wait_until(lambda: stage.waiting() == 0)
        assert syphon.state().dead_lettered == 0


def test_a_lock_lasts_as_long_as_the_send(stage: Stage) -> None:
    orders = stage.entity("orders")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(orders)
    with stage.pair.secondary.admin() as admin:
        short = admin.get_queue(stage.backlog)
        short.lock_duration = timedelta(seconds=5)
        admin.update_queue(short)
    with stage.running() as syphon:
        stage.put(backlog_form(ServiceBusMessage(b"x", message_id="opens the way"), orders))
        wait_until(lambda: syphon.state().restored == 1)
        stage.pair.primary.fault("slow", entity=orders, delay=6)
        stage.put(*(backlog_form(ServiceBusMessage(b"x", message_id=f"{n}"), orders) for n in range(3)))
        wait_until(lambda: stage.waiting() == 0, what="the slow destination")
        counts = syphon.state().queues[0].counts
    stage.pair.primary.clear_faults(orders)
    assert counts.locks_lost == 0
    assert counts.renewed >= 3
    found = ids(take_from(stage.pair.primary, orders, 10, wait=2))
    assert found == ["opens the way", "0", "1", "2"], "nothing came twice"


def test_a_waiting_syphon_takes_a_new_message_at_once(stage: Stage) -> None:
    orders = stage.entity("orders")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(orders)
    with stage.running() as syphon:
        wait_until(lambda: [one.state for one in syphon.state().queues] == ["waiting"])
        for number in range(3):
            stage.put(backlog_form(ServiceBusMessage(b"x", message_id=f"{number}"), orders))
            assert ids(take_from(stage.pair.primary, orders, 1)) == [f"{number}"]
        assert syphon.state().queues[0].counts.empty_receives == 0


def test_paused_it_takes_nothing_and_resumed_it_goes_on(stage: Stage) -> None:
    orders = stage.entity("orders")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(orders)
    with stage.running() as syphon:
        wait_until(lambda: [one.state for one in syphon.state().queues] == ["waiting"])
        syphon.pause()
        wait_until(lambda: [one.state for one in syphon.state().queues] == ["paused"])
        pump = next(iter(syphon._pumps.values()))
        wait_until(lambda: pump._is_quiet and not pump._tasks)
        stage.put(*(backlog_form(ServiceBusMessage(b"x", message_id=f"{n}"), orders) for n in range(50)))
        assert stage.waiting() == 50
        assert syphon.state().restored == 0
        syphon.resume()
        assert ids(take_from(stage.pair.primary, orders, 50)) == [f"{n}" for n in range(50)]


def test_scheduled_times_that_have_passed_are_delivered_at_once_others_at_their_time(stage: Stage) -> None:
    orders = stage.entity("orders")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(orders)
        now = datetime.now(UTC)
        past, future = now - timedelta(minutes=1), now + timedelta(hours=1)
        stage.put(
            backlog_form(ServiceBusMessage(b"x", message_id="past", scheduled_enqueue_time_utc=past), orders),
            backlog_form(ServiceBusMessage(b"x", message_id="future", scheduled_enqueue_time_utc=future), orders),
        )
        stage.syphon().run_blocking(once=True)
        assert ids(take_from(stage.pair.primary, orders, 1)) == ["past"]
        assert admin.get_queue_runtime_properties(orders).scheduled_message_count == 1


def test_parts_are_joined(stage: Stage) -> None:
    orders = stage.entity("orders")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(orders)
    body = bytes(range(256)) * 1000
    form = backlog_form(ServiceBusMessage(body, message_id="large"), orders)
    parts = envelope.split(form, orders, "one", 150_000)
    stage.put(backlog_form(ServiceBusMessage(b"x", message_id="before"), orders), *parts)
    stage.put(backlog_form(ServiceBusMessage(b"x", message_id="after"), orders))
    assert stage.syphon().run_blocking(once=True).restored == 3
    found = take_from(stage.pair.primary, orders, 3)
    assert ids(found) == ["before", "large", "after"]
    assert b"".join(found[1].body) == body
    assert stage.waiting() == 0


def test_parts_of_a_message_leave_the_queue_together_or_not_at_all(stage: Stage) -> None:
    stage.put(*(backlog_form(ServiceBusMessage(b"x", message_id=f"{n}"), "anywhere") for n in range(3)))

    async def main() -> tuple[int, int, int]:
        transport = AmqpTransport(stage.primary, stage.secondary)
        receiver = await transport.open_receiver(stage.backlog)
        taken: list[Delivery] = []
        while len(taken) < 3:
            taken += await receiver.receive(3 - len(taken), 10.0)
        assert await receiver.complete(taken[:1]) == []
        refused = await receiver.complete_together(taken[:2])
        left = await receiver.peek(1, 10)
        assert await receiver.complete_together(taken[1:]) == []
        at_last = await receiver.peek(1, 10)
        await receiver.close()
        await transport.close()
        return len(refused), len(left), len(at_last)

    assert asyncio.run(main()) == (2, 2, 0), "the lock of the first was gone, so the second stayed"


def test_an_extra_queue_that_cannot_be_emptied_holds_up_nobody(stage: Stage) -> None:
    ill, well = stage.entity("ill"), stage.entity("well")
    extra = f"{stage.name}/x-servicebus-transfer/7"
    with stage.pair.primary.admin() as admin:
        admin.create_queue(ill)
        admin.create_queue(well)
    with stage.pair.secondary.admin() as admin:
        admin.create_queue(extra)
    stage.pair.primary.fault("drop", entity=ill)
    put(stage.pair.secondary, extra, [backlog_form(ServiceBusMessage(b"x", message_id="stuck"), ill)])
    stage.put(backlog_form(ServiceBusMessage(b"x", message_id="regular"), well))
    with stage.running(include_extra=True):
        assert ids(take_from(stage.pair.primary, well, 1, wait=60)) == ["regular"]
        stage.pair.primary.clear_faults(ill)
        assert ids(take_from(stage.pair.primary, ill, 1, wait=60)) == ["stuck"]


def test_extra_queues_are_emptied_first_when_asked(stage: Stage) -> None:
    orders = stage.entity("orders")
    with stage.pair.primary.admin() as admin:
        admin.create_queue(orders)
    with stage.pair.secondary.admin() as admin:
        admin.create_queue(f"{stage.name}/x-servicebus-transfer/7")
    stage.put(backlog_form(ServiceBusMessage(b"x", message_id="regular"), orders))
    extra = backlog_form(ServiceBusMessage(b"x", message_id="extra"), orders)
    put(stage.pair.secondary, f"{stage.name}/x-servicebus-transfer/7", [extra])
    assert stage.syphon().run_blocking(once=True).restored == 1
    put(stage.pair.secondary, stage.backlog, [backlog_form(ServiceBusMessage(b"x", message_id="last"), orders)])
    assert stage.syphon(include_extra=True).run_blocking(once=True).restored == 2
    assert ids(take_from(stage.pair.primary, orders, 3)) == ["regular", "extra", "last"]


def test_a_missing_backlog_queue_is_nothing_to_do(stage: Stage) -> None:
    with stage.pair.secondary.admin() as admin:
        admin.delete_queue(stage.backlog)
    report = stage.syphon().run_blocking(once=True)
    assert report.restored == 0
    assert report.queues[0].state == "missing"


def test_a_proxy_is_asked_with_its_password(stage: Stage) -> None:
    orders, asked = stage.entity("orders"), []
    with stage.pair.primary.admin() as admin:
        admin.create_queue(orders)
    stage.put(backlog_form(ServiceBusMessage(b"x", message_id="far"), orders))

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head)
        address, _, path = head.split()[1].partition("://")[2].partition("/")
        theirs, ours = await asyncio.open_connection(*address.rsplit(":", 1))
        ours.write(head.replace(head.split()[1], f"/{path}", 1).encode())
        await asyncio.gather(copy(reader, ours), copy(theirs, writer))

    async def main() -> int:
        async with await asyncio.start_server(forward, "127.0.0.1", 0) as proxy:
            settings = {"proxy_hostname": "127.0.0.1", "proxy_port": proxy.sockets[0].getsockname()[1]}
            way = {**over_web_sockets(stage.pair.primary)._route, "http_proxy": {**settings, "username": "me"}}
            primary = replace(over_web_sockets(stage.pair.primary), _route=way)
            syphon = Syphon(primary, stage.secondary, primary_name=stage.name, queues=[0])
            return (await syphon.run(once=True)).restored

    assert asyncio.run(main()) == 1
    assert ids(take_from(stage.pair.primary, orders, 1)) == ["far"]
    assert all("Proxy-Authorization: Basic" in head for head in asked)
    assert asked
