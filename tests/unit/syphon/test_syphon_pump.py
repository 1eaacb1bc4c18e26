"""A pump against two namespaces in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.support.memory_transport import MemoryReceiver, MemoryTransport
from tests.support.virtual_time import run_in_virtual_time

from pairbus import envelope
from pairbus.amqp.message import read_facts, with_message_id
from pairbus.syphon.deliveries import Delivery
from pairbus.syphon.namespaces import CredentialRefusedError
from pairbus.syphon.outcomes import Carried, Logbook
from pairbus.syphon.planner import PumpRules, RateLimit
from pairbus.syphon.pump import Pump, PumpOptions
from pairbus.syphon.service import Syphon
from pairbus.syphon.transport import ReceiverLostError, SendError, SendFailure

QUEUE = "contoso/x-servicebus-transfer/0"
UNAVAILABLE = SendError(SendFailure.UNAVAILABLE, "com.microsoft:entity-disabled", "switched off")
START_MS = 1_700_000_000_000


def message(name: str, body: bytes = b"body") -> bytes:
    return with_message_id(b"\x00\x53\x75" + b"\xb0" + len(body).to_bytes(4) + body, name)


def backlog(name: str, destination: str = "orders", body: bytes = b"body") -> bytes:
    return envelope.to_backlog(message(name, body), destination)


def names(transport: MemoryTransport, destination: str = "orders") -> list[str | None]:
    return [read_facts(raw).message_key for raw in transport.taken.get(destination, [])]


def pump_for(
    transport: MemoryTransport,
    *,
    rules: PumpRules | None = None,
    carried: list[Carried] | None = None,
    message_limit: int | None = None,
    rate: RateLimit | None = None,
) -> Pump:
    logbook = Logbook(QUEUE, "contoso", "standby", on_carried=carried.extend if carried is not None else None)
    options = PumpOptions(
        rules or PumpRules(),
        now_ms=lambda: START_MS + round(asyncio.get_running_loop().time() * 1000),
        draw=lambda: 0.5,
    )
    return Pump(QUEUE, transport, options, logbook, rate, message_limit)


async def stopped(pump: Pump, running: asyncio.Task[None]) -> None:
    pump.stop()
    await running


def test_everything_comes_home_in_order_and_the_queue_is_empty() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        transport.queue(QUEUE).put(*(backlog(f"{n}", f"q{n % 3}") for n in range(1000)))
        carried: list[Carried] = []
        pump = pump_for(transport, carried=carried)
        await pump.run(once=True)
        for kind in range(3):
            assert names(transport, f"q{kind}") == [f"{n}" for n in range(kind, 1000, 3)]
        assert not transport.queue(QUEUE).messages
        assert [one.fate for one in carried] == ["restored"] * 1000
        assert all(one.settled for one in carried)
        assert pump.logbook.counts.completed == 1000
        assert transport.calls["send"] <= 3 * 11, "messages of one destination travel in batches"

    run_in_virtual_time(main())


def test_an_idle_pump_costs_four_receives_an_hour_and_takes_a_new_message_at_once() -> None:
    async def main() -> None:
        transport = MemoryTransport(send_seconds=0.0)
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(24 * 3600 - 1)
        assert transport.calls["receive"] == 24 * 4
        assert pump.logbook.counts.empty_receives == 24 * 4 - 1
        assert set(transport.calls) == {"receive", "open"}
        before = asyncio.get_running_loop().time()
        transport.queue(QUEUE).put(backlog("late"))
        while not transport.taken:
            await asyncio.sleep(0)
        assert asyncio.get_running_loop().time() == before
        await stopped(pump, running)

    run_in_virtual_time(main())


def test_a_dead_destination_stops_only_its_own_messages() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        dead = True
        transport.behave = lambda destination, raws: UNAVAILABLE if dead and destination == "dead" else None
        queue = transport.queue(QUEUE)
        queue.put(*(backlog(f"d{n}", "dead") for n in range(3000)))
        queue.put(*(backlog(f"a{n}", "alive") for n in range(500)))
        queue.put(*(backlog(f"d{n}", "dead") for n in range(3000, 3500)))
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(600)
        assert names(transport, "alive") == [f"a{n}" for n in range(500)]
        assert "dead" not in transport.taken
        assert len(queue.messages) == 3500
        assert pump.planner.in_hand <= 100, "what cannot go is not kept whole"
        tries = transport.calls["send"]
        await asyncio.sleep(3600)
        assert transport.calls["send"] - tries <= 45, "the pause has grown to two minutes"
        dead = False
        await asyncio.sleep(130)
        assert names(transport, "dead") == [f"d{n}" for n in range(3500)]
        assert not queue.messages
        await stopped(pump, running)

    run_in_virtual_time(main())


def test_a_dead_primary_costs_no_receives_and_everything_is_released() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        transport.answers = False
        queue = transport.queue(QUEUE)
        queue.put(*(backlog(f"{n}", f"q{n % 5}") for n in range(2000)))
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(60)
        assert all(one.owner is None for one in queue.messages.values())
        before = transport.calls.copy()
        await asyncio.sleep(3600)
        transport.calls.subtract(before)
        assert {kind: count for kind, count in transport.calls.items() if count} == {"probe": pytest.approx(68, abs=8)}
        transport.answers = True
        await asyncio.sleep(70)
        for kind in range(5):
            assert names(transport, f"q{kind}") == [f"{n}" for n in range(kind, 2000, 5)]
        await stopped(pump, running)

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (message("no path"), "DestinationMissing"),
        (with_message_id(b"\x00\x53\x70\x45garbage", "x") if False else b"\x00\x53\x99", "MessageUnreadable"),
    ],
)
def test_what_nobody_can_read_is_dead_lettered(raw: bytes, reason: str) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        transport.queue(QUEUE).put(raw, backlog("fine"))
        await pump_for(transport).run(once=True)
        assert [(number, why) for number, why, _ in transport.queue(QUEUE).dead] == [(1, reason)]
        assert names(transport) == ["fine"]

    run_in_virtual_time(main())


def test_a_missing_destination_dead_letters_all_that_is_for_it() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        missing = SendError(SendFailure.MISSING, "amqp:not-found")
        transport.behave = lambda destination, raws: missing if destination == "gone" else None
        transport.queue(QUEUE).put(*(backlog(f"{n}", "gone" if n % 2 else "orders") for n in range(1000)))
        await pump_for(transport).run(once=True)
        dead = transport.queue(QUEUE).dead
        assert {reason for _, reason, _ in dead} == {"DestinationNotFound"}
        assert all("'gone'" in text for _, _, text in dead)
        assert len(dead) == 500
        assert len(names(transport)) == 500

    run_in_virtual_time(main())


def test_the_refused_message_is_found_in_its_batch_and_the_others_keep_their_order() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        refused = SendError(SendFailure.REFUSED, "amqp:not-allowed", "the session id is missing")

        def behave(destination: str, raws: Sequence[bytes]) -> SendError | None:
            return refused if any(read_facts(raw).message_key in ("17", "18", "250") for raw in raws) else None

        transport.behave = behave
        transport.queue(QUEUE).put(*(backlog(f"{n}") for n in range(300)))
        await pump_for(transport).run(once=True)
        assert names(transport) == [f"{n}" for n in range(300) if n not in (17, 18, 250)]
        assert [number for number, _, _ in transport.queue(QUEUE).dead] == [18, 19, 251]
        assert "session id is missing" in transport.queue(QUEUE).dead[0][2]

    run_in_virtual_time(main())


def test_locks_are_renewed_as_long_as_a_send_takes() -> None:
    async def main() -> None:
        transport = MemoryTransport(lock_seconds=5.0)
        transport.behave = lambda destination, raws: 50.0
        transport.queue(QUEUE).put(*(backlog(f"{n}") for n in range(10)))
        pump = pump_for(transport)
        await pump.run(once=True)
        assert names(transport) == [f"{n}" for n in range(10)]
        assert pump.logbook.counts.locks_lost == 0
        assert pump.logbook.counts.renewed >= 10 * 15

    run_in_virtual_time(main())


def test_a_renewal_under_way_is_not_asked_for_again() -> None:
    class SlowToRenew(MemoryTransport):
        async def open_receiver(self, queue: str) -> MemoryReceiver:
            receiver = await super().open_receiver(queue)
            renew = receiver.renew

            async def slowly(deliveries: Sequence[Delivery]) -> tuple[float, list[Delivery]]:
                await asyncio.sleep(4)
                return await renew(deliveries)

            receiver.renew = slowly  # type: ignore[method-assign]
            return receiver

    async def main() -> None:
        transport = SlowToRenew(lock_seconds=60)
        transport.behave = lambda destination, raws: 50.0
        transport.queue(QUEUE).put(*(backlog(f"{n}") for n in range(10)))
        pump = pump_for(transport)
        await pump.run(once=True)
        assert transport.calls["renew"] == 10
        assert pump.logbook.counts.locks_lost == 0

    run_in_virtual_time(main())


def test_what_another_syphon_took_while_it_waited_here_is_not_sent_again() -> None:
    async def main() -> None:
        transport = MemoryTransport(lock_seconds=60)
        down = True
        transport.behave = lambda destination, raws: UNAVAILABLE if down else None
        queue = transport.queue(QUEUE)
        first, *_ = queue.put(*(backlog(name) for name in ("first", "second", "third")))
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(20)
        del queue.messages[first]  # our lock was lost, and the other one carried it home
        await asyncio.sleep(20)
        assert transport.calls["renew"] >= 3
        down = False
        await asyncio.sleep(200)
        assert names(transport) == ["second", "third"]
        assert not queue.messages
        await stopped(pump, running)

    run_in_virtual_time(main())


def test_a_hanging_destination_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        transport.behave = lambda destination, raws: 1000.0 if destination == "hangs" else None
        queue = transport.queue(QUEUE)
        queue.put(*(backlog(f"h{n}", "hangs") for n in range(1000)), *(backlog(f"{n}") for n in range(1000)))
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(30)
        assert names(transport) == [f"{n}" for n in range(1000)]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_in_virtual_time(main())


def test_two_pumps_on_one_queue_keep_the_order_and_deliver_nothing_twice() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        queue = transport.queue(QUEUE)
        queue.put(*(backlog(f"{n}", f"q{n % 4}") for n in range(2000)))
        pumps = [pump_for(transport) for _ in range(2)]
        await asyncio.gather(*(pump.run(once=True) for pump in pumps))
        for kind in range(4):
            assert names(transport, f"q{kind}") == [f"{n}" for n in range(kind, 2000, 4)]
        assert not queue.messages

    run_in_virtual_time(main())


def test_an_error_nobody_thought_of_pauses_its_destination_and_nothing_else() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        failing = True
        transport.behave = lambda destination, raws: KeyError("a bug") if failing and destination == "odd" else None
        queue = transport.queue(QUEUE)
        queue.put(*(backlog(f"{n}", "odd" if n % 2 else "orders") for n in range(100)))
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(10)
        assert names(transport) == [f"{n}" for n in range(0, 100, 2)]
        assert transport.calls["open"] == 1, "the backlog queue has nothing to do with it"
        failing = False
        await asyncio.sleep(130)
        assert names(transport, "odd") == [f"{n}" for n in range(1, 100, 2)]
        failing = True
        queue.put(backlog("last", "odd"))
        await asyncio.sleep(10)
        await stopped(pump, running)
        assert all(one.owner is None for one in queue.messages.values())

    run_in_virtual_time(main())


def test_a_pump_that_failed_and_runs_again_carries_everything() -> None:
    async def main() -> None:
        transport = MemoryTransport(lock_seconds=5.0)
        transport.behave = lambda destination, raws: 1000.0
        transport.queue(QUEUE).put(*(backlog(f"{n}") for n in range(10)))
        pump = pump_for(transport)
        failed = asyncio.ensure_future(pump.run())
        await asyncio.sleep(1)
        failed.cancel()
        await asyncio.gather(failed, return_exceptions=True)
        transport.behave = lambda destination, raws: None
        await pump.run(once=True)
        assert names(transport) == [f"{n}" for n in range(10)]

    run_in_virtual_time(main())


def test_parts_are_joined_whatever_stands_between_them_and_a_lonely_part_is_kept() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        whole = backlog("large", body=bytes(range(256)) * 40)
        parts = envelope.split(whole, "orders", "one", 4000)
        lonely = envelope.split(backlog("lost", body=bytes(9000)), "orders", "two", 4000)
        assert len(parts) == 3
        transport.queue(QUEUE).put(
            backlog("a"), parts[0], backlog("b"), lonely[0], parts[2], lonely[2], parts[1], parts[1], backlog("c")
        )
        await pump_for(transport).run(once=True)
        assert sorted(names(transport), key=str) == ["a", "b", "c", "large"]
        (joined,) = [raw for raw in transport.taken["orders"] if read_facts(raw).message_key == "large"]
        assert joined == message("large", bytes(range(256)) * 40)
        dead = transport.queue(QUEUE).dead
        assert [(number, reason) for number, reason, _ in dead] == [(4, "PartMissing"), (6, "PartMissing")]
        assert "Parts 2 of the 3 parts of this message are not in the backlog" in dead[0][2]
        assert not transport.queue(QUEUE).messages

    run_in_virtual_time(main())


def test_parts_far_from_each_other_are_joined_however_slowly_the_pump_gets_there() -> None:
    async def main() -> None:
        transport = MemoryTransport(send_seconds=0.0)
        parts = envelope.split(backlog("large", body=bytes(9000)), "orders", "one", 4000)
        between = (backlog(f"{n}", "invoices") for n in range(1500))
        transport.queue(QUEUE).put(parts[0], *between, *parts[1:])
        await pump_for(transport, rate=RateLimit(10)).run(once=True)
        assert names(transport) == ["large"]
        assert not transport.queue(QUEUE).dead

    run_in_virtual_time(main())


def test_parts_whose_completion_failed_are_gathered_again_and_the_message_is_not_sent_twice() -> None:
    async def main() -> None:
        transport = MemoryTransport(lock_seconds=30.0)
        queue = transport.queue(QUEUE)
        parts = envelope.split(backlog("large", body=bytes(9000)), "orders", "one", 4000)

        def behave(destination: str, raws: Sequence[bytes]) -> None:
            # While the primary takes it, one lock is lost to somebody else, who keeps it for longer than we do.
            queue.messages[2].owner = object()
            queue.messages[2].locked_until = 50.0

        transport.behave = behave
        queue.put(*parts, backlog("next", "invoices"))
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(0.1)
        assert names(transport) == ["large"]
        assert set(queue.messages) == {1, 2, 3}, "all of its parts are there, or none"
        await asyncio.sleep(45)
        assert set(queue.messages) == {1, 2, 3}, "also when some of them have come again"
        await asyncio.sleep(120)
        assert names(transport) == ["large"]
        assert not queue.messages
        assert not queue.dead
        await stopped(pump, running)

    run_in_virtual_time(main())


def test_messages_of_a_queue_that_was_made_again_are_not_taken_for_those_that_are_home() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        queue = transport.queue(QUEUE)
        queue.put(*(backlog(f"first {n}") for n in range(5)))
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(5)
        assert len(names(transport)) == 5
        queue.make_again()
        queue.put(*(backlog(f"second {n}") for n in range(8)))
        await asyncio.sleep(5)
        assert names(transport)[5:] == [f"second {n}" for n in range(8)]
        assert not queue.messages
        await stopped(pump, running)

    run_in_virtual_time(main())


def test_what_is_at_hand_when_its_queue_is_made_again_is_not_mixed_up_with_what_comes() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        down = True
        transport.behave = lambda destination, raws: UNAVAILABLE if down else None
        queue = transport.queue(QUEUE)
        queue.put(*(backlog(f"first {n}") for n in range(5)))
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(5)
        queue.make_again()
        queue.put(*(backlog(f"second {n}") for n in range(5)))
        await asyncio.sleep(5)
        down = False
        await asyncio.sleep(300)
        assert {name for name in names(transport) if str(name).startswith("second")} == {
            f"second {n}" for n in range(5)
        }
        assert not queue.messages
        await stopped(pump, running)

    run_in_virtual_time(main())


def test_a_rate_is_kept() -> None:
    async def main() -> None:
        transport = MemoryTransport(send_seconds=0.0)
        transport.queue(QUEUE).put(*(backlog(f"{n}", f"q{n % 3}") for n in range(500)))
        began = asyncio.get_running_loop().time()
        await pump_for(transport, rate=RateLimit(10)).run(once=True)
        assert asyncio.get_running_loop().time() - began >= (500 - 10) / 10
        assert sum(map(len, transport.taken.values())) == 500

    run_in_virtual_time(main())


def test_a_share_ends_the_pump_and_nothing_stays_locked() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        queue = transport.queue(QUEUE)
        queue.put(*(backlog(f"{n}") for n in range(5000)))
        pump = pump_for(transport, message_limit=1000)
        await pump.run()
        assert 1000 <= len(names(transport)) <= 1500
        assert len(queue.messages) == 5000 - len(names(transport))
        assert all(one.owner is None for one in queue.messages.values())

    run_in_virtual_time(main())


def test_pausing_finishes_what_is_at_hand_and_takes_nothing_more() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        queue = transport.queue(QUEUE)
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        queue.put(*(backlog(f"{n}") for n in range(1000)))
        await asyncio.sleep(0.02)
        pump.pause()
        await asyncio.sleep(10)
        assert pump.state == "paused"
        home = len(names(transport))
        assert 0 < home < 1000
        assert all(one.owner is None for one in queue.messages.values())
        await asyncio.sleep(1000)
        assert len(names(transport)) == home
        pump.resume()
        await asyncio.sleep(10)
        assert names(transport) == [f"{n}" for n in range(1000)]
        await stopped(pump, running)

    run_in_virtual_time(main())


def test_deduct_gives_the_time_left_and_dead_letters_what_is_over() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        stored = {"x-opt-enqueued-time": START_MS - 10_000}
        from pairbus.amqp.message import for_delivery
        from pairbus.amqp.types import Timestamp

        def aged(name: str, ttl_ms: int) -> bytes:
            timed = b"\x00\x53\x70\xc0\x08\x03\x40\x40\x70" + ttl_ms.to_bytes(4) + message(name)
            annotations = {key: Timestamp(value) for key, value in stored.items()}
            return for_delivery(envelope.to_backlog(timed, "orders"), delivery_count=0, annotations=annotations)

        transport.queue(QUEUE).put(aged("over", 9_000), aged("left", 30_000))
        await pump_for(transport, rules=PumpRules(policy="deduct")).run(once=True)
        assert names(transport) == ["left"]
        assert read_facts(transport.taken["orders"][0]).ttl_ms == pytest.approx(20_000, abs=100)
        assert [reason for _, reason, _ in transport.queue(QUEUE).dead] == ["TTLExpiredException"]

    run_in_virtual_time(main())


NO_TOKEN = SendError(SendFailure.UNAVAILABLE, "amqp:unauthorized-access", "the signature is wrong", token_refused=True)
NO_RIGHT = SendError(SendFailure.UNAVAILABLE, "amqp:unauthorized-access", "no right to send here")


@pytest.mark.parametrize(
    ("refusing", "error", "then"),
    [
        ("secondary", None, "secondary"),
        ("primary", NO_TOKEN, "primary"),
        ("primary", NO_RIGHT, None),
        ("another application's queue", NO_TOKEN, None),
        ("one of our queues", NO_TOKEN, None),
    ],
)
def test_a_namespace_that_keeps_refusing_our_credential_is_lost_for_good(
    refusing: str, error: SendError | None, then: str | None
) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        queue = transport.queue("contoso/x-servicebus-transfer/0")
        lost: list[tuple[str, str]] = []

        def behave(destination: str, raws: Sequence[bytes]) -> SendError | None:
            alone = {"another application's queue": "theirs", "one of our queues": "invoices"}.get(refusing)
            return error if alone in (None, destination) else None

        connection = "Endpoint=sb://contoso.example/;SharedAccessKeyName=n;SharedAccessKey=k"
        syphon = Syphon(
            connection,
            connection,
            queues=[0],
            transport=lambda *_: transport,
            on_namespace_lost=lambda *told: lost.append(told),
        )
        queue.put(backlog("a"), backlog("b", "invoices"))
        if refusing == "secondary":
            transport.refusal = ReceiverLostError("401", unauthorized=True)
        running = asyncio.ensure_future(syphon.run())
        await asyncio.sleep(0.5)
        assert not lost
        transport.behave = behave
        if refusing == "another application's queue":
            queue.put(backlog("c", "theirs"))
        else:
            queue.put(backlog("c"), backlog("d", "invoices"))
        for number in range(60):
            if refusing == "one of our queues":
                queue.put(backlog(f"{number}"))
            await asyncio.sleep(1)
        assert {name for name, _ in lost} == ({then} if then else set())
        syphon.stop()
        await running

    run_in_virtual_time(main())


CONNECTION = "Endpoint=sb://contoso.example/;SharedAccessKeyName=n;SharedAccessKey=k"


def syphon_over(transport: MemoryTransport, queues: Sequence[int] = (0,)) -> Syphon:
    return Syphon(CONNECTION, CONNECTION, queues=queues, transport=lambda *_: transport)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("refusing", ["primary", "secondary"])
def test_once_ends_when_a_namespace_keeps_refusing_our_credential(
    refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        for number in range(2):
            transport.queue(f"contoso/x-servicebus-transfer/{number}").put(backlog("a"), backlog("b", "invoices"))
        if refusing == "secondary":
            transport.refusal = ReceiverLostError("401", unauthorized=True)
        transport.behave = lambda destination, raws: NO_TOKEN
        with pytest.raises(CredentialRefusedError, match=f"The {refusing}, contoso.example, refuses our credential"):
            await syphon_over(transport, (0, 1)).run(once=True)
        now = asyncio.get_running_loop().time()
        for queue in transport.queues.values():
            assert len(queue.available(now)) == 2, "nothing is lost and nothing stays locked"

    run_in_virtual_time(main())
    (said,) = warnings_of(caplog)
    assert said.startswith(f"the {refusing} refuses our credential")


def test_once_goes_on_while_anything_else_can_go_home() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        transport.queue(QUEUE).put(backlog("a", "theirs"), *(backlog(f"{n}") for n in range(3)))
        opens_at = 30.0

        def behave(destination: str, raws: Sequence[bytes]) -> SendError | None:
            if destination == "theirs":
                return NO_TOKEN
            return UNAVAILABLE if asyncio.get_running_loop().time() < opens_at else None

        transport.behave = behave
        with pytest.raises(CredentialRefusedError, match="3 messages are home; the others wait in the backlog"):
            await syphon_over(transport).run(once=True)
        assert names(transport) == ["0", "1", "2"]

    run_in_virtual_time(main())


@pytest.mark.parametrize("refusing", ["primary", "secondary"])
def test_a_service_says_once_in_each_outage_that_a_namespace_refuses_it(
    refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def outage(transport: MemoryTransport) -> None:
        transport.behave = lambda destination, raws: NO_TOKEN if refusing == "primary" else None
        transport.queue(QUEUE).put(backlog("a"), backlog("b", "invoices"))
        await asyncio.sleep(300)
        transport.behave = lambda destination, raws: None
        transport.refusal = None
        await asyncio.sleep(300)

    async def main() -> None:
        transport = MemoryTransport()
        if refusing == "secondary":
            transport.refusal = ReceiverLostError("401", unauthorized=True)
        syphon = syphon_over(transport)
        running = asyncio.ensure_future(syphon.run())
        await outage(transport)
        assert len(warnings_of(caplog)) == 1
        assert syphon.state().restored == 2
        assert syphon.state().queues[0].last_error is None, "it is over"
        if refusing == "primary":
            await outage(transport)
            assert len(warnings_of(caplog)) == 2
        syphon.stop()
        await running

    run_in_virtual_time(main())
    assert all(said.startswith(f"the {refusing} refuses our credential") for said in warnings_of(caplog))


def test_a_missing_queue_is_said_once_and_tried_again_ever_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        transport.refusal = ReceiverLostError("could not be found", missing=True)
        pump = pump_for(transport)
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(3600)
        assert pump.state == "missing"
        assert transport.calls["open"] < 100
        (said,) = warnings_of(caplog)
        assert "does not exist" in said
        assert "--queues" in said
        transport.refusal = None
        transport.queue(QUEUE).put(backlog("a"))
        await asyncio.sleep(60)
        assert names(transport) == ["a"]
        assert pump.last_error is None
        await stopped(pump, running)

    run_in_virtual_time(main())


def test_once_waits_for_what_is_in_other_hands() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        queue = transport.queue(QUEUE)
        queue.put(backlog("a"))
        queue.messages[1].owner, queue.messages[1].locked_until = object(), 300.0
        await pump_for(transport).run(once=True)
        assert names(transport) == ["a"]
        assert not queue.messages

    run_in_virtual_time(main())


def test_a_queue_that_was_emptied_once_is_drained() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        transport.queue(QUEUE).put(backlog("a"))
        state = await syphon_over(transport).run(once=True)
        assert [one.state for one in state.queues] == ["drained"]

    run_in_virtual_time(main())
