"""PURE. The SASL exchange before AMQP itself (OASIS AMQP 1.0, part 5, 5.3).

Most clients are anonymous here and prove their rights later, with tokens. Plain AMQP clients may log in with the name
and key of an authorization rule (PLAIN).

- The server offers ANONYMOUS, MSSBCBS and EXTERNAL and accepts them all: they prove nothing. It offers PLAIN if a
  `Login` can check it. A wrong key ends the exchange.
- The client chooses ANONYMOUS and says so at once, without waiting for the offer.
- A peer that starts with the AMQP header skips this layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.types import AmqpDecodeError, Array, Described, Symbol, UByte, ULong

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
MECHANISMS = ("ANONYMOUS", "MSSBCBS", "EXTERNAL")
PLAIN = "PLAIN"
MAX_FRAME = 4096

_MECHANISMS, _INIT, _OUTCOME = 0x40, 0x41, 0x44


class SaslError(Exception):
    """The peer broke the SASL protocol or was refused. ``reply`` is to be sent before the connection ends."""

    def __init__(self, message: str, reply: bytes = b"") -> None:
        super().__init__(message)
        self.reply = reply


Login = Callable[[str, str], bool]
"""Checks a name and a key."""


def _frame(code: int, fields: list[Any]) -> bytes:
    body = encode(Described(ULong(code), fields))
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body


class SaslExchange:
    """One side of the exchange: bytes in, bytes out, until ``done``. Then ``rest`` belongs to AMQP."""

    def __init__(self, *, server: bool, login: Login | None = None) -> None:
        self._server = server
        self._login = login
        self._mechanisms = MECHANISMS if login is None else (*MECHANISMS, PLAIN)
        self._buffer = b""
        self._saw_header = False
        self.done = False

    @property
    def rest(self) -> bytes:
        return self._buffer

    def start(self) -> bytes:
        """The bytes to send before anything is received."""
        if self._server:
            return b""
        return SASL_HEADER + _frame(_INIT, [Symbol("ANONYMOUS"), b"anonymous"])

    def feed(self, data: bytes) -> bytes:
        """Take received bytes and return the answer. Raises SaslError."""
        self._buffer += data
        out = b""
        if not self._saw_header:
            if len(self._buffer) < 8:
                return b""
            header = self._buffer[:8]
            if header == AMQP_HEADER and self._server:
                self.done = True
                return b""
            if header != SASL_HEADER:
                raise SaslError("the peer does not speak AMQP 1.0", SASL_HEADER)
            self._saw_header = True
            self._buffer = self._buffer[8:]
            if self._server:
                offer = Array(0xB3, [Symbol(name) for name in self._mechanisms])
                out = SASL_HEADER + _frame(_MECHANISMS, [offer])
        while not self.done and len(self._buffer) >= 8:
            size = int.from_bytes(self._buffer[:4], "big")
            if not 8 <= size <= MAX_FRAME or self._buffer[5] != 1:
                raise SaslError("the peer sent a malformed SASL frame", out)
            if len(self._buffer) < size:
                break
            frame, self._buffer = self._buffer[:size], self._buffer[size:]
            try:
                out += self._take(frame)
            except SaslError as error:
                # A peer that sent everything at once has not seen our offer yet.
                raise SaslError(str(error), out + error.reply) from None
        return out

    def _take(self, frame: bytes) -> bytes:
        try:
            value, _ = decode(frame, frame[4] * 4)
        except AmqpDecodeError as error:
            raise SaslError(f"the peer sent a malformed SASL frame: {error}") from None
        if not isinstance(value, Described) or not isinstance(value.value, list):
            raise SaslError("the peer sent a malformed SASL frame")
        fields = value.value
        if self._server and value.descriptor == _INIT:
            if not fields or fields[0] not in self._mechanisms:
                raise SaslError(
                    f"the peer chose {fields[:1]}, which is not one of {self._mechanisms}", _frame(_OUTCOME, [UByte(1)])
                )
            if fields[0] == PLAIN and not self._is_valid_login(fields[1] if len(fields) > 1 else None):
                raise SaslError("the peer logged in with a wrong name or key", _frame(_OUTCOME, [UByte(1)]))
            self.done = True
            return _frame(_OUTCOME, [UByte(0)])
        if not self._server and value.descriptor == _OUTCOME:
            if not fields or fields[0] != 0:
                raise SaslError("the server refused the anonymous SASL login")
            self.done = True
            return b""
        if not self._server and value.descriptor == _MECHANISMS:
            return b""
        raise SaslError("the peer sent a SASL frame out of turn")

    def _is_valid_login(self, response: Any) -> bool:
        """Check the response of PLAIN: an identity to act as (unused), a name and a key, separated by NUL."""
        parts = response.split(b"\0") if isinstance(response, bytes) else []
        if len(parts) != 3 or self._login is None:
            return False
        return self._login(parts[1].decode("utf-8", "replace"), parts[2].decode("utf-8", "replace"))
