"""PURE. What a failed send says about the message, its destination and the primary.

The rule: a message is dead-lettered only if the service refused that message. Anything that may pass (the primary is
down, full or busy, the entity is disabled, no answer came, a right is missing) pauses the destination and settles
nothing.

| failure | meaning | the pump |
|---|---|---|
| `REFUSED` | the destination will never take this message | finds the message in its batch and dead-letters it |
| `MISSING` | the destination does not exist | dead-letters the messages for it |
| `UNAVAILABLE` | the service answered: not now | pauses the destination |
| `UNREACHABLE` | nobody answered | checks the primary, then pauses the destination or everything |
"""

from __future__ import annotations

from enum import StrEnum

from pairbus.amqp.conditions import NOT_FOUND, TOO_LARGE, Blame, meaning


class SendFailure(StrEnum):
    REFUSED = "refused"
    MISSING = "missing"
    UNAVAILABLE = "unavailable"
    UNREACHABLE = "unreachable"


_FAILURES = {Blame.MESSAGE: SendFailure.REFUSED, Blame.CONNECTION: SendFailure.UNREACHABLE}


def failure_of_send(condition: str) -> SendFailure:
    """Classify the AMQP condition that a message was rejected with."""
    if condition == NOT_FOUND:
        return SendFailure.MISSING
    return _FAILURES.get(meaning(condition).blame, SendFailure.UNAVAILABLE)


def failure_of_link(condition: str) -> SendFailure:
    """Classify the condition that a link was refused or closed with. Of these, only a size is about a message."""
    failure = failure_of_send(condition)
    return SendFailure.UNAVAILABLE if failure is SendFailure.REFUSED and condition != TOO_LARGE else failure


class SendError(Exception):
    """The primary did not take a send, as far as we know.

    `in_doubt`: no answer came, so the primary may have taken it. `token_refused`: the primary does not accept our
    credential at all; if False, an unauthorized send may be a missing right on one entity.
    """

    def __init__(
        self,
        failure: SendFailure,
        condition: str,
        description: str = "",
        *,
        in_doubt: bool = False,
        token_refused: bool = False,
    ) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.failure = failure
        self.condition = condition
        self.description = description
        self.in_doubt = in_doubt
        self.token_refused = token_refused
