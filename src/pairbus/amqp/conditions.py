"""PURE. The meaning of AMQP error conditions: does the error pass, and whose fault is it?

Every decision about a refused operation starts from `meaning`. An unknown condition counts as a passing fault of the
entity, so nothing is ever given up because of a condition that this table does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NOT_FOUND = "amqp:not-found"
UNAUTHORIZED = "amqp:unauthorized-access"
NOT_ALLOWED = "amqp:not-allowed"
TOO_LARGE = "amqp:link:message-size-exceeded"
CONNECTION_FORCED = "amqp:connection:forced"
INVALID_FIELD = "amqp:invalid-field"
SESSION_LOCKED = "com.microsoft:session-cannot-be-locked"
TIMEOUT = "com.microsoft:timeout"


class Blame(Enum):
    MESSAGE = "the entity will never take this message"
    REQUEST = "the entity does not serve this request; it may take the message in another way"
    ENTITY = "the entity is missing, disabled, full or busy"
    CREDENTIAL = "the credential lacks the right"
    CONNECTION = "nobody answered"


@dataclass(frozen=True, slots=True)
class Meaning:
    """`is_final`: trying again cannot help until somebody changes the message, the entity or the credential."""

    blame: Blame
    is_final: bool


_PASSING = Meaning(Blame.ENTITY, is_final=False)

# Whatever makes a paired client divert messages (`failover.classification`) must not be a message's fault here:
# the syphon would dead-letter messages that the client diverted because of their entity.
CONDITIONS = {
    NOT_FOUND: Meaning(Blame.ENTITY, is_final=True),
    "com.microsoft:entity-disabled": Meaning(Blame.ENTITY, is_final=True),
    UNAUTHORIZED: Meaning(Blame.CREDENTIAL, is_final=True),
    TOO_LARGE: Meaning(Blame.MESSAGE, is_final=True),
    NOT_ALLOWED: Meaning(Blame.MESSAGE, is_final=True),
    "amqp:decode-error": Meaning(Blame.MESSAGE, is_final=True),
    "com.microsoft:argument-error": Meaning(Blame.MESSAGE, is_final=True),
    "com.microsoft:argument-out-of-range": Meaning(Blame.MESSAGE, is_final=True),
    "amqp:not-implemented": Meaning(Blame.REQUEST, is_final=True),
    INVALID_FIELD: Meaning(Blame.REQUEST, is_final=True),
    "amqp:precondition-failed": Meaning(Blame.REQUEST, is_final=True),
    SESSION_LOCKED: Meaning(Blame.REQUEST, is_final=True),
    "com.microsoft:session-id-missing": Meaning(Blame.REQUEST, is_final=True),
    "amqp:internal-error": _PASSING,
    "amqp:link:detach-forced": _PASSING,
    "amqp:resource-limit-exceeded": _PASSING,
    "com.microsoft:server-busy": _PASSING,
    CONNECTION_FORCED: Meaning(Blame.CONNECTION, is_final=False),
    "amqp:connection:framing-error": Meaning(Blame.CONNECTION, is_final=False),
    "amqp:socket-error": Meaning(Blame.CONNECTION, is_final=False),
    "amqp:client-error": Meaning(Blame.CONNECTION, is_final=False),
    TIMEOUT: Meaning(Blame.CONNECTION, is_final=False),
}


def meaning(condition: str) -> Meaning:
    return CONDITIONS.get(condition, _PASSING)
