"""`kill -9` of a server whose queue has sessions.

- The state that was set and acknowledged is there when the session is accepted again.
- A session's messages come in the order in which they were sent, whatever happened in between.
- Nothing acknowledged is lost, nothing completed comes back, and a killed server's session locks are gone.

`PAIRBUS_KILL_SEED` repeats a run, `PAIRBUS_KILL_ROUNDS` sets the number of kills.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

from tests.support.killing import Killing, chosen_seed
from tests.support.raw import open_raw, raw_message

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.message import read_facts
from pairbus.amqp.outcomes import LinkLostError
from pairbus.testing import EmbeddedNamespace

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "12"))
QUEUE = "orders"
SESSIONS = ("red", "green", "blue")
MOST_WAITING = 200


class Session:
    """What the clients know of one session. Messages carry numbers; its state is the last number that was completed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.next_number = 0
        self.acknowledged: set[int] = set()
        self.completed: set[int] = set()
        self.completing: set[int] = set()
        self.state = -1
        self.states_in_doubt: set[int] = set()
        self.wrong: list[str] = []

    async def send(self, killing: Killing, connection: ClientConnection) -> bool:
        """One by one, so that what order is right is known; a number in doubt is not sent again."""
        sender = await connection.open_sender(QUEUE)
        while not killing.over:
            if len(self.acknowledged) - len(self.completed) > MOST_WAITING:
                await asyncio.sleep(0.01)
                continue
            number, self.next_number = self.next_number, self.next_number + 1
            await sender.send(raw_message(f"{self.name}-{number}", str(number).encode(), session_id=self.name))
            self.acknowledged.add(number)
            killing.note()
        return True

    async def consume(self, killing: Killing, connection: ClientConnection) -> bool:
        """Accepts the session, compares its state with what is known, and works through it."""
        receiver = await connection.open_receiver(QUEUE, session=self.name, credit=20)
        await self._compare_state(connection)
        last = -1
        while True:
            try:
                async with asyncio.timeout(0.5):
                    messages = await receiver.receive(5)
            except TimeoutError:
                if killing.over and self.acknowledged <= self.completed | self.completing:
                    return True
                continue
            for message in messages:
                number = int(str(read_facts(message.raw).message_id).rpartition("-")[2])
                if number <= last:
                    self.wrong.append(f"{self.name}: {number} after {last}")
                if number in self.completed:
                    self.wrong.append(f"{self.name}: {number} came back")
                last = number
                self.completing.add(number)
                (refused,) = await receiver.settle([message])
                if refused is not None:
                    self.wrong.append(f"{self.name}: completing {number} was refused: {refused}")
                self.completed.add(number)
                await self._set_state(connection, number)
                killing.note()

    async def _set_state(self, connection: ClientConnection, number: int) -> None:
        self.states_in_doubt.add(number)
        body = {"session-id": self.name, "session-state": str(number).encode()}
        reply = await connection.manage(QUEUE, "set-session-state", body)
        assert reply.is_good, reply
        self.state = number
        self.states_in_doubt.clear()

    async def _compare_state(self, connection: ClientConnection) -> None:
        reply = await connection.manage(QUEUE, "get-session-state", {"session-id": self.name})
        assert reply.is_good, reply
        found = int(reply.body["session-state"] or b"-1")
        if found != self.state and found not in self.states_in_doubt:
            self.wrong.append(f"{self.name}: state {found}, expected {self.state} or one of {self.states_in_doubt}")
        self.state = found
        self.states_in_doubt.clear()


def test_sessions_keep_their_state_and_order(tmp_path: Path) -> None:
    seed = chosen_seed()
    sessions = [Session(name) for name in SESSIONS]
    with EmbeddedNamespace("contoso", data=tmp_path / "contoso", process=True) as server:
        with server.admin() as admin:
            admin.create_queue(QUEUE, requires_session=True, max_delivery_count=2000)

        async def run() -> None:
            killing = Killing(server, seed)
            workers = [
                killing.worker(partial(job, killing)) for session in sessions for job in (session.send, session.consume)
            ]
            await asyncio.gather(killing.rounds(ROUNDS), *workers)

        asyncio.run(run())
        with server.admin() as admin:
            counts = admin.get_queue_runtime_properties(QUEUE)

    assert [trouble for session in sessions for trouble in session.wrong] == []
    for session in sessions:
        assert session.acknowledged - session.completed - session.completing == set(), "lost"
    assert sum(len(session.completed) for session in sessions) > ROUNDS, "there was hardly any load"
    assert counts.total_message_count == 0, "something is left that nobody was given"


def test_a_lost_connection_is_an_error_and_not_an_answer() -> None:
    """The accounts above stand on this: what was under way when a server dies is in doubt, never acknowledged."""

    async def run() -> None:
        with EmbeddedNamespace("contoso", process=True) as server:
            with server.admin() as admin:
                admin.create_queue(QUEUE)
            server.fault("hang", entity=QUEUE)
            connection = await open_raw(server.connection_string)
            sender = await connection.open_sender(QUEUE)
            answer = sender.send(raw_message("in doubt"))
            server.kill()
            try:
                await answer
            except LinkLostError:
                return
            raise AssertionError("a message was acknowledged by nobody")

    asyncio.run(run())
