"""Which errors count against an entity.

The shell describes an error (the names of its classes, its AMQP condition, whether it may be retried) and
gets a verdict; nothing here knows the SDK. The first row of `VERDICTS` that matches decides; no match
means: not counted, because an error nobody described is more likely a mistake in the program than trouble
of the entity.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    COUNTS = "counts against the entity"
    DOES_NOT_COUNT = "is raised to the caller, the entity's state stays"
    BUSY = "is waited for and tried again"


@dataclass(frozen=True, slots=True)
class ErrorDescription:
    """What a shell tells about an error.

    Names of its class and all its bases, AMQP condition, retryable or not.
    """

    class_names: frozenset[str]
    condition: str = ""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    class_name: str
    verdict: Verdict
    why: str
    condition: str = ""
    retryable: bool | None = None

    def matches(self, error: ErrorDescription) -> bool:
        return (
            self.class_name in error.class_names
            and (not self.condition or self.condition == error.condition)
            and (self.retryable is None or self.retryable is error.retryable)
        )


_MESSAGE = "this message is wrong, not the entity"
_SETUP = "the client is set up wrong"
_REACH = "the entity is out of reach"
_LASTING = "lasting, and not the caller's fault"

BUSY_PAUSE_SECONDS = 10.0
"""How long to wait before a send that found the server busy is tried again."""

VERDICTS: tuple[Row, ...] = (
    Row("ServiceBusServerBusyError", Verdict.BUSY, "the server asks for a pause"),
    Row("ServiceBusAuthenticationError", Verdict.DOES_NOT_COUNT, _SETUP),
    Row("ServiceBusAuthorizationError", Verdict.DOES_NOT_COUNT, _SETUP),
    Row("ClientAuthenticationError", Verdict.DOES_NOT_COUNT, _SETUP),
    Row("MessagingEntityNotFoundError", Verdict.DOES_NOT_COUNT, _SETUP),
    Row("MessageSizeExceededError", Verdict.DOES_NOT_COUNT, _MESSAGE),
    Row("ServiceBusConnectionError", Verdict.COUNTS, _REACH),
    Row("ServiceBusCommunicationError", Verdict.COUNTS, _REACH),
    Row("OperationTimeoutError", Verdict.COUNTS, "named by the feature's definition"),
    Row("MessagingEntityDisabledError", Verdict.COUNTS, _LASTING),
    Row("ServiceBusQuotaExceededError", Verdict.COUNTS, _LASTING),
    Row("ServiceBusError", Verdict.DOES_NOT_COUNT, _MESSAGE, condition="amqp:decode-error"),
    Row("ServiceBusError", Verdict.DOES_NOT_COUNT, _MESSAGE, condition="amqp:not-allowed"),
    Row("ServiceBusError", Verdict.DOES_NOT_COUNT, _MESSAGE, condition="com.microsoft:argument-error"),
    Row("ServiceBusError", Verdict.DOES_NOT_COUNT, _MESSAGE, condition="com.microsoft:argument-out-of-range"),
    Row("ServiceBusError", Verdict.COUNTS, _LASTING, condition="amqp:internal-error"),
    Row("ServiceBusError", Verdict.COUNTS, "the definition: non-transient", retryable=False),
    Row("TimeoutError", Verdict.COUNTS, "a timeout of ours"),
    Row("ConnectionError", Verdict.COUNTS, _REACH),
)


def verdict(error: ErrorDescription) -> Verdict:
    """What the error says about the entity it was raised for."""
    for row in VERDICTS:
        if row.matches(error):
            return row.verdict
    return Verdict.DOES_NOT_COUNT
