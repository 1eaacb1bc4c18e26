"""One port for several protocols: the first byte of a connection tells which one it speaks.

`A` begins the AMQP header, 0x16 a TLS handshake; anything else is HTTP. The byte is peeked, so each protocol reads its
connection from the start. Inside TLS the first byte decides again: AMQP over TLS, which the SDKs use outside their
emulator mode, or HTTPS.

Limits: a connection that is silent for `FIRST_BYTE_TIMEOUT_S`, or does not finish its TLS handshake in time, is closed.
`Admission` bounds the number of connections, and decides which one is closed to make room.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from pairbus.embedded.admission import Admission

FIRST_BYTE_TIMEOUT_S = 10.0
TLS_HANDSHAKE_TIMEOUT_S = 10.0
BACKLOG = 512
ACCEPTS_PER_WAKE = 64
ACCEPT_PAUSE_S = 1.0
TLS_CLOSE_S = 1.0
CLOSE_S = 0.2
CLOSE_ROUNDS = 50

AMQP_FIRST_BYTE = b"A"
TLS_FIRST_BYTE = b"\x16"

_log = logging.getLogger(__name__)

ProtocolFactory = Callable[[], asyncio.Protocol]


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to this address that does not listen yet. Raises OSError if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind((host, port))
    except (OSError, OverflowError):
        bound.close()
        raise
    return bound


class Listener:
    """Accepts connections on one address and gives each one its protocol."""

    def __init__(
        self,
        *,
        amqp: ProtocolFactory,
        http: ProtocolFactory,
        tls: ssl.SSLContext,
        admission: Admission,
        first_byte_timeout_s: float = FIRST_BYTE_TIMEOUT_S,
    ) -> None:
        self._amqp = amqp
        self._http = http
        self._tls = tls
        self._admission = admission
        self._first_byte_timeout_s = first_byte_timeout_s
        self._socket: socket.socket | None = None
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handovers: dict[socket.socket, asyncio.Task[None]] = {}
        self._open: dict[socket.socket, asyncio.Transport] = {}

    @property
    def port(self) -> int:
        if self._socket is None:
            raise RuntimeError("The listener has a port only between start() and close().")
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def connection_count(self) -> int:
        """The number of open connections, in any state. A socket without a descriptor belongs to a closed one."""
        for connection in [connection for connection in self._open if connection.fileno() < 0]:
            del self._open[connection]
        return len(self._waiting) + len(self._handovers) + len(self._open)

    def start(self, bound: socket.socket) -> None:
        """Accept connections on a socket made by `bind`. Raises OSError if another process listens there."""
        bound.listen(BACKLOG)
        self._socket = bound
        asyncio.get_running_loop().add_reader(bound, self._accept)

    async def stop_accepting(self) -> None:
        """Accept no new connections. Close those that have not shown their protocol yet."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for connection in list(self._waiting):
            self._forget(connection)
            connection.close()
        tasks = list(self._handovers.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def transports(self) -> list[asyncio.Transport]:
        """The open connections, so that each can be closed in its protocol's way."""
        return [transport for transport in self._open.values() if not transport.is_closing()]

    async def close(self) -> None:
        """Stop. Open connections get a moment to send what they have written, then they are cut."""
        await self.stop_accepting()
        await asyncio.sleep(0)
        for transport in self._open.values():
            # A TLS transport that is closed twice ignores the abort below.
            if not transport.is_closing():
                transport.close()
        await self._all_gone(rounds=CLOSE_ROUNDS, pause_s=CLOSE_S / CLOSE_ROUNDS)
        for connection, transport in self._open.items():
            transport.abort()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        await self._all_gone(rounds=CLOSE_ROUNDS, pause_s=0)
        self._admission.close()

    async def _all_gone(self, *, rounds: int, pause_s: float) -> None:
        """Wait a limited time for connections to end. Transports report it in later turns of the loop."""
        for _ in range(rounds):
            if not self.connection_count:
                return
            await asyncio.sleep(pause_s)

    def _accept(self) -> None:
        for accepted in range(ACCEPTS_PER_WAKE):
            if self._socket is None:
                return
            try:
                connection, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                # Without a free descriptor, `accept` fails even if nobody waits. At first, somebody does.
                # An evicted connection gives its descriptor back in the next turn of the loop.
                if not accepted and not self._admission.evict():
                    self._pause_accepting(error)
                return
            self._add(connection)

    def _pause_accepting(self, error: OSError) -> None:
        """Out of file descriptors. The listening socket stays readable, so without a pause this would spin."""
        _log.warning("Cannot accept connections for %s s: %s", ACCEPT_PAUSE_S, error.strerror)
        loop = asyncio.get_running_loop()
        listening = self._socket
        assert listening is not None
        loop.remove_reader(listening)

        def resume() -> None:
            if self._socket is listening:
                loop.add_reader(listening, self._accept)

        loop.call_later(ACCEPT_PAUSE_S, resume)

    def _add(self, connection: socket.socket) -> None:
        if not self._admission.make_room(self.connection_count):
            _log.warning("Closed a new connection: the limit of connections is reached.")
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waiting[connection] = loop.call_later(self._first_byte_timeout_s, self._close_silent, connection)
        loop.add_reader(connection, self._peek_first_byte, connection)
        self._admission.add(connection, self._cut)

    def _close_silent(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _cut(self, connection: socket.socket) -> None:
        """Close a connection in any state."""
        if connection in self._waiting:
            self._close_silent(connection)
        elif connection in self._handovers:
            self._handovers[connection].cancel()
        elif connection in self._open:
            self._open[connection].abort()

    def _forget(self, connection: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(connection)
        self._waiting.pop(connection).cancel()

    def _peek_first_byte(self, connection: socket.socket) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._forget(connection)
        if not first:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._hand_over(connection, first))
        self._handovers[connection] = task
        task.add_done_callback(lambda _: self._handovers.pop(connection, None))

    def _tls_protocol(self) -> asyncio.Protocol:
        return _FirstByteInsideTls(self._amqp, self._http, self._first_byte_timeout_s)

    async def _hand_over(self, connection: socket.socket, first: bytes) -> None:
        tls = self._tls if first == TLS_FIRST_BYTE else None
        factory = self._tls_protocol if tls else self._amqp if first == AMQP_FIRST_BYTE else self._http
        try:
            transport, _protocol = await asyncio.get_running_loop().connect_accepted_socket(
                factory,
                connection,
                ssl=tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S if tls else None,
                ssl_shutdown_timeout=TLS_CLOSE_S if tls else None,
            )
        except (OSError, ssl.SSLError) as error:
            # The client left, or does not trust the certificate. Neither is an error of the server.
            _log.debug("A connection ended during its TLS handshake: %s", error)
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise
        else:
            self._open[connection] = transport


class _FirstByteInsideTls(asyncio.Protocol):
    """Reads the first decrypted bytes and replaces itself by the protocol they begin."""

    def __init__(self, amqp: ProtocolFactory, http: ProtocolFactory, timeout_s: float) -> None:
        self._amqp = amqp
        self._http = http
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._silence_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._silence_timer = asyncio.get_running_loop().call_later(self._timeout_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        assert self._silence_timer is not None
        self._silence_timer.cancel()
        protocol = (self._amqp if data.startswith(AMQP_FIRST_BYTE) else self._http)()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
