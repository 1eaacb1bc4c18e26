"""The HTTP side of administration: reads a limited request, checks its token, runs it, and answers every error.

Rights, as the service documents them: rules need Listen on their subscription, everything else needs Manage. Only the
health route and the web socket (which has tokens of its own) need none.

An error's body is `<Error><Code>…</Code><Detail>…</Detail></Error>`. `Detail` begins with a sub-code that clients parse
and ends with the time, to find the error in a log.

The endpoint belongs to the namespace, so only the namespace's own fault affects it. The control routes ignore faults:
otherwise nobody could clear one.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import parse_qsl

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pairbus.amqp.websocket import PATH as WEBSOCKET_PATH
from pairbus.embedded import websocket
from pairbus.embedded.administration.atom import RequestContext
from pairbus.embedded.administration.control import Control
from pairbus.embedded.administration.elements import escape
from pairbus.embedded.administration.operations import (
    AdministrationRequest,
    Operations,
    Target,
    TargetKind,
    parse_target,
)
from pairbus.embedded.admission import Admission
from pairbus.embedded.clock import Clock
from pairbus.embedded.entities.descriptions import LISTEN, MANAGE
from pairbus.embedded.errors import BrokerError, InvalidError, UnauthorizedError
from pairbus.embedded.faults import SERVER_BUSY, Fault, FaultSwitchboard
from pairbus.embedded.security import Authority

ERROR_CONTENT_TYPE = "application/xml; charset=utf-8"
MAX_BODY_BYTES = 1024 * 1024
BODY_TIMEOUT_S = 30.0
SHUTDOWN_TIMEOUT_S = 0.5
OLDEST_API_VERSION = "2017-04"

_API_VERSION = re.compile(r"\d{4}-\d{2}", re.ASCII)
_log = logging.getLogger(__name__)
_http_log = logging.getLogger(f"{__name__}.http")
# A malformed request is the client's problem, and answered with 400: it needs no traceback in the server's log.
_http_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))


def error_body(status: int, description: str, now_ms: int) -> bytes:
    moment = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    detail = escape(f"{description} Timestamp:{moment}")
    return f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>".encode()


def _detail(error: BrokerError) -> str:
    """The error's sub-code and sentence. The sentence of a refused token begins with its own code."""
    if isinstance(error, UnauthorizedError):
        return error.description
    return f"SubCode={error.http_status}00. {error.description}"


class ServerBusyError(BrokerError):
    condition = SERVER_BUSY
    http_status = 503


_ERRORS: list[type[BrokerError]] = BrokerError.__subclasses__()
_BY_CONDITION = {error.condition: error for error in _ERRORS}


async def _apply_fault(faults: FaultSwitchboard, request: web.BaseRequest) -> None:
    """Delay or fail the request as the namespace's fault demands."""
    fault = faults.fault_of(None)
    if fault is None:
        return
    match fault.mode:
        case "refuse" | "drop":
            _cut(request)
        case "hang":
            await _wait_for_end(faults, fault)
        case "error":
            condition = fault.condition or BrokerError.condition
            raise _BY_CONDITION.get(condition, BrokerError)(f"A fault is switched on: {condition}.")
        case "slow":
            await asyncio.sleep((fault.delay_ms or 0) / 1000)
        case "throttle" if not faults.lets_through(fault):
            raise ServerBusyError("A fault is switched on: the server is busy. Try again in 10 seconds.")
        # The modes accept-then-fail and idle-detach only affect messages and links.


async def _wait_for_end(faults: FaultSwitchboard, fault: Fault) -> None:
    changed = asyncio.Event()
    faults.listen(changed.set)
    try:
        while faults.fault_of(None) == fault:
            changed.clear()
            await changed.wait()
    finally:
        faults.unlisten(changed.set)


def _cut(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionAbortedError("A fault is switched on: the connection is cut.")


class AdministrationEndpoint:
    def __init__(
        self,
        operations: Operations,
        control: Control,
        authority: Authority,
        faults: FaultSwitchboard,
        clock: Clock,
        name: str,
        amqp: Callable[[], asyncio.Protocol],
        admission: Admission,
    ) -> None:
        self._operations = operations
        self._control = control
        self._authority = authority
        self._faults = faults
        self._clock = clock
        self._name = name
        self._amqp = amqp
        self._admission = admission
        # Compressed bodies are refused: no client sends them, and they hide their size.
        self._server = web.Server(
            self._answer, access_log=None, logger=_http_log, auto_decompress=False, handler_cancellation=True
        )

    def protocol(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return self._server()

    async def close(self) -> None:
        await self._server.shutdown(timeout=SHUTDOWN_TIMEOUT_S)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            answer = await self._route(request)
        finally:
            # From here the pause before the next request counts, and how slowly the client reads the answer.
            self._admission.set_proven(request.transport, False)
        if not answer.prepared:
            # Clients that compare clocks need the namespace's clock, which a test may control.
            answer.headers["Date"] = formatdate(self._clock.now_ms() / 1000, usegmt=True)
        return answer

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        raw_path, _, raw_query = request.raw_path.partition("?")
        if raw_path == WEBSOCKET_PATH:
            return await websocket.carry_amqp(request, self._amqp)
        try:
            target = parse_target(raw_path)
            query = dict(parse_qsl(raw_query, keep_blank_values=True, max_num_fields=32))
            if target.kind is TargetKind.CONTROL:
                return await self._control.answer(request, target, query, await _body(request))
            return await self._administer(request, target, query)
        except BrokerError as error:
            return self._refuse(error.http_status, _detail(error))
        except TimeoutError:
            return self._refuse(408, f"SubCode=40800. The body did not arrive within {BODY_TIMEOUT_S:.0f} s.")
        except ConnectionAbortedError as error:
            # The connection is gone, so nobody reads this answer.
            return self._refuse(503, str(error))
        except ValueError as error:
            return self._refuse(400, f"SubCode=40000. The request cannot be read: {error}.")
        except Exception:  # a bug must not break the connection
            _log.exception("A request to %s failed.", raw_path[:256])
            return self._refuse(500, "SubCode=50000. The server failed to answer. Its log says why.")

    async def _administer(self, request: web.BaseRequest, target: Target, query: dict[str, str]) -> web.StreamResponse:
        try:
            # Before a fault, which may last: only a connection without rights is closed in the meantime.
            self._require_right(request, target, self._clock.now_ms())
        finally:
            await _apply_fault(self._faults, request)
        now_ms = self._clock.now_ms()
        self._require_right(request, target, now_ms)  # the right may have ended in the meantime
        context = RequestContext(self._name, request.headers.get("Host", "localhost"), _api_version(query))
        body = await _body(request)
        call = AdministrationRequest(request.method, target, query, request.headers, body, context, now_ms)
        return await self._operations.run(call)

    def _require_right(self, request: web.BaseRequest, target: Target, now_ms: int) -> None:
        token = request.headers.get("Authorization")
        if not token:
            raise UnauthorizedError("MissingToken: The request has no token in an Authorization header.")
        grant = self._authority.check(token, target.path, now_ms)
        right = LISTEN if target.kind in (TargetKind.RULE, TargetKind.RULES) else MANAGE
        if not grant.allows(target.path, right):
            raise UnauthorizedError(f"MissingClaim: {right} claim is required for this operation on '{target.path}'.")
        self._admission.set_proven(request.transport, True)

    def _refuse(self, status: int, description: str) -> web.Response:
        body = error_body(status, description, self._clock.now_ms())
        return web.Response(status=status, body=body, headers={"Content-Type": ERROR_CONTENT_TYPE})


def _api_version(query: dict[str, str]) -> str:
    version = query.get("api-version", OLDEST_API_VERSION)
    if _API_VERSION.fullmatch(version) is None:
        raise InvalidError(f"api-version is '{version[:64]}'. Use a version such as 2021-05.")
    return version


async def _body(request: web.BaseRequest) -> bytes:
    """Read the whole body, if it is small enough and arrives in time."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise InvalidError("The body is compressed. Send it uncompressed.")
    chunks: list[bytes] = []
    size = 0
    async with asyncio.timeout(BODY_TIMEOUT_S):
        async for chunk in request.content.iter_any():
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise InvalidError(f"The body has more than {MAX_BODY_BYTES} bytes, which is the maximum.")
            chunks.append(chunk)
    return b"".join(chunks)
