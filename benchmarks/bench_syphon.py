"""How fast one process carries a backlog home, against what a plain loop with the SDK does in the same run.

    (a) the plain loop: receive 100, send one by one, complete one by one
    (b) the SDK's ceiling: receive and complete, nothing sent
    the syphon

Both namespaces are child processes. Rates are messages a second of 1 KB; what counts are the ratios.

    bench_syphon.py [--messages N] [--profile] [--own-time | --dead-destination | --dead-primary | --profile-servers]

- `--own-time`: the syphon's own processor time per message, over a transport in memory that costs next to nothing.
- `--dead-destination`: what one dead destination among ten costs the others.
- `--dead-primary`: the operations of a syphon that faces a dead primary, per minute of simulated time, against those of
  an idle one.
- `--profile` shows where the pump's time goes, `--profile-servers` where the two namespaces' time goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import multiprocessing
import pstats
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from azure.servicebus import ServiceBusMessage
from tests.support.backlogs import encoded, make_backlog, put
from tests.support.memory_transport import MemoryTransport
from tests.support.virtual_time import run_in_virtual_time

from pairbus import envelope
from pairbus.amqp.message import for_delivery, join_batch
from pairbus.amqp.types import Timestamp
from pairbus.syphon import Carried, Namespace, Syphon
from pairbus.syphon.deliveries import Delivery, Peeked
from pairbus.syphon.outcomes import Logbook
from pairbus.syphon.planner import PumpRules
from pairbus.syphon.pump import Pump, PumpOptions
from pairbus.testing import EmbeddedPair, embedded_pair

BODY = b"x" * 1024


def fill(pair: EmbeddedPair, name: str, count: int, destinations: list[str], queues: int) -> None:
    backlog = make_backlog(pair.secondary, name, queues)
    raw = encoded(ServiceBusMessage(BODY, message_id="@" * 36))

    def forms(queue: int) -> Iterable[bytes]:
        for number in range(count // queues):
            message = raw.replace(b"@" * 36, f"{name}-{queue}-{number}".ljust(36, "-").encode())
            yield envelope.to_backlog(message, destinations[number % len(destinations)])

    for number, queue in enumerate(backlog):
        put(pair.secondary, queue, forms(number))


def make_destinations(pair: EmbeddedPair, name: str, count: int) -> list[str]:
    names = [f"{name}-{number}" for number in range(count)]
    with pair.primary.admin() as admin:
        for one in names:
            admin.create_queue(one)
    return names


def report(what: str, count: int, seconds: float, base: dict[str, float]) -> float:
    rate = count / seconds
    ratios = "  ".join(f"{rate / other:5.2f} x ({key})" for key, other in base.items())
    print(f"{what:<44} {rate:8.0f} messages/s  {ratios}", flush=True)
    return rate


async def plain_loop(pair: EmbeddedPair, name: str, count: int, *, send: bool) -> float:
    """The SDK, as one would write it."""
    primary = Namespace.parse(pair.primary.connection_string).client()
    secondary = Namespace.parse(pair.secondary.connection_string).client()
    async with primary, secondary:
        receiver = secondary.get_queue_receiver(f"{name}/x-servicebus-transfer/0", prefetch_count=100)
        sender = primary.get_queue_sender(f"{name}-0")
        async with receiver, sender:
            await sender.send_messages(ServiceBusMessage(b"warm"))
            done, began = 0, time.perf_counter()
            while done < count:
                for message in await receiver.receive_messages(max_message_count=100, max_wait_time=10):
                    if send:
                        await sender.send_messages(
                            ServiceBusMessage(b"".join(message.body), message_id=message.message_id)
                        )
                    await receiver.complete_message(message)
                    done += 1
            return time.perf_counter() - began


def syphon(
    pair: EmbeddedPair,
    name: str,
    queues: int,
    profile: cProfile.Profile | None = None,
    ledger: str | None = None,
) -> float:
    """The seconds from start to the last message home; waiting for more at the end is not counted."""
    last = 0.0

    def note(_: object) -> None:
        nonlocal last
        last = time.perf_counter()

    carrier = Syphon(
        pair.primary.connection_string,
        pair.secondary.connection_string,
        primary_name=name,
        queues=range(queues),
        on_carried=note,
        ledger=ledger,
    )
    began = time.perf_counter()
    if profile is not None:
        profile.enable()
    carrier.run_blocking(once=True)
    if profile is not None:
        profile.disable()
    return last - began


def until_nine_are_home(pair: EmbeddedPair, name: str, dead: str, count: int) -> float:
    """The seconds until everything that is not for the tenth destination is home."""
    home, done = 0, 0.0

    def note(carried: Sequence[Carried]) -> None:
        nonlocal home, done
        home += sum(one.destination != dead for one in carried)
        if home == count:
            done = time.perf_counter()
            carrier.stop()

    carrier = Syphon(
        pair.primary.connection_string,
        pair.secondary.connection_string,
        primary_name=name,
        queues=[0],
        on_carried=note,
    )
    began = time.perf_counter()
    carrier.run_blocking()
    return done - began


def dead_destination(pair: EmbeddedPair, count: int) -> None:
    """Nine destinations with and without a dead tenth among them."""
    rates = {}
    for case in ("alive", "dead"):
        name = f"ten-{case}"
        names = make_destinations(pair, name, 10)
        if case == "dead":
            with pair.primary.admin() as admin:
                disabled = admin.get_queue(names[0])
                disabled.status = "SendDisabled"
                admin.update_queue(disabled)
        fill(pair, name, count, names, 1)
        healthy = count * 9 // 10
        seconds = until_nine_are_home(pair, name, names[0], healthy)
        rates[case] = report(f"nine destinations, the tenth {case}", healthy, seconds, {})
    print(f"  a dead destination leaves the others {rates['dead'] / rates['alive']:.1%} of their rate")


def _carry(primary: str, secondary: str, name: str, queues: int) -> None:
    Syphon(primary, secondary, primary_name=name, queues=range(queues)).run_blocking(once=True)


def profile_servers(count: int) -> None:
    """Both namespaces in this process, each loop with a profile of its own, while a child carries a backlog home.

    The two loops share one interpreter: what lets go of its lock (sockets, Proton) also shows the wait to get it back.
    """
    with embedded_pair() as pair:
        names = make_destinations(pair, "profiled", 10)
        fill(pair, "profiled", count, names, 4)
        profiles = {}
        for end in (pair.secondary, pair.primary):
            host: Any = end._host
            profiles[end.name] = profile = cProfile.Profile()
            host._loop.call_soon_threadsafe(profile.enable)
        strings = (pair.primary.connection_string, pair.secondary.connection_string)
        child = multiprocessing.get_context("spawn").Process(target=_carry, args=(*strings, "profiled", 4))
        child.start()
        child.join()
        for end in (pair.secondary, pair.primary):
            host = end._host
            host._loop.call_soon_threadsafe(profiles[end.name].disable)
    for name, profile in profiles.items():
        print(f"{name}: {count} messages")
        pstats.Stats(profile).sort_stats("tottime").print_stats(22)


class _InstantTransport:
    """Delivers stamped messages as fast as they are received, and takes everything at once."""

    def __init__(self, raws: Sequence[bytes]) -> None:
        self._raws = raws
        self._next = 0
        self.taken = 0

    async def open_receiver(self, queue: str) -> Any:
        return self

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        raws = self._raws[self._next : self._next + limit]
        self._next += len(raws)
        if not raws:
            await asyncio.sleep(min(wait, 0.01))
        renew_at = asyncio.get_running_loop().time() + 30.0
        return [Delivery(envelope.inspect(raw), None, renew_at) for raw in raws]

    async def complete(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return []

    async def peek(self, from_number: int, count: int) -> list[Peeked]:
        return []

    async def quiet(self) -> list[Delivery]:
        return []

    async def send(self, destination: str, raws: Sequence[bytes]) -> None:
        join_batch(raws)
        self.taken += len(raws)
        await asyncio.sleep(0)

    async def reachable(self) -> bool:
        return True

    async def close(self) -> None:
        return None


def _stamped(count: int) -> list[bytes]:
    """Messages for ten destinations, as a queue delivers them."""
    raw = encoded(ServiceBusMessage(BODY, message_id="@" * 36))
    stamps = {
        "x-opt-enqueued-time": Timestamp(1_700_000_000_000),
        "x-opt-locked-until": Timestamp(1_800_000_000_000),
        "x-opt-message-state": 0,
    }
    return [
        for_delivery(
            envelope.to_backlog(raw.replace(b"@" * 36, f"{n}".ljust(36, "-").encode()), f"q{n % 10}"),
            delivery_count=0,
            annotations={"x-opt-sequence-number": n, **stamps},
            lock_token=bytes(16),
        )
        for n in range(1, count + 1)
    ]


def own_time(count: int, profile: cProfile.Profile | None) -> None:
    raws, path = _stamped(count), "contoso/x-servicebus-transfer/0"
    seconds = []
    for _ in range(3):
        transport: Any = _InstantTransport(raws)
        pump = Pump(path, transport, PumpOptions(PumpRules()), Logbook(path, "contoso", "standby"))
        began = time.process_time()
        if profile is not None:
            profile.enable()
        asyncio.run(pump.run(once=True))
        if profile is not None:
            profile.disable()
        seconds.append(time.process_time() - began)
        assert transport.taken == count
    print(f"own processor time: {min(seconds) / count * 1e6:.1f} µs per message (best of {len(seconds)} runs)")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


async def _operations(queues: int, minutes: Sequence[int], *, dead: bool) -> list[Counter[str]]:
    """What a syphon asks of the namespaces up to each of these minutes."""
    transport = MemoryTransport()
    transport.answers = not dead
    raw = encoded(ServiceBusMessage(BODY, message_id="waiting"))
    pumps = []
    for number in range(queues):
        path = f"contoso/x-servicebus-transfer/{number}"
        if dead:
            transport.queue(path).put(*(envelope.to_backlog(raw, f"q{n % 20}") for n in range(1000)))
        pumps.append(Pump(path, transport, PumpOptions(PumpRules()), Logbook(path, "contoso", "standby")))
    running = [asyncio.ensure_future(pump.run()) for pump in pumps]
    seen = []
    for minute in minutes:
        await asyncio.sleep(minute * 60 - asyncio.get_running_loop().time())
        seen.append(transport.calls.copy())
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return seen


def dead_primary(queues: int = 10) -> None:
    minutes = [1, 2, 3, 10, 60, 120]
    for what, dead in (("idle", False), ("dead primary, 1,000 messages in each queue", True)):
        print(f"{what}: {queues} queues, a minute on average (probes are connections, which nobody bills)")
        before: Counter[str] = Counter()
        begin = 0
        for minute, calls in zip(minutes, run_in_virtual_time(_operations(queues, minutes, dead=dead)), strict=True):
            made = calls - before
            each = {kind: made[kind] / (minute - begin) for kind in ("receive", "send", "release", "renew", "probe")}
            print(f"  minute {begin + 1:>3} to {minute:>3}: " + "  ".join(f"{k} {v:.2f}" for k, v in each.items()))
            before, begin = calls, minute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--profile", action="store_true", help="show where the pump's time goes")
    parser.add_argument("--own-time", action="store_true", help="measure only the syphon's own processor time")
    parser.add_argument("--dead-destination", action="store_true")
    parser.add_argument("--dead-primary", action="store_true")
    parser.add_argument("--profile-servers", action="store_true", help="show where the namespaces' time goes")
    options = parser.parse_args()
    if options.own_time:
        own_time(options.messages, cProfile.Profile() if options.profile else None)
        return
    if options.dead_primary:
        dead_primary()
        return
    if options.profile_servers:
        profile_servers(options.messages)
        return
    few = max(500, options.messages // 10)
    with embedded_pair(process=True) as pair:
        if options.dead_destination:
            dead_destination(pair, options.messages)
            return
        base: dict[str, float] = {}
        for key, text, send in (
            ("a", "(a) plain SDK loop: send and complete singly", True),
            ("b", "(b) SDK: receive and complete only", False),
        ):
            name = f"loop-{key}"
            make_destinations(pair, name, 1)
            fill(pair, name, few, [f"{name}-0"], 1)
            base[key] = report(text, few, asyncio.run(plain_loop(pair, name, few, send=send)), {})
        for queues, destinations in ((1, 1), (4, 1), (4, 10)):
            name = f"amqp-{queues}-{destinations}"
            names = make_destinations(pair, name, destinations)
            fill(pair, name, options.messages, names, queues)
            profile = cProfile.Profile() if options.profile else None
            seconds = syphon(pair, name, queues, profile)
            report(f"syphon, {queues} queues, {destinations} destinations", options.messages, seconds, base)
            if profile is not None:
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        names = make_destinations(pair, "recorded", 10)
        fill(pair, "recorded", options.messages, names, 4)
        with tempfile.TemporaryDirectory() as ledger:
            seconds = syphon(pair, "recorded", 4, ledger=ledger)
        report("the same with a ledger", options.messages, seconds, base)
        print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
