"""`kill -9` of a server whose topic has subscriptions of every kind.

Afterwards, in the store itself:
- every subscription has each acknowledged message that its filter lets through, once;
- a message in doubt is in all of them or in none;
- what was received and completed is in no store any more, what was completed was not delivered again;
- a message is stored once, however many subscriptions hold it.

`PAIRBUS_KILL_SEED` repeats a run, `PAIRBUS_KILL_ROUNDS` sets the number of kills.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter
from tests.support.killing import Killing, chosen_seed
from tests.support.raw import BATCH_FORMAT, open_raw, raw_batch, raw_message

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.message import read_facts
from pairbus.amqp.outcomes import LinkLostError
from pairbus.testing import EmbeddedNamespace

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "12"))
TOPIC = "orders"
BATCH = 5
WINDOW = 20
MOST_MESSAGES = 20_000


class Account:
    """What the clients were told."""

    def __init__(self) -> None:
        self.sent = itertools.count()
        self.acknowledged: set[str] = set()
        self.doubtful_batches: list[list[str]] = []
        self.completed: set[str] = set()
        self.completing: set[str] = set()
        self.came_back: list[str] = []


async def _send(connection: ClientConnection, account: Account, killing: Killing) -> bool:
    """Singles and batches in turn, several in flight."""
    sender = await connection.open_sender(TOPIC, window=WINDOW)
    tasks: set[asyncio.Task[None]] = set()
    try:
        while not killing.over:
            await sender.room()
            number = next(account.sent)
            assert number < MOST_MESSAGES
            names = [f"{number}-{part}" for part in range(BATCH if number % 3 == 0 else 1)]
            raws = [raw_message(name, properties={"number": number}) for name in names]
            if len(raws) > 1:
                answer = sender.send(raw_batch(raws), message_format=BATCH_FORMAT)
            else:
                answer = sender.send(raws[0])
            task = asyncio.ensure_future(_note(answer, names, account, killing))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            killing.note()
    finally:
        await asyncio.gather(*tasks)
    return True


async def _note(answer: asyncio.Future[None], names: list[str], account: Account, killing: Killing) -> None:
    try:
        await answer
    except LinkLostError:
        account.doubtful_batches.append(names)
        return
    account.acknowledged.update(names)
    killing.note()


async def _consume(connection: ClientConnection, account: Account, killing: Killing) -> bool:
    """Receives and completes at one of the subscriptions."""
    receiver = await connection.open_receiver(f"{TOPIC}/Subscriptions/consumed", credit=50)
    while not killing.over:
        try:
            async with asyncio.timeout(0.2):
                messages = await receiver.receive(10)
        except TimeoutError:
            continue
        names = [str(read_facts(message.raw).message_id) for message in messages]
        account.came_back += [name for name in names if name in account.completed]
        account.completing.update(names)
        answers = await receiver.settle(messages)
        account.completed.update(name for name, refused in zip(names, answers, strict=True) if refused is None)
        killing.note()
    return True


def _stored(folder: Path) -> dict[str, dict[str, list[int]]]:
    """For each subscription its messages by id, and the payloads they are kept in."""
    with closing(sqlite3.connect(folder / "namespace.db")) as database:
        paths = dict(database.execute("SELECT id, path FROM entity"))
        ids = {
            payload_id: str(read_facts(raw).message_id)
            for payload_id, raw in database.execute("SELECT id, raw FROM payload")
        }
        found: dict[str, dict[str, list[int]]] = {}
        for queue_id, payload_id in database.execute("SELECT queue_id, payload_id FROM entry"):
            assert queue_id % 4 == 0, "a message landed in a sub-queue"
            name = paths[queue_id // 4].rpartition("/")[2]
            found.setdefault(name, {}).setdefault(ids[payload_id], []).append(payload_id)
        return found


def test_no_subscription_misses_or_doubles_a_message(tmp_path: Path) -> None:
    seed = chosen_seed()
    account = Account()
    with EmbeddedNamespace("contoso", data=tmp_path / "contoso", process=True) as server:
        with server.admin() as admin:
            admin.create_topic(TOPIC)
            admin.create_queue("copies")
            for name in ("all", "even", "changed", "none", "consumed"):
                admin.create_subscription(TOPIC, name)
            admin.create_subscription(TOPIC, "forwarding", forward_to="copies")
            for name in ("even", "changed", "none"):
                admin.delete_rule(TOPIC, name, "$Default")
            admin.create_rule(TOPIC, "even", "rule", filter=SqlRuleFilter("number % 2 = 0"))
            admin.create_rule(
                TOPIC, "changed", "rule", filter=SqlRuleFilter("1 = 1"), action=SqlRuleAction("SET seen = 1")
            )
            admin.create_rule(TOPIC, "none", "rule", filter=CorrelationRuleFilter(label="never"))

        async def run() -> None:
            killing = Killing(server, seed)
            await asyncio.gather(
                killing.rounds(ROUNDS),
                killing.worker(lambda connection: _send(connection, account, killing)),
                killing.worker(lambda connection: _send(connection, account, killing)),
                killing.worker(lambda connection: _consume(connection, account, killing)),
            )
            connection = await open_raw(server.connection_string)
            await connection.close()

        asyncio.run(run())
        server.kill()
        stored = _stored(tmp_path / "contoso")

    everything = stored["all"]
    assert account.acknowledged - set(everything) == set(), "acknowledged and lost"
    assert {name for one in stored.values() for name, payloads in one.items() if len(payloads) > 1} == set(), (
        "stored twice"
    )
    assert set(stored["even"]) == {name for name in everything if int(name.partition("-")[0]) % 2 == 0}
    assert set(stored["changed"]) == set(stored["copies"]) == set(everything)
    assert "none" not in stored and "forwarding" not in stored
    for batch in account.doubtful_batches:
        assert [name for name in batch if name in everything] in ([], batch), "half a batch"

    left = set(stored.get("consumed", ()))
    assert account.came_back == [], "completed, and delivered again"
    assert left & account.completed == set(), "completed, and still there"
    assert account.acknowledged - left - account.completed - account.completing == set(), "missed by a receiver"
    assert all(payloads == everything[name] for name, payloads in stored["even"].items()), "kept more than once"
    assert len(account.acknowledged) > ROUNDS, "there was hardly any load"
