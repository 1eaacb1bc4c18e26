"""PURE. Decides which errors count against an entity.

The shell describes an error by the names of its classes, its AMQP condition and whether it is retryable; nothing here
knows the SDK. `amqp.conditions` knows whom a condition blames. The first row of `VERDICTS` that matches decides. An
error that matches no row does not count: it is more likely a mistake in the program than trouble with the entity.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pairbus.amqp.conditions import Blame, meaning


class Verdict(Enum):
    COUNTS = "counts against the entity"
    DOES_NOT_COUNT = "is raised to the caller; the state stays"
    BUSY = "is retried after a pause"


@dataclass(frozen=True, slots=True)
class ErrorDescription:
    """An error as a shell describes it.

    `class_names` holds the names of its class and of all base classes, and those of the errors that it wraps. `status`
    is the status with which the service refused a token; 0 if it refused none.
    """

    class_names: frozenset[str]
    condition: str = ""
    retryable: bool = False
    status: int = 0


@dataclass(frozen=True, slots=True)
class VerdictRow:
    class_name: str
    verdict: Verdict
    why: str
    condition: str = ""
    blame: Blame | None = None
    retryable: bool | None = None
    least_status: int = 0

    def matches(self, error: ErrorDescription) -> bool:
        return (
            self.class_name in error.class_names
            and (not self.condition or self.condition == error.condition)
            and (self.blame is None or self.blame is meaning(error.condition).blame)
            and (self.retryable is None or self.retryable is error.retryable)
            and error.status >= self.least_status
        )


BUSY_PAUSE_SECONDS = 10.0
"""The pause before a send to a busy server is retried."""

_COUNTS, _DOES_NOT_COUNT = Verdict.COUNTS, Verdict.DOES_NOT_COUNT
_MESSAGE = "the message is wrong, not the entity"
_SETUP = "the client is set up wrong"
_REACH = "the entity is out of reach"
_LASTING = "lasting, and not the caller's fault"

VERDICTS: tuple[VerdictRow, ...] = (
    VerdictRow("ServiceBusServerBusyError", Verdict.BUSY, "the server asks for a pause"),
    VerdictRow("TokenAuthFailure", _COUNTS, "the service could not check the token", least_status=500),
    VerdictRow("TokenAuthFailure", _DOES_NOT_COUNT, _SETUP),
    VerdictRow("WebSocketAddressException", _COUNTS, _REACH),
    VerdictRow("ServiceBusAuthenticationError", _DOES_NOT_COUNT, _SETUP),
    VerdictRow("ServiceBusAuthorizationError", _DOES_NOT_COUNT, _SETUP),
    VerdictRow("ClientAuthenticationError", _DOES_NOT_COUNT, _SETUP),
    VerdictRow("MessagingEntityNotFoundError", _DOES_NOT_COUNT, _SETUP),
    VerdictRow("MessageSizeExceededError", _DOES_NOT_COUNT, _MESSAGE),
    VerdictRow("ServiceBusConnectionError", _COUNTS, _REACH),
    VerdictRow("ServiceBusCommunicationError", _COUNTS, _REACH),
    VerdictRow("OperationTimeoutError", _COUNTS, "named by the feature's definition"),
    VerdictRow("MessagingEntityDisabledError", _COUNTS, _LASTING),
    VerdictRow("ServiceBusQuotaExceededError", _COUNTS, _LASTING),
    VerdictRow("ServiceBusError", _DOES_NOT_COUNT, _MESSAGE, blame=Blame.MESSAGE),
    VerdictRow("ServiceBusError", _COUNTS, _LASTING, condition="amqp:internal-error"),
    VerdictRow("ServiceBusError", _COUNTS, "the definition: non-transient", retryable=False),
    VerdictRow("TimeoutError", _COUNTS, "a timeout of ours"),
    VerdictRow("ConnectionError", _COUNTS, _REACH),
)


def verdict(error: ErrorDescription) -> Verdict:
    """Decide what an error says about the entity it was raised for."""
    for row in VERDICTS:
        if row.matches(error):
            return row.verdict
    return Verdict.DOES_NOT_COUNT
