"""PURE. AMQP errors and delivery states, and the exceptions of an AMQP client.

OASIS AMQP 1.0, part 2, 2.8.14 error; part 3, 3.4 delivery state; part 4, 4.5.5 declared and 4.5.6 transactional-state.

AmqpClientError
├── LinkLostError       the link or its connection ended; operations in flight are in doubt
├── RefusedError        the peer refused a message or a settlement; the link remains open
└── TokenRefusedError   the peer refused a token
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pairbus.amqp.conditions import NOT_FOUND, UNAUTHORIZED
from pairbus.amqp.types import Described, Symbol, ULong

ACCEPTED = 0x24
REJECTED = 0x25
RELEASED = 0x26
MODIFIED = 0x27
DECLARED = 0x33
TRANSACTIONAL = 0x34


@dataclass(frozen=True, slots=True)
class AmqpError:
    """An error on the wire. ``info`` is never sent empty: clients expect all three fields and fail on two."""

    condition: str
    description: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}" if self.description else self.condition

    def wire_info(self) -> dict[Symbol, Any]:
        pairs = {Symbol(key): value for key, value in self.info.items()}
        return pairs or {Symbol("condition"): self.condition}


@dataclass(frozen=True, slots=True)
class Accepted:
    code = ACCEPTED


@dataclass(frozen=True, slots=True)
class Released:
    code = RELEASED


@dataclass(frozen=True, slots=True)
class Rejected:
    code = REJECTED
    error: AmqpError | None = None


@dataclass(frozen=True, slots=True)
class Modified:
    code = MODIFIED
    delivery_failed: bool = False
    undeliverable_here: bool = False
    annotations: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declared:
    """The coordinator's answer to ``declare``."""

    code = DECLARED
    txn: bytes


@dataclass(frozen=True, slots=True)
class Transactional:
    """An outcome that takes effect when its transaction is discharged."""

    code = TRANSACTIONAL
    txn: bytes
    outcome: Outcome | None = None


Outcome = Accepted | Released | Rejected | Modified
State = Outcome | Declared | Transactional


def outcome_value(outcome: Outcome | None) -> Described | None:
    """The described value of an outcome inside a transactional state."""
    if outcome is None:
        return None
    fields: list[Any] = []
    if isinstance(outcome, Rejected) and outcome.error is not None:
        error = outcome.error
        fields = [Described(ULong(0x1D), [Symbol(error.condition), error.description, error.wire_info()])]
    elif isinstance(outcome, Modified):
        annotations = {Symbol(key): value for key, value in outcome.annotations.items()}
        fields = [outcome.delivery_failed, outcome.undeliverable_here, annotations]
    return Described(ULong(outcome.code), fields)


def outcome_from_value(value: Any) -> Outcome | None:
    """The outcome inside a transactional state. None if there is none, or if it is unknown."""
    if not isinstance(value, Described):
        return None
    fields = list(value.value) if isinstance(value.value, list) else []
    code = value.descriptor
    match _OUTCOME_CODES.get(code) if isinstance(code, str) else code:
        case 0x24:
            return Accepted()
        case 0x25:
            return Rejected(error_from_value(fields[0]) if fields else None)
        case 0x26:
            return Released()
        case 0x27:
            fields += [None] * (3 - len(fields))
            return Modified(bool(fields[0]), bool(fields[1]), text_map(fields[2]))
    return None


_OUTCOME_CODES = {
    "amqp:accepted:list": ACCEPTED,
    "amqp:rejected:list": REJECTED,
    "amqp:released:list": RELEASED,
    "amqp:modified:list": MODIFIED,
}


def error_from_value(value: Any) -> AmqpError | None:
    fields = list(value.value) if isinstance(value, Described) and isinstance(value.value, list) else []
    if not fields:
        return None
    fields += [None] * (3 - len(fields))
    return AmqpError(str(fields[0]), str(fields[1] or ""), text_map(fields[2]))


def text_map(value: Any) -> dict[str, Any]:
    """A map of a peer with its keys as text; empty if the value is not a map."""
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


class AmqpClientError(Exception):
    """The peer or the network refused; ``error`` is the reason."""

    def __init__(self, error: AmqpError) -> None:
        super().__init__(str(error))
        self.error = error

    @property
    def condition(self) -> str:
        return self.error.condition


class LinkLostError(AmqpClientError):
    """The link or its connection ended. Operations in flight are in doubt."""


class RefusedError(AmqpClientError):
    """The peer refused this message or settlement. The link remains open."""


class TokenRefusedError(AmqpClientError):
    """The peer refused a token with ``status``: 401, or 404 for an entity that does not exist."""

    def __init__(self, status: int, description: str) -> None:
        super().__init__(AmqpError(NOT_FOUND if status == 404 else UNAUTHORIZED, description))
        self.status = status


class TokenUnavailableError(Exception):
    """The credential produced no token, so the peer was not asked. The cause is the credential's own error."""
