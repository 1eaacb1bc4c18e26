"""The page's server refuses bad requests with a reason, and guards every answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path

import aiohttp

from pairbus.costs import shipped_tariffs, tariff_for
from pairbus.dashboard.money import Prices
from pairbus.dashboard.observatory import DashboardSettings, Observatory
from pairbus.dashboard.server import HEADERS, MOST_BODY_BYTES, TOKEN_HEADER, listen, serving

TARIFF = tariff_for(shipped_tariffs(), "azure-usd", date(2026, 1, 1))
TOKEN = {TOKEN_HEADER: "k3y-of-the-page"}


async def in_pieces() -> AsyncIterator[bytes]:
    for _ in range(10):
        yield b"x" * (MOST_BODY_BYTES // 8)


def test_a_bad_request_is_refused_with_its_reason_and_every_answer_is_guarded(tmp_path: Path) -> None:
    async def answers() -> list[tuple[int, str]]:
        settings = DashboardSettings(tmp_path, Prices(TARIFF, TARIFF.plan("standard")), token=TOKEN[TOKEN_HEADER])
        with listen(0) as listener:
            control = f"http://127.0.0.1:{listener.getsockname()[1]}/api/control"
            seen = []
            async with serving(Observatory(settings), listener), aiohttp.ClientSession() as session:
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
