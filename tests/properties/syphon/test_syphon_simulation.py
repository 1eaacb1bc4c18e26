"""Pumps against a world that fails in every way it can, from a seed: the promises hold whatever happens.

One seed plays one story in virtual time: several pumps on one backlog queue, senders that keep sending, destinations
that go down, hang, refuse and come back, a primary that vanishes, receivers that are cut, pumps that die with messages
in their hands. At the end everything is mended, and the accounts must agree.
"""

from __future__ import annotations

import asyncio
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.memory_transport import MemoryReceiver, MemoryTransport
from tests.support.virtual_time import run_in_virtual_time

from pairbus import envelope
from pairbus.amqp.message import read_facts, with_message_id
from pairbus.syphon.outcomes import Logbook
from pairbus.syphon.planner import PumpRules
from pairbus.syphon.pump import Pump, PumpOptions
from pairbus.syphon.transport import ReceiverLostError, SendError, SendFailure

QUEUE = "contoso/x-servicebus-transfer/0"
DESTINATIONS = ("orders", "invoices", "news")


class FailingWorld(MemoryTransport):
    """A transport whose troubles a story can switch on and off. `uncertain` counts sends nobody knows the end of."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(lock_seconds=30.0, send_seconds=0.02)
        self.draw = draw
        self.receivers: list[MemoryReceiver] = []
        self.down: dict[str, Exception | float] = {}
        self.poison: set[str] = set()
        self.behave = self._behave

    def _behave(self, destination: str, raws: object) -> Exception | float | None:
        assert isinstance(raws, tuple)
        if any(read_facts(raw).message_key in self.poison for raw in raws):
            return SendError(SendFailure.REFUSED, "amqp:not-allowed", "poison")
        return self.down.get(destination)

    async def open_receiver(self, queue: str) -> MemoryReceiver:
        receiver = await super().open_receiver(queue)
        self.receivers.append(receiver)
        return receiver

    def cut_one(self) -> None:
        if self.receivers:
            receiver = self.draw.choice(self.receivers)
            receiver.cut = True
            self.receivers.remove(receiver)
            self.queue(QUEUE).changed.set()


def pump_of(world: FailingWorld, draw: random.Random) -> Pump:
    options = PumpOptions(
        PumpRules(in_hand_messages=draw.choice([5, 50, 400]), batch_messages=draw.choice([1, 7, 100])),
        send_timeout=5.0,
        now_ms=lambda: 1_700_000_000_000,
        draw=draw.random,
    )
    return Pump(QUEUE, world, options, Logbook(QUEUE, "contoso", "standby"))


def form(name: str, destination: str) -> bytes:
    return envelope.to_backlog(with_message_id(b"\x00\x53\x75\xa0\x01x", name), destination)


async def story(seed: int) -> None:
    draw = random.Random(seed)
    world = FailingWorld(draw)
    queue = world.queue(QUEUE)
    sent: dict[str, list[str]] = {destination: [] for destination in DESTINATIONS}
    running = {
        pump: asyncio.ensure_future(pump.run()) for pump in (pump_of(world, draw) for _ in range(draw.randint(1, 3)))
    }
    number = 0
    for _ in range(draw.randint(5, 25)):
        for _ in range(draw.randint(0, 60)):
            destination = draw.choice(DESTINATIONS)
            name = f"{number}"
            number += 1
            if draw.random() < 0.02:
                world.poison.add(name)
            sent[destination].append(name)
            raw = form(name, destination)
            parts = envelope.split(raw, destination, f"of-{name}", 160) if draw.random() < 0.05 else [raw]
            queue.put(*parts)
        match draw.randint(0, 8):
            case 0:
                world.down[draw.choice(DESTINATIONS)] = SendError(
                    SendFailure.UNAVAILABLE, "com.microsoft:entity-disabled"
                )
            case 1:
                world.down[draw.choice(DESTINATIONS)] = draw.choice([1.0, 3.0, 1000.0])
            case 2:
                world.answers = False
            case 3:
                world.answers = True
                world.down.clear()
            case 4:
                world.cut_one()
            case 5:
                # Killed: what it holds stays locked until the locks run out, what it was sending may have arrived.
                pump = draw.choice(list(running))
                running.pop(pump).cancel()
                fresh = pump_of(world, draw)
                running[fresh] = asyncio.ensure_future(fresh.run())
            case 6:
                world.down[draw.choice(DESTINATIONS)] = draw.choice([KeyError("a bug"), RuntimeError("no token")])
            case 7:
                pump = draw.choice(list(running))
                pump.pause()
                await asyncio.sleep(draw.random())
                pump.resume()
            case _:
                pass
        await asyncio.sleep(draw.choice([0.0, 0.01, 0.1, 1.0, 10.0, 100.0]))
    world.answers = True
    world.down.clear()
    deadline = asyncio.get_running_loop().time() + 3600
    while queue.messages:
        assert asyncio.get_running_loop().time() < deadline, f"{len(queue.messages)} messages never came home"
        await asyncio.sleep(1)
    for pump, task in running.items():
        pump.stop()
        await task
        assert (pump.planner.in_hand, pump.planner.in_hand_bytes, pump.planner.held) == (0, 0, 0)

    for destination, names in sent.items():
        home = [name_of(raw) for raw in world.taken.get(destination, [])]
        wanted = [name for name in names if name not in world.poison]
        assert set(home) == set(wanted), "nothing is lost and nothing poisonous is delivered"
        assert list(dict.fromkeys(home)) == wanted, "the order of a destination is kept"
    assert all(reason == "MessageRefused" for _, reason, _ in queue.dead)


def name_of(raw: bytes) -> str:
    return read_facts(raw).message_key or ""


@settings(max_examples=40, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_the_accounts_agree_after_any_story(seed: int) -> None:
    run_in_virtual_time(story(seed))


def test_a_cut_receiver_is_opened_again() -> None:
    async def main() -> None:
        world = FailingWorld(random.Random(1))
        pump = pump_of(world, random.Random(2))
        running = asyncio.ensure_future(pump.run())
        for number in range(5):
            world.queue(QUEUE).put(form(f"{number}", "orders"))
            await asyncio.sleep(100)
            world.cut_one()
        assert [name_of(raw) for raw in world.taken["orders"]] == [f"{number}" for number in range(5)]
        assert pump.logbook.counts.failures >= 4
        pump.stop()
        await running

    run_in_virtual_time(main())


def test_a_receiver_that_cannot_be_opened_is_tried_less_and_less_often() -> None:
    async def main() -> None:
        world = FailingWorld(random.Random(1))
        world.refusal = ReceiverLostError("nobody answers")
        pump = pump_of(world, random.Random(2))
        running = asyncio.ensure_future(pump.run())
        await asyncio.sleep(3600)
        assert 60 <= world.calls["open"] <= 100
        pump.stop()
        await running

    run_in_virtual_time(main())
