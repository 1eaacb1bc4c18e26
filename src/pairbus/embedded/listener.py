"""One port, several protocols: a connection's first byte says which.

`A` begins AMQP's header (`AMQP…`), 0x16 a TLS handshake, anything else is HTTP. The byte is looked at, not
taken, so each protocol reads its connection from the start. Inside TLS the first byte decides again: AMQP
over TLS, which is what the SDKs speak outside their emulator mode, or HTTPS.

Bounds: a connection that stays silent for `FIRST_BYTE_TIMEOUT_S`, or does not finish its TLS handshake in
time, is closed; beyond `max_connections` a new one is closed as soon as it is accepted, before it costs
anything.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable

FIRST_BYTE_TIMEOUT_S = 10.0
TLS_HANDSHAKE_TIMEOUT_S = 10.0
BACKLOG = 512
ACCEPTS_PER_WAKE = 64
ACCEPT_PAUSE_S = 1.0
TLS_GOODBYE_S = 1.0
GOODBYE_S = 0.2
GOODBYE_ROUNDS = 50

AMQP_FIRST_BYTE = b"A"
TLS_FIRST_BYTE = b"\x16"

_log = logging.getLogger(__name__)

ProtocolFactory = Callable[[], asyncio.Protocol]


def bind(host: str, port: int) -> socket.socket:
    """A socket that has this address and takes no connections yet; OSError when the address cannot be had."""
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
    """Accepts on one address and hands each connection to the protocol it speaks."""

    def __init__(
        self,
        *,
        amqp: ProtocolFactory,
        http: ProtocolFactory,
        tls: ssl.SSLContext,
        max_connections: int,
        first_byte_timeout_s: float = FIRST_BYTE_TIMEOUT_S,
    ) -> None:
        self._amqp = amqp
        self._http = http
        self._tls = tls
        self._max_connections = max_connections
        self._first_byte_timeout_s = first_byte_timeout_s
        self._socket: socket.socket | None = None
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handing_over: set[asyncio.Task[None]] = set()
        self._open: dict[socket.socket, asyncio.Transport] = {}

    @property
    def port(self) -> int:
        if self._socket is None:
            raise RuntimeError("The listener has no port before start() and after close().")
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def connection_count(self) -> int:
        """Connections now open, in whatever state. A transport closes its socket when it ends: that is the
        sign.
        """
        for connection in [connection for connection in self._open if connection.fileno() < 0]:
            del self._open[connection]
        return len(self._waiting) + len(self._handing_over) + len(self._open)

    def start(self, bound: socket.socket) -> None:
        """Accept from now on, on a socket of `bind`; OSError when somebody else does."""
        bound.listen(BACKLOG)
        self._socket = bound
        asyncio.get_running_loop().add_reader(bound, self._accept)

    async def stop_accepting(self) -> None:
        """Take no new connections; those that have not shown their protocol yet end."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for connection in list(self._waiting):
            self._forget(connection)
            connection.close()
        for task in list(self._handing_over):
            task.cancel()
        if self._handing_over:
            await asyncio.wait(self._handing_over)

    def protocols(self) -> list[asyncio.BaseProtocol]:
        """The protocols of the open connections, for whoever wants to say goodbye in their own way."""
        return [transport.get_protocol() for transport in self._open.values() if not transport.is_closing()]

    async def close(self) -> None:
        """Stop; what is open gets a moment to send what it has written, then it is cut."""
        await self.stop_accepting()
        await asyncio.sleep(0)
        for transport in self._open.values():
            # Closing twice would make a TLS transport deaf to the abort below.
            if not transport.is_closing():
                transport.close()
        await self._all_gone(rounds=GOODBYE_ROUNDS, pause_s=GOODBYE_S / GOODBYE_ROUNDS)
        for connection, transport in self._open.items():
            transport.abort()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        await self._all_gone(rounds=GOODBYE_ROUNDS, pause_s=0)

    async def _all_gone(self, *, rounds: int, pause_s: float) -> None:
        """Wait a limited time for connections to end: transports tell their protocols in later rounds of the loop."""
        for _ in range(rounds):
            if not self.connection_count:
                return
            await asyncio.sleep(pause_s)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKE):
            if self._socket is None:
                return
            try:
                connection, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._pause_accepting(error)
                return
            self._welcome(connection)

    def _pause_accepting(self, error: OSError) -> None:
        """Out of file descriptors: the next connection stays readable, so without a pause this would spin."""
        _log.warning("Cannot accept connections for %s s: %s", ACCEPT_PAUSE_S, error.strerror)
        loop = asyncio.get_running_loop()
        listening = self._socket
        assert listening is not None
        loop.remove_reader(listening)

        def resume() -> None:
            if self._socket is listening:
                loop.add_reader(listening, self._accept)

        loop.call_later(ACCEPT_PAUSE_S, resume)

    def _welcome(self, connection: socket.socket) -> None:
        if self.connection_count >= self._max_connections:
            _log.warning("Closed a new connection: %s are open already.", self._max_connections)
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waiting[connection] = loop.call_later(self._first_byte_timeout_s, self._give_up, connection)
        loop.add_reader(connection, self._look, connection)

    def _give_up(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(connection)
        self._waiting.pop(connection).cancel()

    def _look(self, connection: socket.socket) -> None:
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
        self._handing_over.add(task)
        task.add_done_callback(self._handing_over.discard)

    def _inside_tls(self) -> asyncio.Protocol:
        return _FirstByteInsideTls(self._amqp, self._http, self._first_byte_timeout_s)

    async def _hand_over(self, connection: socket.socket, first: bytes) -> None:
        tls = self._tls if first == TLS_FIRST_BYTE else None
        factory = self._inside_tls if tls else self._amqp if first == AMQP_FIRST_BYTE else self._http
        try:
            transport, _protocol = await asyncio.get_running_loop().connect_accepted_socket(
                factory,
                connection,
                ssl=tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S if tls else None,
                ssl_shutdown_timeout=TLS_GOODBYE_S if tls else None,
            )
        except (OSError, ssl.SSLError) as error:
            # The client went away or does not trust us: its own trouble, worth no more than a word.
            _log.debug("A connection ended in its TLS handshake: %s", error)
            connection.close()
        else:
            self._open[connection] = transport


class _FirstByteInsideTls(asyncio.Protocol):
    """Reads the first decrypted bytes, then becomes the protocol they begin and hands them on."""

    def __init__(self, amqp: ProtocolFactory, http: ProtocolFactory, timeout_s: float) -> None:
        self._amqp = amqp
        self._http = http
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._silence = asyncio.get_running_loop().call_later(self._timeout_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        assert self._silence is not None
        self._silence.cancel()
        protocol = (self._amqp if data.startswith(AMQP_FIRST_BYTE) else self._http)()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._silence is not None:
            self._silence.cancel()
