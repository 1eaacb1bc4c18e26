"""The page's server refuses bad requests with a reason, guards every answer, and bounds viewers and connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path

import aiohttp
import pytest

from pairbus.costs import shipped_tariffs, tariff_for
from pairbus.dashboard import server
from pairbus.dashboard.ledger_tail import LedgerTail
from pairbus.dashboard.money import Prices
from pairbus.dashboard.observatory import DashboardSettings, Observatory
from pairbus.dashboard.server import HEADERS, MOST_BODY_BYTES, TOKEN_HEADER, listen, serving
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation

TARIFF = tariff_for(shipped_tariffs(), "azure-usd", date(2026, 1, 1))
TOKEN = {TOKEN_HEADER: "k3y-of-the-page"}


def settings_of(folder: Path) -> DashboardSettings:
    return DashboardSettings(folder, Prices(TARIFF, TARIFF.plan("standard")), token=TOKEN[TOKEN_HEADER])


async def in_pieces() -> AsyncIterator[bytes]:
    for _ in range(10):
        yield b"x" * (MOST_BODY_BYTES // 8)


def test_a_bad_request_is_refused_with_its_reason_and_every_answer_is_guarded(tmp_path: Path) -> None:
    async def answers() -> list[tuple[int, str]]:
        with listen(0) as listener:
            control = f"http://127.0.0.1:{listener.getsockname()[1]}/api/control"
            seen = []
            async with serving(Observatory(settings_of(tmp_path)), listener), aiohttp.ClientSession() as session:
                for body in (b"x" * (MOST_BODY_BYTES + 1), in_pieces(), b"{", b'{"action": "dance"}'):
                    async with session.post(control, data=body, headers=TOKEN) as answer:
                        assert answer.headers.items() >= HEADERS.items()
                        assert "Server" not in answer.headers
                        seen.append((answer.status, (await answer.json())["error"]))
                known = b'{"action": "fail over", "primary": "contoso", "entity": "orders"}'
                for headers in (TOKEN, {}, TOKEN | {"Origin": "http://evil.example"}):
                    async with session.post(control, data=known, headers=headers) as answer:
                        assert answer.headers.items() >= HEADERS.items()
                        seen.append((answer.status, (await answer.json())["error"]))
            return seen

    too_large = (413, f"The request is larger than {MOST_BODY_BYTES} bytes.")
    assert asyncio.run(answers()) == [
        too_large,
        too_large,
        (400, "The request is not valid: Input data was truncated."),
        (400, "The request is not valid: Invalid enum value 'dance' - at `$.action`."),
        (404, "No paired client here sends to 'orders' of 'contoso'."),
        (403, "The control token is missing or wrong."),
        (403, "The request came from another page."),
    ]


async def wait_for_status(session: aiohttp.ClientSession, address: str, status: int) -> None:
    async with asyncio.timeout(30):
        while True:
            async with session.get(address) as answer:
                if answer.status == status:
                    return
            await asyncio.sleep(0.01)


def test_beyond_the_limit_of_connections_requests_are_refused_until_some_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)

    async def check() -> None:
        listener = listen(0)
        host, port = listener.getsockname()
        state = f"http://{host}:{port}/api/state"
        async with serving(Observatory(settings_of(tmp_path)), listener), aiohttp.ClientSession() as session:
            idle = [await asyncio.open_connection(host, port) for _ in range(2)]
            async with session.get(state) as answer:
                assert (answer.status, answer.headers["Connection"]) == (503, "close")
                assert await answer.json() == {"error": "3 connections are open already. Close a page."}
            for _, writer in idle:
                writer.close()
                await writer.wait_closed()
            await wait_for_status(session, state, 200)
        assert listener.fileno() == -1

    asyncio.run(check())


def test_a_viewer_that_leaves_makes_room_even_while_there_is_no_new_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_VIEWERS", 1)

    async def never(_: Observatory) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Observatory, "watch", never)

    async def check() -> None:
        with listen(0) as listener:
            events = f"http://127.0.0.1:{listener.getsockname()[1]}/api/events"
            async with serving(Observatory(settings_of(tmp_path)), listener), aiohttp.ClientSession() as session:
                async with session.get(events) as first:
                    await first.content.readline()
                    async with session.get(events) as second:
                        assert (first.status, second.status) == (200, 503)
                await wait_for_status(session, events, 200)

    asyncio.run(check())


def test_two_looks_at_once_count_each_line_of_the_ledger_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_line = LedgerTail._add

    def add_slowly(tail: LedgerTail, line: bytes) -> None:
        time.sleep(0.002)  # lets another thread run
        add_line(tail, line)

    monkeypatch.setattr(LedgerTail, "_add", add_slowly)
    with LedgerWriter(tmp_path / "ledger") as writer:
        for _ in range(20):
            writer.record(CompletedOperation(Operation.SEND, "contoso", "orders"))

    async def operations() -> set[int]:
        prices = Prices(TARIFF, TARIFF.plan("standard"))
        observatory = Observatory(DashboardSettings(tmp_path / "state", prices, tmp_path / "ledger"))
        views = await asyncio.gather(*(observatory.look() for _ in range(4)))
        return {row["operations"] for view in views for row in view["costs"]["namespaces"]}

    assert asyncio.run(operations()) == {20}
