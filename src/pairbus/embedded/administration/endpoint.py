"""HTTP in front of the operations: reads a bounded request, checks its token, runs it, and answers every
error properly.

Rights, as the service documents them: rules need Listen on their subscription, everything else Manage. Only
the health route and the web socket (which brings its own tokens) are open.

Error bodies as the service writes them: `<Error><Code>…</Code><Detail>…</Detail></Error>`.

`Detail` begins with a sub-code that clients look for, and ends with the time, so that a report can be matched
with a log.

Faults as the administration endpoint shows them: it belongs to the namespace, so only the namespace's own
fault counts.

The control routes never take part, or nobody could end a fault.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import parse_qsl

from aiohttp import web

from pairbus.embedded import websocket
from pairbus.embedded.administration.atom import Page
from pairbus.embedded.administration.control import Control
from pairbus.embedded.administration.elements import escape
from pairbus.embedded.administration.operations import Call, Kind, Operations, Target, parse_target
from pairbus.embedded.clock import Clock
from pairbus.embedded.entities.descriptions import LISTEN, MANAGE
from pairbus.embedded.errors import BrokerError, InvalidError, UnauthorizedError
from pairbus.embedded.faults import SERVER_BUSY, Fault, FaultSwitchboard
from pairbus.embedded.security import Authority

CONTENT_TYPE = "application/xml; charset=utf-8"


def refusal_body(status: int, description: str, now_ms: int) -> bytes:
    moment = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    detail = escape(f"{description} Timestamp:{moment}")
    return f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>".encode()


def describe(error: BrokerError) -> str:
    """The error's sentence behind its sub-code; a refused token speaks for itself."""
    if isinstance(error, UnauthorizedError):
        return error.description
    return f"SubCode={error.http_status}00. {error.description}"


class ServerBusyError(BrokerError):
    condition = SERVER_BUSY
    http_status = 503


def _known_errors() -> list[type[BrokerError]]:
    return BrokerError.__subclasses__()


_BY_CONDITION = {known.condition: known for known in _known_errors()}


class Troubles:
    def __init__(self, faults: FaultSwitchboard) -> None:
        self._faults = faults

    async def cause(self, request: web.BaseRequest) -> None:
        """Go on, or fail, or take time, as the namespace's fault says."""
        fault = self._faults.fault_of(None)
        if fault is None:
            return
        match fault.mode:
            case "refuse" | "drop":
                _cut(request)
            case "hang":
                await self._ended(fault)
            case "error":
                condition = fault.condition or BrokerError.condition
                raise _BY_CONDITION.get(condition, BrokerError)(f"A fault is switched on: {condition}.")
            case "slow":
                await asyncio.sleep((fault.delay_ms or 0) / 1000)
            case "throttle":
                if not self._faults.lets_through(fault):
                    raise ServerBusyError("A fault is switched on: the server is busy, try again in 10 seconds.")
            case "accept-then-fail":
                pass  # it is about messages

    async def _ended(self, fault: Fault) -> None:
        """Return when this fault is over."""
        changed = asyncio.Event()
        self._faults.listen(changed.set)
        try:
            while self._faults.fault_of(None) == fault:
                changed.clear()
                await changed.wait()
        finally:
            self._faults.unlisten(changed.set)


def _cut(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionAbortedError("A fault is switched on: the connection is cut.")


MAX_BODY_BYTES = 1024 * 1024
BODY_TIMEOUT_S = 30.0
SHUTDOWN_TIMEOUT_S = 0.5
OLDEST_API_VERSION = "2017-04"

_API_VERSION = re.compile(r"\d{4}-\d{2}", re.ASCII)
_log = logging.getLogger(__name__)


class Endpoint:
    def __init__(
        self,
        operations: Operations,
        control: Control,
        authority: Authority,
        faults: FaultSwitchboard,
        clock: Clock,
        name: str,
        amqp: Callable[[], asyncio.Protocol],
    ) -> None:
        self._operations = operations
        self._control = control
        self._authority = authority
        self._troubles = Troubles(faults)
        self._clock = clock
        self._name = name
        self._amqp = amqp
        # Compressed bodies stay compressed, and so are refused: nobody sends them, and they hide their size.
        self._server = web.Server(self._answer, access_log=None, auto_decompress=False, handler_cancellation=True)

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one new connection."""
        return self._server()

    async def close(self) -> None:
        await self._server.shutdown(timeout=SHUTDOWN_TIMEOUT_S)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await self._find_answer(request)
        if not answer.prepared:
            # Whoever compares clocks compares with the namespace's, which a test may own.
            answer.headers["Date"] = formatdate(self._clock.now_ms() / 1000, usegmt=True)
        return answer

    async def _find_answer(self, request: web.BaseRequest) -> web.StreamResponse:
        raw_path, _, raw_query = request.raw_path.partition("?")
        if raw_path == websocket.PATH:
            return await websocket.carry_amqp(request, self._amqp)
        try:
            target = parse_target(raw_path)
            query = dict(parse_qsl(raw_query, keep_blank_values=True, max_num_fields=32))
            if target.kind is Kind.CONTROL:
                return await self._control.answer(request, target, query, await _body(request))
            return await self._administer(request, target, query)
        except BrokerError as error:
            return self._refuse(error.http_status, describe(error))
        except TimeoutError:
            return self._refuse(408, f"SubCode=40800. The body did not arrive within {BODY_TIMEOUT_S:.0f} s.")
        except ConnectionAbortedError as error:
            # Nobody is left to read the answer.
            return self._refuse(503, str(error))
        except ValueError as error:
            return self._refuse(400, f"SubCode=40000. The request cannot be read: {error}.")
        except Exception:  # the outermost frame of a request: a bug must not take the connection down
            _log.exception("A request to %s failed.", raw_path[:256])
            return self._refuse(500, "SubCode=50000. The server failed to answer; its log says why.")

    async def _administer(self, request: web.BaseRequest, target: Target, query: dict[str, str]) -> web.StreamResponse:
        await self._troubles.cause(request)
        now_ms = self._clock.now_ms()
        self._require_right(request, target, now_ms)
        page = Page(self._name, request.headers.get("Host", "localhost"), _api_version(query))
        body = await _body(request)
        call = Call(request.method, target, query, request.headers, body, page, now_ms)
        reply = await self._operations.run(call)
        headers = {"Content-Type": reply.content_type}
        if reply.etag is not None:
            headers["ETag"] = reply.etag
        return web.Response(status=reply.status, body=reply.body.encode(), headers=headers)

    def _require_right(self, request: web.BaseRequest, target: Target, now_ms: int) -> None:
        token = request.headers.get("Authorization")
        if not token:
            raise UnauthorizedError("MissingToken: The request has no Authorization header with a token.")
        grant = self._authority.check(token, target.path, now_ms)
        right = LISTEN if target.kind in (Kind.RULE, Kind.RULES) else MANAGE
        if not grant.allows(target.path, right):
            raise UnauthorizedError(f"MissingClaim: {right} claim is required for this operation on '{target.path}'.")

    def _refuse(self, status: int, description: str) -> web.Response:
        body = refusal_body(status, description, self._clock.now_ms())
        return web.Response(status=status, body=body, headers={"Content-Type": CONTENT_TYPE})


def _api_version(query: dict[str, str]) -> str:
    version = query.get("api-version", OLDEST_API_VERSION)
    if _API_VERSION.fullmatch(version) is None:
        raise InvalidError(f"api-version is '{version[:64]}': expected a version such as 2021-05.")
    return version


async def _body(request: web.BaseRequest) -> bytes:
    """The whole body, if it is small and arrives in time."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise InvalidError("The body is compressed: send it as it is.")
    chunks: list[bytes] = []
    size = 0
    async with asyncio.timeout(BODY_TIMEOUT_S):
        async for chunk in request.content.iter_any():
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise InvalidError(f"The body has more than {MAX_BODY_BYTES} bytes.")
            chunks.append(chunk)
    return b"".join(chunks)
