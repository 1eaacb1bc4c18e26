"""What the syphon records, and when: a message that is gone from the backlog is never missing in the ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.memory_transport import MemoryReceiver, MemoryTransport
from tests.support.virtual_time import run_in_virtual_time

from pairbus import envelope
from pairbus.amqp.message import with_message_id
from pairbus.ledger import LedgerWriter, Role
from pairbus.syphon.deliveries import Delivery
from pairbus.syphon.outcomes import DurableRecords, Logbook
from pairbus.syphon.planner import PumpRules, Release
from pairbus.syphon.pump import Pump, PumpOptions
from pairbus.syphon.transport import SendError, SendFailure

QUEUE = "contoso/x-servicebus-transfer/0"


def backlog(name: str) -> bytes:
    return envelope.to_backlog(with_message_id(b"\x00\x53\x75\xa0\x04body", name), "orders")


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_bytes().splitlines()]


def restored(folder: Path) -> set[str]:
    return {
        one["message_id"]
        for one in written(folder)
        if one["operation"] == "restore" and one.get("outcome", "ok") == "ok"
    }


class _Witness(MemoryTransport):
    """Looks into the ledger's files at the moment a message is completed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(send_seconds=0.0)
        self.folder = folder
        self.unrecorded: list[str | None] = []

    async def open_receiver(self, queue: str) -> MemoryReceiver:
        receiver = await super().open_receiver(queue)
        complete = receiver.complete

        async def watched(deliveries: Sequence[Delivery]) -> list[Delivery]:
            known = restored(self.folder)
            self.unrecorded += [one.message.message_id for one in deliveries if one.message.message_id not in known]
            return await complete(deliveries)

        receiver.complete = watched  # type: ignore[method-assign]
        return receiver


def test_a_message_is_completed_only_when_its_record_is_on_disk(tmp_path: Path) -> None:
    async def main() -> int:
        transport = _Witness(tmp_path)
        transport.queue(QUEUE).put(*(backlog(f"{n}") for n in range(1000)))
        with LedgerWriter(tmp_path, role=Role.SYPHON) as ledger:
            durable = DurableRecords(ledger)
            logbook = Logbook(QUEUE, "contoso", "standby", ledger, durable=durable)
            await Pump(QUEUE, transport, PumpOptions(PumpRules()), logbook).run(once=True)
        assert transport.unrecorded == []
        assert len(transport.taken["orders"]) == 1000
        return durable.flushes

    flushes = asyncio.run(main())
    assert len(restored(tmp_path)) == 1000
    assert flushes <= 20, "one flush for each window, not for each message"


def test_all_who_wait_meanwhile_share_one_flush(tmp_path: Path) -> None:
    async def main() -> int:
        with LedgerWriter(tmp_path, role=Role.SYPHON) as ledger:
            durable = DurableRecords(ledger)
            await asyncio.gather(*(durable.wait() for _ in range(50)))
            return durable.flushes

    assert asyncio.run(main()) == 1


def test_a_disk_that_refuses_stops_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        transport = MemoryTransport(send_seconds=0.0)
        transport.queue(QUEUE).put(*(backlog(f"{n}") for n in range(500)))
        with LedgerWriter(tmp_path / "ledger", role=Role.SYPHON) as ledger:
            (tmp_path / "ledger").rmdir()
            durable = DurableRecords(ledger)
            logbook = Logbook(QUEUE, "contoso", "standby", ledger, durable=durable)
            await Pump(QUEUE, transport, PumpOptions(PumpRules()), logbook).run(once=True)
        assert len(transport.taken["orders"]) == 500
        assert not transport.queue(QUEUE).messages
        assert durable.flushes <= 2, "after the first refusal nobody waits again for a while"

    asyncio.run(main())


def test_looks_into_the_queue_are_recorded(tmp_path: Path) -> None:
    """They are billed: each message shown, and a look that shows nothing."""

    async def main() -> Pump:
        transport = MemoryTransport(send_seconds=0.0)
        transport.queue(QUEUE).put(backlog("held"))
        holder = await transport.open_receiver(QUEUE)
        held = await holder.receive(1, 0.0)
        with LedgerWriter(tmp_path, role=Role.SYPHON) as ledger:
            pump = Pump(QUEUE, transport, PumpOptions(PumpRules()), Logbook(QUEUE, "contoso", "standby", ledger))
            run = asyncio.ensure_future(pump.run(once=True))
            while not transport.calls["peek"]:
                await asyncio.sleep(0.01)
            await holder.release(held)
            await run
            return pump

    pump = asyncio.run(main())
    peeks = [one for one in written(tmp_path) if one["operation"] == "peek"]
    first, last = peeks[0], peeks[-1]
    assert len(peeks) == pump.logbook.counts.peeks
    assert (first["message_id"], first["destination"], first["bytes"]) == ("held", "orders", len(backlog("held")))
    assert (first["namespace"], first["entity"], first["role"]) == ("standby", QUEUE, "syphon")
    assert last["outcome"] == "empty"
    assert "message_id" not in last


def test_what_is_released_is_recorded_unless_its_lock_was_gone(tmp_path: Path) -> None:
    async def main() -> None:
        transport = MemoryTransport(send_seconds=0.0)
        transport.queue(QUEUE).put(backlog("a"), backlog("b"))
        receiver = await transport.open_receiver(QUEUE)
        deliveries = await receiver.receive(2, 0.0)
        with LedgerWriter(tmp_path, role=Role.SYPHON) as ledger:
            pump = Pump(QUEUE, transport, PumpOptions(PumpRules()), Logbook(QUEUE, "contoso", "standby", ledger))
            assert await receiver.release(deliveries[:1]) == []
            await pump._carry_out(Release(tuple(deliveries)), receiver)
            assert pump.logbook.counts.released == 1

    asyncio.run(main())
    assert [one["message_id"] for one in written(tmp_path) if one["operation"] == "abandon"] == ["b"]


@pytest.mark.parametrize(("in_doubt", "outcome"), [(True, "unknown"), (False, "failed")])
def test_a_restore_without_an_answer_is_recorded_as_unknown(tmp_path: Path, in_doubt: bool, outcome: str) -> None:
    async def main() -> None:
        transport = MemoryTransport(send_seconds=0.0)
        answers: list[SendError | None] = [
            SendError(SendFailure.UNREACHABLE, "amqp:connection:forced", "the line broke", in_doubt=in_doubt)
        ]
        transport.behave = lambda destination, raws: answers.pop() if answers else None
        transport.queue(QUEUE).put(backlog("one"))
        with LedgerWriter(tmp_path, role=Role.SYPHON) as ledger:
            logbook = Logbook(QUEUE, "contoso", "standby", ledger)
            await Pump(QUEUE, transport, PumpOptions(PumpRules()), logbook).run(once=True)

    asyncio.run(main())
    restores = [one.get("outcome", "ok") for one in written(tmp_path) if one["operation"] == "restore"]
    assert restores == [outcome, "ok"]


def test_a_restore_that_took_too_long_is_recorded_as_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        transport = MemoryTransport(send_seconds=0.0)
        answers = [120.0]
        transport.behave = lambda destination, raws: answers.pop() if answers else None
        transport.queue(QUEUE).put(backlog("one"))
        with LedgerWriter(tmp_path, role=Role.SYPHON) as ledger:
            logbook = Logbook(QUEUE, "contoso", "standby", ledger)
            await Pump(QUEUE, transport, PumpOptions(PumpRules(), send_timeout=60.0), logbook).run(once=True)

    run_in_virtual_time(main())
    restores = [one.get("outcome", "ok") for one in written(tmp_path) if one["operation"] == "restore"]
    assert restores == ["unknown", "ok"]


def test_a_message_in_parts_is_buried_under_its_own_id_and_once(tmp_path: Path) -> None:
    """The client recorded its divert under that id: under any other, it would seem to wait for ever."""
    large = with_message_id(b"\x00\x53\x75\xb0\x00\x00\x20\x00" + b"x" * 8192, "large")
    parts = envelope.split(envelope.to_backlog(large, "orders"), "orders", "f00d", 5000)
    (orphan, _) = envelope.split(envelope.to_backlog(large, "orders"), "orders", "dead", 5000)
    assert len(parts) == 2

    async def main() -> None:
        transport = MemoryTransport(send_seconds=0.0)
        transport.behave = lambda destination, raws: SendError(SendFailure.REFUSED, "amqp:not-allowed", "never")
        transport.queue(QUEUE).put(*parts, orphan)
        with LedgerWriter(tmp_path, role=Role.SYPHON) as ledger:
            logbook = Logbook(QUEUE, "contoso", "standby", ledger)
            await Pump(QUEUE, transport, PumpOptions(PumpRules(part_patience=0.0)), logbook).run(once=True)
        assert len(transport.queue(QUEUE).dead) == 3

    asyncio.run(main())
    buried = {(one.get("message_id"), one["cause"]) for one in written(tmp_path) if one["operation"] == "dead-letter"}
    assert buried == {("large", "MessageRefused"), (None, "MessageRefused"), (None, "PartMissing")}
