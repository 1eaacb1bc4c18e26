"""The page's server: three files, one JSON document, a stream of it, and, if allowed, requests. Loopback only."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.resources import files

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from pairbus.dashboard.asking import UnknownTargetError, Wish, ask
from pairbus.dashboard.guarding import Guarded, refusal_of_change
from pairbus.dashboard.observatory import Observatory
from pairbus.publishing.records import Action

ADDRESS = "127.0.0.1"
ASSETS = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
MOST_VIEWERS = 100
MOST_WISH_BYTES = 4096
_SHUTDOWN_SECONDS = 2


class _Wish(msgspec.Struct, forbid_unknown_fields=True):
    action: Action
    primary: str = ""
    entity: str = ""
    process: str = ""
    key: str = ""


def application(observatory: Observatory) -> ASGIApp:
    """The page and its data, guarded."""
    viewers = 0

    async def state(_: Request) -> Response:
        return Response(observatory.latest, media_type="application/json")

    async def events(_: Request) -> Response:
        if viewers >= MOST_VIEWERS:
            return JSONResponse({"error": f"{MOST_VIEWERS} pages are open already."}, status_code=503)
        return StreamingResponse(stream(), media_type="text/event-stream")

    async def stream() -> AsyncIterator[bytes]:
        nonlocal viewers
        viewers += 1
        try:
            yield b"retry: 2000\n\n" + _event(observatory.latest)
            while (latest := await observatory.wait()) is not None:
                yield _event(latest)
        finally:
            viewers -= 1

    async def unlock(request: Request) -> Response:
        """Says whether a request with this token would be heard, and does nothing."""
        refusal = refusal_of_change(request.headers, observatory.settings.token)
        return JSONResponse({} if refusal is None else {"error": refusal}, status_code=200 if refusal is None else 403)

    async def control(request: Request) -> Response:
        refusal = refusal_of_change(request.headers, observatory.settings.token)
        if refusal is not None:
            return JSONResponse({"error": refusal}, status_code=403)
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_WISH_BYTES:
                return JSONResponse({"error": "That is too long for a request."}, status_code=413)
        try:
            wish = msgspec.json.decode(body, type=_Wish)
        except msgspec.MsgspecError as error:
            return JSONResponse({"error": f"That is no request: {error}."}, status_code=400)
        try:
            answers = await ask(
                observatory.settings.state_folder,
                Wish(wish.action, wish.primary, wish.entity, wish.process, wish.key),
            )
        except UnknownTargetError as error:
            return JSONResponse({"error": str(error)}, status_code=404)
        await observatory.look()
        return JSONResponse({"done": sum(one["done"] for one in answers), "answers": answers})

    routes = [Route(path, _asset(*details)) for path, details in ASSETS.items()]
    routes += [
        Route("/api/state", state),
        Route("/api/events", events),
        Route("/api/unlock", unlock, methods=["POST"]),
        Route("/api/control", control, methods=["POST"]),
    ]
    return Guarded(Starlette(routes=routes))


def _event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"


def _asset(name: str, media_type: str) -> Callable[[Request], Response]:
    content = (files("pairbus.dashboard") / "assets" / name).read_bytes()

    def serve(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return serve


class _Server(uvicorn.Server):
    """Signals are the command's, not the server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(observatory: Observatory, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Serve on a listening socket as long as the context lasts; it is closed then.

    The task is the server: it ends before the context only if it fails.
    """
    config = uvicorn.Config(
        application(observatory),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http="h11",  # the one whose headers are bounded below
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        limit_concurrency=4 * MOST_VIEWERS,
        h11_max_incomplete_event_size=16 * 1024,
    )
    server = _Server(config)
    await observatory.look()
    watching = asyncio.create_task(observatory.watch(), name="pairbus observatory")
    running = asyncio.create_task(server.serve(sockets=[listener]), name="pairbus page")
    try:
        yield running
    finally:
        watching.cancel()
        await observatory.close()
        server.should_exit = True
        await asyncio.gather(running, watching, return_exceptions=True)


def listen(port: int) -> socket.socket:
    """A listening socket on loopback; OSError if the port is taken."""
    return socket.create_server((ADDRESS, port))
