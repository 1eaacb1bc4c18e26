"""Whatever is sent, in whatever sizes and groups, arrives once, in order and unchanged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.amqp_stage import BATCH_FORMAT, amqp_stage, batch, data_message

from pairbus.amqp.client import Received
from pairbus.amqp.codec import decode
from pairbus.amqp.message import Sections
from pairbus.embedded.entities.descriptions import QueueDescription

SECONDS = 30.0
sizes = st.one_of(st.integers(0, 300), st.integers(0, 20_000), st.sampled_from([65_400, 65_536, 131_072, 200_000]))
groups = st.lists(st.one_of(sizes.map(lambda size: [size]), st.lists(st.integers(0, 900), max_size=30)), max_size=12)


@pytest.mark.parametrize("receive_and_delete", [False, True])
@settings(max_examples=12, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=groups, credit=st.sampled_from([1, 3, 50, 1_000]))
def test_messages_survive_the_way_through(
    tmp_path_factory: pytest.TempPathFactory, receive_and_delete: bool, groups: list[list[int]], credit: int
) -> None:
    bodies = [[number.to_bytes(2, "big") * (size // 2 + 1) for number, size in enumerate(group)] for group in groups]
    expected = [body for group in bodies for body in group]
    folder = tmp_path_factory.mktemp("wire")
    assert asyncio.run(carried(folder, bodies, len(expected), credit, receive_and_delete)) == expected


async def carried(
    folder: Path, groups: list[list[bytes]], count: int, credit: int, receive_and_delete: bool
) -> list[bytes]:
    async with asyncio.timeout(SECONDS), amqp_stage(folder) as stage:
        await stage.broker.create(QueueDescription("orders"))
        connection = await stage.connect()
        receiver = await connection.open_receiver("orders", credit=credit, receive_and_delete=receive_and_delete)
        sender = await connection.open_sender("orders", window=5)
        sent = []
        for group in groups:
            await sender.room()
            messages = [data_message(body) for body in group]
            if len(messages) == 1:
                sent.append(sender.send(messages[0]))
            else:
                sent.append(sender.send(batch(messages), message_format=BATCH_FORMAT))
        got: list[Received] = []
        while len(got) < count:
            arrived = await receiver.receive(1_000)
            got += arrived
            assert set(await receiver.settle(arrived)) == {None}
        await asyncio.gather(*sent)
        assert stage.broker.counts("orders").active == 0
        await connection.close()
        return [decode(Sections.split(message.raw).body)[0].value for message in got]
