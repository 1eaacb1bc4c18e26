"""The server of the page, on loopback only: the files of the page, the view as JSON and as a stream, and control.

Guards
- Every request must name this machine in `Host`. A foreign name that was made to resolve to this machine is refused.
- The page loads nothing from elsewhere, no other page can frame it, and the browser stores nothing.
- There are no cookies, so a browser sends no credential by itself. A change needs the token in a header, which a page
  from elsewhere can neither read nor send, and an `Origin`, if there is one, of this page.

Control writes requests into the folders of the processes and waits for their answers. A request that a process did not
take in time is withdrawn: then certainly nothing was done.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from pairbus.dashboard.observatory import Observatory, look
from pairbus.dashboard.view import Process, pair_key
from pairbus.loopback import names_this_machine
from pairbus.publishing.folder import put_request, read_state, withdraw_request
from pairbus.publishing.records import STATE_VERSION, ControlRequest, RequestedAction

ADDRESS = "127.0.0.1"
TOKEN_HEADER = "X-Pairbus-Token"  # noqa: S105 - the name of a header
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/draw.js": ("draw.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
MOST_VIEWERS = 100
MOST_CONNECTIONS = 4 * MOST_VIEWERS
MOST_BODY_BYTES = 4096
ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.1
_KEEP_ALIVE_SECONDS = 5.0
_SHUTDOWN_SECONDS = 2.0


class ControlBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A change of an entity in all clients of a pair (`primary` is the key of the pair), or of one syphon."""

    action: RequestedAction
    primary: str = ""
    entity: str = ""
    process: str = ""
    key: str = ""


def application(observatory: Observatory, count_connections: Callable[[], int]) -> web.Application:
    """The page and its data, guarded."""
    viewers = 0

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if count_connections() >= MOST_CONNECTIONS:
            refusal = _refusal(503, f"{MOST_CONNECTIONS} connections are open already. Close a page.")
            refusal.force_close()
            return refusal
        if not names_this_machine(request.headers.get("Host", "")):
            return _refusal(421, "Open this page as localhost or 127.0.0.1.")
        return await handler(request)

    async def state(_: web.Request) -> web.Response:
        return web.Response(body=observatory.latest, content_type="application/json")

    async def events(request: web.Request) -> web.StreamResponse:
        nonlocal viewers
        if viewers >= MOST_VIEWERS:
            return _refusal(503, f"{MOST_VIEWERS} pages are open already. Close one.")
        viewers += 1
        try:
            stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await stream.prepare(request)
            await stream.write(b"retry: 2000\n\n" + _event(observatory.latest))
            while (latest := await observatory.wait()) is not None:
                await stream.write(_event(latest))
        except ConnectionError:  # the viewer left
            pass
        finally:
            viewers -= 1
        return stream

    async def unlock(request: web.Request) -> web.Response:
        """Tell whether this token allows changes, and change nothing."""
        refusal = refusal_of_change(request.headers, observatory.settings.token)
        return web.json_response({}) if refusal is None else _refusal(403, refusal)

    async def control(request: web.Request) -> web.Response:
        refusal = refusal_of_change(request.headers, observatory.settings.token)
        if refusal is not None:
            return _refusal(403, refusal)
        try:
            body = msgspec.json.decode(await request.read(), type=ControlBody)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(413, f"The request is larger than {MOST_BODY_BYTES} bytes.")
        except msgspec.MsgspecError as error:
            return _refusal(400, f"The request is not valid: {error}.")
        try:
            answers = await asyncio.shield(change(body))
        except UnknownTargetError as error:
            return _refusal(404, str(error))
        return web.json_response({"done": sum(answer["done"] for answer in answers), "answers": answers})

    async def change(body: ControlBody) -> list[dict[str, Any]]:
        """Runs to its end even if the viewer leaves, so that a request that nobody takes is withdrawn."""
        folder = observatory.settings.state_folder
        targets = await asyncio.to_thread(addressees, folder, body)
        answers = await asyncio.gather(*(_send_request(folder, *target, body) for target in targets))
        await observatory.look()
        return answers

    app = web.Application(middlewares=[guard], client_max_size=MOST_BODY_BYTES)
    app.on_response_prepare.append(_add_headers)
    app.add_routes([web.get(path, _asset(*details)) for path, details in ASSETS.items()])
    app.add_routes(
        [
            web.get("/api/state", state),
            web.get("/api/events", events, allow_head=False),
            web.post("/api/unlock", unlock),
            web.post("/api/control", control),
        ]
    )
    return app


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.pop("Server", None)


def _refusal(status: int, error: str) -> web.Response:
    return web.json_response({"error": error}, status=status)


def _event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"


def _asset(name: str, content_type: str) -> Handler:
    content = (files("pairbus.dashboard") / "assets" / name).read_bytes()
    charset = "utf-8" if content_type.startswith("text/") else None

    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=content_type, charset=charset)

    return serve


def refusal_of_change(headers: Mapping[str, str], token: str | None) -> str | None:
    """Why a request may not change anything; None if it may. `headers` ignores case."""
    if token is None:
        return "This page is read-only: start it with --allow-control."
    own_origin = f"http://{headers.get('Host')}"
    site = headers.get("Sec-Fetch-Site", "same-origin")
    if headers.get("Origin", own_origin) != own_origin or site not in ("same-origin", "none"):
        return "The request came from another page."
    if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode("utf-8", "surrogateescape"), token.encode()):
        return "The control token is missing or wrong."
    return None


class UnknownTargetError(Exception):
    """No process that publishes here has the entity or syphon of a request."""


def addressees(state_folder: Path, body: ControlBody) -> list[tuple[Process, str]]:
    """The paired clients that send to the entity, or the one syphon: each with its process and its key there."""
    living = [process for process in look(state_folder).processes if process.alive]
    if body.action in (RequestedAction.PAUSE, RequestedAction.RESUME):
        targets = [
            (process, syphon.key)
            for process in living
            for syphon in process.state.syphons
            if (process.name, syphon.key) == (body.process, body.key)
        ]
        missing = "This syphon no longer publishes here."
    else:
        targets = [
            (process, pair.key)
            for process in living
            for pair in process.state.pairs
            if pair_key(pair.primary) == body.primary and body.entity in {entity.name for entity in pair.entities}
        ]
        missing = f"No paired client here sends to {body.entity!r} of {body.primary!r}."
    if not targets:
        raise UnknownTargetError(missing)
    return targets


async def _send_request(state_folder: Path, process: Process, source: str, body: ControlBody) -> dict[str, Any]:
    """Send a request to a paired client or syphon of a process; returns the answer."""
    request = ControlRequest(
        v=STATE_VERSION,
        id=secrets.token_hex(8),
        at=time.time(),
        action=body.action,
        source=source,
        entity=body.entity,
    )
    answered_by = {"program": process.state.program, "pid": process.state.pid}
    try:
        path = await asyncio.to_thread(put_request, state_folder, process.name, request)
    except OSError:
        return {**answered_by, "done": False, "text": "The process is gone."}
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        state = await asyncio.to_thread(read_state, state_folder / process.name)
        answer = next((answer for answer in state.answers if answer.request == request.id), None) if state else None
        if answer is not None:
            return {**answered_by, "done": answer.done, "text": answer.text}
        await asyncio.sleep(_POLL_SECONDS)
    if await asyncio.to_thread(withdraw_request, path):
        text = "The process did not take the request, so it was withdrawn and nothing was done."
    else:
        text = "The process took the request and has not answered yet."
    return {**answered_by, "done": False, "text": text}


@contextlib.asynccontextmanager
async def serving(observatory: Observatory, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Serve on a listening socket while the context lasts, then close it.

    The task is the server: it ends before the context only if it fails.
    """

    def count_connections() -> int:
        return 0 if runner.server is None else len(runner.server.connections)

    runner = web.AppRunner(
        application(observatory, count_connections),
        access_log=None,
        handler_cancellation=True,  # a viewer that leaves ends its stream at once
        keepalive_timeout=_KEEP_ALIVE_SECONDS,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )

    async def serve() -> None:
        await web.SockSite(runner, listener).start()
        await observatory.watch()

    await runner.setup()
    await observatory.look()
    running = asyncio.create_task(serve(), name="pairbus page")
    try:
        yield running
    finally:
        running.cancel()
        await observatory.close()
        await asyncio.gather(running, return_exceptions=True)
        await runner.cleanup()
        listener.close()


def listen(port: int) -> socket.socket:
    """A listening socket on loopback; OSError if the port is taken."""
    return socket.create_server((ADDRESS, port))
