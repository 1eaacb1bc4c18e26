"""An AMQP engine inside asyncio: the only place where `pairbus.amqp` touches a socket, a loop or a clock.

Servers and clients use the same class. Output is written once per turn of the loop, so many answers share a write.
Backpressure works both ways: while the peer does not read, it is not read from either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import inf
from typing import Protocol, cast

from pairbus.amqp.engine import Engine, Event
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.types import AmqpDecodeError


class EventHandler(Protocol):
    """The owner of a connection. It is called on the loop, synchronously."""

    def handle(self, event: Event) -> None: ...
    def writing_paused(self, paused: bool) -> None: ...


class AmqpProtocol(asyncio.Protocol):
    def __init__(self, engine: Engine, owner: EventHandler) -> None:
        self.engine = engine
        self.owner = owner
        self.writing_is_paused = False
        self._socket: asyncio.Transport | None = None
        self._flush_scheduled = False
        self._reading_holds = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = inf

    # --- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        if self.engine.lost:
            self._socket.abort()
            return
        self._socket.set_write_buffer_limits(high=self.engine.limits.write_buffer)
        self._loop = asyncio.get_running_loop()
        self.engine.wake = self._schedule_flush
        self.engine.start(self._loop.time())
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._handle(self.engine.receive_data(data, self._loop.time()))

    def eof_received(self) -> bool:
        self._handle(self.engine.receive_eof(self._loop.time()))
        return False

    def pause_writing(self) -> None:
        self.writing_is_paused = True
        self.hold_reading()
        self.owner.writing_paused(True)

    def resume_writing(self) -> None:
        self.writing_is_paused = False
        self.release_reading()
        self.flush()
        if not self.engine.lost:
            self.owner.writing_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for event in self.engine.connection_lost(str(exc) if exc else ""):
            self.owner.handle(event)

    # --- for the owner ------------------------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._socket

    def hold_reading(self) -> None:
        """Stop reading from the peer until `release_reading` was called as often."""
        self._reading_holds += 1
        if self._reading_holds == 1 and self._socket is not None and not self._socket.is_closing():
            self._socket.pause_reading()

    def release_reading(self) -> None:
        self._reading_holds -= 1
        if self._reading_holds == 0 and self._socket is not None and not self._socket.is_closing():
            self._socket.resume_reading()

    def close(self, error: AmqpError | None = None) -> None:
        """Close as the protocol provides. `ConnectionLost` follows."""
        self.engine.close(self._loop.time(), error)

    def abort(self) -> None:
        """Cut the connection without a word, as a broken network would."""
        if self._socket is None:
            self.connection_lost(None)
        elif not self.engine.lost:
            self._socket.abort()

    def flush(self) -> None:
        """Write what the engine has to send, as far as the socket takes it."""
        engine = self.engine
        while not self.writing_is_paused and (data := engine.data_to_send()):
            self._write(data)
        if engine.aborted:
            self.abort()
        elif engine.finished and self._socket is not None:
            self._socket.close()
        deadline = engine.next_deadline
        if deadline is not None and deadline < self._timer_due:
            self._set_timer(deadline)

    # --- inside -------------------------------------------------------------------------------------------

    def _handle(self, events: Iterable[Event]) -> None:
        handle = self.owner.handle
        try:
            for event in events:
                handle(event)
        except AmqpDecodeError as error:
            # A value in a frame of the peer, such as a link property or an outcome, is malformed.
            self.close(AmqpError("amqp:decode-error", f"A frame could not be understood: {error}."))
        self.flush()

    def _write(self, data: bytes) -> None:
        if self._socket is not None and not self._socket.is_closing():
            self._socket.write(data)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and not self.engine.lost:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_scheduled = False
        if not self.engine.lost:
            self._handle(self.engine.events())

    def _set_timer(self, deadline: float) -> None:
        """A timer may come early, after its deadline has moved on: then it is set again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = deadline
        self._timer = self._loop.call_at(deadline, self._timed_out)

    def _timed_out(self) -> None:
        self._timer, self._timer_due = None, inf
        if not self.engine.lost:
            self._handle(self.engine.handle_timeout(self._loop.time()))
