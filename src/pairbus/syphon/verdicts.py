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


# A paired client diverts when it takes the entity for the cause (`failover.classification`). What it diverts, a syphon
# must not take for refused: the same condition is about the message on both sides, or on neither.
_CONDITIONS = {
    "amqp:not-found": Verdict.MISSING,
    "amqp:link:message-size-exceeded": Verdict.REFUSED,
    "amqp:not-allowed": Verdict.REFUSED,
    "amqp:decode-error": Verdict.REFUSED,
    "com.microsoft:argument-error": Verdict.REFUSED,
    "com.microsoft:argument-out-of-range": Verdict.REFUSED,
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


def judge_link(condition: str) -> Verdict:
    """The verdict on the condition that a link was refused or ended with: that is seldom about a message."""
    verdict = judge(condition)
    about_message = verdict is Verdict.REFUSED and condition != "amqp:link:message-size-exceeded"
    return Verdict.UNAVAILABLE if about_message else verdict


class SendError(Exception):
    """The primary did not take a send, as far as we know.

    `in_doubt`: it may have; no answer came to what was sent. `token_refused`: the primary does not accept our
    credential, whatever we want there; without it, a right that we lack may be that on one entity.
    """

    def __init__(
        self,
        verdict: Verdict,
        condition: str,
        description: str = "",
        *,
        in_doubt: bool = False,
        token_refused: bool = False,
    ) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.verdict = verdict
        self.condition = condition
        self.description = description
        self.in_doubt = in_doubt
        self.token_refused = token_refused
