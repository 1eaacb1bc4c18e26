"""PURE. What a failed send says about the message, its destination and the primary.

The rule: a message is dead-lettered only when the service itself refused *it*. Whatever might pass (down, full, busy,
disabled, no answer, no right to send) pauses the destination, and nothing is settled.

| verdict | what it means | what the pump does |
|---|---|---|
| `REFUSED` | this message will never be taken there | finds it in its batch, dead-letters it |
| `MISSING` | the destination does not exist | dead-letters what is for it |
| `UNAVAILABLE` | the service answered: not now | pauses the destination |
| `UNREACHABLE` | nobody answered | asks whether the primary is there at all; pauses the destination, or everything |
"""

from __future__ import annotations

from enum import StrEnum

UNAUTHORIZED = "amqp:unauthorized-access"


class Verdict(StrEnum):
    REFUSED = "refused"
    MISSING = "missing"
    UNAVAILABLE = "unavailable"
    UNREACHABLE = "unreachable"


_CONDITIONS = {
    "amqp:not-found": Verdict.MISSING,
    "amqp:link:message-size-exceeded": Verdict.REFUSED,
    "amqp:not-allowed": Verdict.REFUSED,
    "amqp:not-implemented": Verdict.REFUSED,
    "amqp:decode-error": Verdict.REFUSED,
    "amqp:invalid-field": Verdict.REFUSED,
    "amqp:precondition-failed": Verdict.REFUSED,
    "com.microsoft:argument-error": Verdict.REFUSED,
    "com.microsoft:argument-out-of-range": Verdict.REFUSED,
    "com.microsoft:session-id-missing": Verdict.REFUSED,
    "amqp:connection:forced": Verdict.UNREACHABLE,
    "amqp:connection:framing-error": Verdict.UNREACHABLE,
    "amqp:socket-error": Verdict.UNREACHABLE,
    "amqp:client-error": Verdict.UNREACHABLE,
    "amqp:link:detach-forced": Verdict.UNAVAILABLE,
    "com.microsoft:timeout": Verdict.UNREACHABLE,
}


def judge(condition: str) -> Verdict:
    """The verdict on an AMQP error condition. What is not known might pass, so it pauses."""
    return _CONDITIONS.get(condition, Verdict.UNAVAILABLE)


class SendError(Exception):
    """The primary did not take a send, as far as we know.

    `in_doubt`: it may have; no answer came to what was sent.
    """

    def __init__(self, verdict: Verdict, condition: str, description: str = "", *, in_doubt: bool = False) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.verdict = verdict
        self.condition = condition
        self.description = description
        self.in_doubt = in_doubt
