"""Which connections may stay. Most places are for peers that have proven their rights.

A connection is unproven until its peer shows a valid token or key; over HTTP, except while a request with a valid token
is being answered. So one deadline covers everything that a stranger can do slowly: the TLS handshake, HTTP headers and
bodies, the pause between two requests, requests that need no token, a web socket without a token, an AMQP connection
that only opens.

- A connection that stays unproven for `unproven_s` is closed.
- At most half of `max_connections` are unproven. A new connection takes the place of the one that has been unproven
  longest. Refusing the new one instead would let a stranger hold all places; this way, a stranger has to open half of
  `max_connections` in the milliseconds that a client needs to prove its rights. Without a free file descriptor the same
  happens, however few connections there are.
- Proven connections are never closed for others. If they fill `max_connections`, a new connection is refused.
"""

import asyncio
import socket
from collections.abc import Callable


class Admission:
    def __init__(self, max_connections: int, unproven_s: float) -> None:
        self._max_connections = max_connections
        self._unproven_s = unproven_s
        self._close: dict[int, tuple[socket.socket, Callable[[socket.socket], None]]] = {}
        self._unproven: dict[int, asyncio.TimerHandle] = {}  # in the order in which they became unproven

    def make_room(self, connections: int) -> bool:
        """Make room for one more than so many open connections; False if they leave none."""
        self._forget_closed()
        if connections < self._max_connections and len(self._unproven) < max(1, self._max_connections // 2):
            return True
        return self.evict()

    def evict(self) -> bool:
        """Close the connection that has been unproven longest; False if there is none."""
        self._forget_closed()
        if not self._unproven:
            return False
        self._end(next(iter(self._unproven)))
        return True

    def add(self, connection: socket.socket, close: Callable[[socket.socket], None]) -> None:
        """Admit a new connection, which `close` ends in whatever state it is then."""
        descriptor = connection.fileno()
        self._forget(descriptor)
        self._close[descriptor] = connection, close
        self._set_deadline(descriptor)

    def set_proven(self, transport: asyncio.BaseTransport | None, proven: bool) -> None:
        """The peer has proven its rights, or they have ended."""
        connection = None if transport is None else transport.get_extra_info("socket")
        descriptor = -1 if connection is None else connection.fileno()
        if descriptor not in self._close or (not proven and descriptor in self._unproven):
            return  # the deadline of an unproven peer stays, whatever it is answered
        timer = self._unproven.pop(descriptor, None)
        if timer is not None:
            timer.cancel()
        if not proven:
            self._set_deadline(descriptor)

    def close(self) -> None:
        for descriptor in list(self._close):
            self._forget(descriptor)

    def _forget_closed(self) -> None:
        for descriptor in [fd for fd, (connection, _) in self._close.items() if connection.fileno() != fd]:
            self._forget(descriptor)

    def _set_deadline(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        self._unproven[descriptor] = loop.call_later(self._unproven_s, self._end, descriptor)

    def _end(self, descriptor: int) -> None:
        connection, close = self._close[descriptor]
        self._forget(descriptor)
        if connection.fileno() == descriptor:
            close(connection)

    def _forget(self, descriptor: int) -> None:
        self._close.pop(descriptor, None)
        timer = self._unproven.pop(descriptor, None)
        if timer is not None:
            timer.cancel()
