"""A syphon in a child process that kills itself with SIGKILL at a chosen step, for tests of crashes.

The steps are those of any transport; a name and a count choose the step to die at. The child notes in a file which
messages it began to send and which completions were confirmed. Each note is one system call, so it survives the kill.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairbus.amqp.message import read_facts
from pairbus.syphon.amqp_transport import AmqpTransport
from pairbus.syphon.deliveries import DeadLetter, Delivery, Peeked
from pairbus.syphon.service import Syphon
from pairbus.syphon.transport import BacklogReceiver, Transport

STEPS = (
    "received",
    "send begun",
    "send under way",
    "sent",
    "completion begun",
    "half completed",
    "completed",
    "part received",
    "parts under way",
)
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Death:
    """Die when this step is reached for the `count`-th time. `part received`: a part arrived without its sibling."""

    step: str
    count: int


class Diary:
    """Notes that are on disk before the next step begins."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str, names: Sequence[str]) -> None:
        os.write(self._file, "".join(f"{what} {name}\n" for name in names).encode())

    @staticmethod
    def read(path: Path) -> list[tuple[str, str]]:
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").splitlines()
        return [(what, name) for what, _, name in (line.partition(" ") for line in lines)]


class DyingTransport:
    """Wraps a transport and dies at the chosen step."""

    def __init__(self, inner: Transport, death: Death, diary: Diary) -> None:
        self._inner = inner
        self.death = death
        self._reached = 0
        self.diary = diary

    def step(self, name: str) -> None:
        if name == self.death.step:
            self._reached += 1
            if self._reached >= self.death.count:
                os.kill(os.getpid(), signal.SIGKILL)

    @property
    def sips(self) -> bool:
        """Parts are received one at a time, so that one can be there without the other."""
        return self.death.step == "part received"

    async def open_receiver(self, queue: str) -> BacklogReceiver:
        return _DyingReceiver(self, await self._inner.open_receiver(queue))

    async def send(self, destination: str, raws: Sequence[bytes]) -> None:
        self.step("send begun")
        self.diary.note("sending", _names(raws))
        under_way = asyncio.ensure_future(self._inner.send(destination, raws))
        if self.death.step == "send under way":
            await asyncio.wait([under_way], timeout=0.002)
            self.step("send under way")
        try:
            await under_way
        except asyncio.CancelledError:
            under_way.cancel()
            raise
        self.step("sent")

    async def reachable(self) -> bool:
        return await self._inner.reachable()

    async def close(self) -> None:
        await self._inner.close()


class _DyingReceiver:
    def __init__(self, transport: DyingTransport, inner: BacklogReceiver) -> None:
        self._transport = transport
        self._inner = inner

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        deliveries = await self._inner.receive(1 if self._transport.sips else limit, wait)
        if deliveries:
            self._transport.step("received")
        if any("/1" in name for name in _names([one.message.raw for one in deliveries])):
            self._transport.step("part received")
        return deliveries

    async def quiet(self) -> list[Delivery]:
        return await self._inner.quiet()

    async def complete(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        self._transport.step("completion begun")
        half = len(deliveries) // 2
        lost = await self._complete(deliveries[:half]) if half else []
        self._transport.step("half completed")
        lost += await self._complete(deliveries[half:])
        self._transport.step("completed")
        return lost

    async def _complete(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        lost = await self._inner.complete(deliveries)
        self._note_completed(deliveries, lost)
        return lost

    def _note_completed(self, deliveries: Sequence[Delivery], lost: Sequence[Delivery]) -> None:
        self._transport.diary.note("completed", [f"{one.sequence_number}" for one in deliveries if one not in lost])

    async def complete_together(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Complete the parts of one message, which no crash may separate."""
        self._transport.step("completion begun")
        under_way = asyncio.ensure_future(self._inner.complete_together(deliveries))
        if self._transport.death.step == "parts under way":
            await asyncio.wait([under_way], timeout=0.002)
            self._transport.step("parts under way")
        lost = await under_way
        self._note_completed(deliveries, lost)
        self._transport.step("completed")
        return lost

    async def release(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return await self._inner.release(deliveries)

    async def dead_letter(self, letters: Sequence[DeadLetter]) -> list[Delivery]:
        return await self._inner.dead_letter(letters)

    async def renew(self, deliveries: Sequence[Delivery]) -> tuple[float, list[Delivery]]:
        return await self._inner.renew(deliveries)

    async def peek(self, from_number: int, count: int) -> list[Peeked]:
        return await self._inner.peek(from_number, count)

    async def close(self) -> None:
        await self._inner.close()


def _names(raws: Sequence[bytes]) -> list[str]:
    return [read_facts(raw).message_key or "" for raw in raws]


def _run(options: dict[str, Any], death: Death, diary: Path) -> None:
    notes = Diary(diary)
    Syphon(**options, transport=lambda *both: DyingTransport(AmqpTransport(*both), death, notes)).run_blocking(
        once=True
    )


def run_until_death(options: dict[str, Any], death: Death, diary: Path) -> bool:
    """Run a syphon in a child process. Return whether it died at its step; if not, it carried everything home."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.dying"])
    child = context.Process(target=_run, args=(options, death, diary), daemon=True)
    child.start()
    child.join(PATIENCE_SECONDS)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise TimeoutError(f"The syphon neither died at {death} nor ended within {PATIENCE_SECONDS:g} s.")
    if child.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"The syphon ended with exit code {child.exitcode}.")
    return child.exitcode == -signal.SIGKILL
