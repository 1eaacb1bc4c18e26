"""What the doctor makes of answers that no namespace gives: something else stands between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pairbus.doctor import Finding, Status, examination
from pairbus.doctor.checks import check_clock
from pairbus.doctor.examination import check_backlog
from pairbus.embedded.security import ensure_certificate
from pairbus.syphon import Namespace


def finding_of(folder: Path, answer: str | None, ask: Callable[[Namespace], Awaitable[Finding]]) -> Finding:
    """What is found of a server that gives this answer to everything, or none."""
    certificate = ensure_certificate(folder)
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await ended.wait()
        else:
            writer.write(answer.replace("\n", "\r\n").encode())
            await writer.drain()
        writer.close()

    async def play() -> Finding:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificate.context())
        port = server.sockets[0].getsockname()[1]
        text = f"Endpoint=sb://127.0.0.1:{port}/;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
        try:
            return await ask(Namespace.parse(text, connection_verify=str(certificate.ca_file)))
        finally:
            ended.set()
            server.close()

    return asyncio.run(play())


@pytest.mark.parametrize("date", ["tomorrow", "", "Mon, 99 Foo 2026 99:99:99 GMT"])
def test_a_date_that_is_none(tmp_path: Path, date: str) -> None:
    answer = f"HTTP/1.1 302 Found\nDate: {date}\nLocation: /login\n\n"
    found = finding_of(tmp_path, answer, lambda namespace: check_clock("primary", namespace))
    assert (found.status, found.found) == (Status.WARNING, "the response has no date")


def test_backlog_queues_that_cannot_be_listed_are_one_line(tmp_path: Path) -> None:
    body = "<html>\n<body>\nSign in first\n</body>\n</html>\n"
    answer = f"HTTP/1.1 400 No\nContent-Type: text/html\nContent-Length: {len(body) + body.count(chr(10))}\n\n{body}"
    found = finding_of(tmp_path, answer, lambda namespace: check_backlog(namespace, "contoso", range(2)))
    assert found.status is Status.FAILED
    assert found.found.startswith("cannot be listed (")
    assert "\n" not in str(found)


def test_a_namespace_that_never_answers_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "REQUEST_SECONDS", 0.05)

    async def rights(namespace: Namespace) -> Finding:
        return examination._judge_rights(
            "primary rights", await examination._find_rights(namespace, None), needed=(), option="--entity"
        )

    found = finding_of(tmp_path, None, rights)
    assert found.found == "cannot be tested (no answer within 0 s)"
    found = finding_of(tmp_path, None, lambda namespace: check_backlog(namespace, "contoso", range(2)))
    assert found.found == "cannot be listed (TimeoutError)"
