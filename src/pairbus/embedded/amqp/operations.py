"""The operations of `entity/$management`, each a function of an `Operation`, and the right each one needs.

An operation reads its body, calls the broker, and replies or refuses, now or when the broker is done. What it raises
is a refusal too. Field names are the service's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast
from uuid import UUID

from pairbus.amqp.types import Array, Int, Timestamp
from pairbus.embedded.amqp.rule_values import read_rule, rule_value
from pairbus.embedded.broker import Broker, ReceiveMode
from pairbus.embedded.entities.message import Abandon, Complete, DeadLetter, Defer, Settlement
from pairbus.embedded.errors import BrokerError, InvalidError

MAX_PEEK = 1_000
MAX_SESSIONS_PAGE = 1_000
MAX_DELETE = 4_000
MAX_ITEMS = 10_000
LATEST_MS = 253_402_243_200_000
"""Beyond this a time means no time at all: clients write the end of the year 9999 in several ways."""

T = TypeVar("T")


class Reply(Protocol):
    def __call__(self, body: dict[str, Any], status: int = 200) -> None: ...


@dataclass(frozen=True, slots=True)
class Operation:
    broker: Broker
    path: str
    body: dict[str, Any]
    reply: Reply
    refuse: Callable[[BrokerError], None]

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.body.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidError(f"'{name}' must be a whole number.")
        return int(value)

    def text(self, name: str) -> str:
        value = self.optional_text(name)
        if value is None:
            raise InvalidError(f"'{name}' is missing; expected text.")
        return value

    def optional_text(self, name: str) -> str | None:
        value = self.body.get(name)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if value is not None and not isinstance(value, str):
            raise InvalidError(f"'{name}' must be text.")
        return None if value is None else str(value)

    def items(self, name: str, kind: type[T]) -> list[T]:
        value = self.body.get(name)
        found = value.items if isinstance(value, Array) else value
        if not isinstance(found, list) or len(found) > MAX_ITEMS or not all(isinstance(item, kind) for item in found):
            raise InvalidError(f"'{name}' must be an array of {kind.__name__}, of {MAX_ITEMS} items at most.")
        return cast(list[T], found)

    def lock_tokens(self) -> list[bytes]:
        return [token.bytes_le for token in self.items("lock-tokens", UUID)]

    def sequence_numbers(self) -> list[int]:
        return [int(number) for number in self.items("sequence-numbers", int)]

    def done(self, error: BrokerError | None) -> None:
        """For broker calls that only succeed or fail."""
        if error is None:
            self.reply({})
        else:
            self.refuse(error)


def _peek(op: Operation) -> None:
    count = op.integer("message-count")
    if count < 1:
        raise InvalidError(f"'message-count' is {count}; it must be 1 or more.")
    start = op.integer("from-sequence-number")
    raws = op.broker.peek(op.path, start, min(count, MAX_PEEK), op.optional_text("session-id"))
    if raws:
        op.reply({"messages": [{"message": raw} for raw in raws]})
    else:
        op.reply({}, 204)


def _renew_lock(op: Operation) -> None:
    ends = op.broker.renew_locks(op.path, op.lock_tokens())
    op.reply({"expirations": Array(0x83, [Timestamp(end) for end in ends])})


def _schedule(op: Operation) -> None:
    raws = []
    for entry in op.items("messages", dict):
        raw = entry.get("message")
        if not isinstance(raw, bytes):
            raise InvalidError("Each of 'messages' must have a 'message' of encoded bytes.")
        raws.append(raw)

    def scheduled(result: list[int] | BrokerError) -> None:
        if isinstance(result, BrokerError):
            op.refuse(result)
        else:
            op.reply({"sequence-numbers": Array(0x81, list(result))})

    op.broker.schedule(op.path, raws, scheduled)


def _cancel_scheduled(op: Operation) -> None:
    op.broker.cancel_scheduled(op.path, op.sequence_numbers(), op.done)


def _update_disposition(op: Operation) -> None:
    changes = op.body.get("properties-to-modify") or {}
    if not isinstance(changes, dict):
        raise InvalidError("'properties-to-modify' must be a map.")
    changes = {str(key): value for key, value in changes.items()}
    outcome: Settlement
    match op.text("disposition-status"):
        case "completed":
            outcome = Complete()
        case "abandoned":
            outcome = Abandon(changes)
        case "defered" | "deferred":
            outcome = Defer(changes)
        case "suspended":
            outcome = DeadLetter(
                op.optional_text("deadletter-reason"), op.optional_text("deadletter-description"), changes
            )
        case status:
            raise InvalidError(
                f"'disposition-status' is '{status[:64]}'; expected completed, abandoned, defered or suspended."
            )
    op.broker.settle(op.path, op.lock_tokens(), outcome, op.done, session_id=op.optional_text("session-id"))


def _receive_by_sequence_number(op: Operation) -> None:
    settle_mode = op.integer("receiver-settle-mode", 1)
    mode = ReceiveMode.RECEIVE_AND_DELETE if settle_mode == 0 else ReceiveMode.PEEK_LOCK

    def received(result: list[tuple[bytes, bytes]] | BrokerError) -> None:
        if isinstance(result, BrokerError):
            op.refuse(result)
            return
        messages = [{"lock-token": UUID(bytes_le=token), "message": raw} for token, raw in result]
        op.reply({"messages": messages}, 200 if messages else 204)

    op.broker.receive_deferred(op.path, op.sequence_numbers(), mode, op.optional_text("session-id"), received)


def _renew_session_lock(op: Operation) -> None:
    op.reply({"expiration": Timestamp(op.broker.renew_session(op.path, op.text("session-id")))})


def _get_session_state(op: Operation) -> None:
    op.reply({"session-state": op.broker.get_session_state(op.path, op.text("session-id"))})


def _set_session_state(op: Operation) -> None:
    state = op.body.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise InvalidError("'session-state' must be bytes or null.")
    op.broker.set_session_state(op.path, op.text("session-id"), state, op.done)


def _get_message_sessions(op: Operation) -> None:
    since: int | None = op.integer("last-updated-time", LATEST_MS)
    if since is not None and since >= LATEST_MS:
        since = None
    skip, top = op.integer("skip", 0), op.integer("top", MAX_SESSIONS_PAGE)
    if skip < 0 or top < 1:
        raise InvalidError(f"'skip' is {skip} and 'top' {top}; expected 0 or more and 1 or more.")
    found = op.broker.list_sessions(op.path, since, skip, min(top, MAX_SESSIONS_PAGE))
    if found:
        op.reply({"skip": Int(skip), "sessions-ids": Array(0xB1, found)})
    else:
        op.reply({}, 204)


def _batch_delete(op: Operation) -> None:
    count = op.integer("message-count")
    if not 1 <= count <= MAX_DELETE:
        raise InvalidError(f"'message-count' is {count}; it must be 1 to {MAX_DELETE}.")

    def deleted(result: int | BrokerError) -> None:
        if isinstance(result, BrokerError):
            op.refuse(result)
        else:
            op.reply({"message-count": Int(result)}, 200 if result else 204)

    op.broker.delete_batch(op.path, count, op.integer("enqueued-time-utc", LATEST_MS), deleted)


def _rule_owner(op: Operation) -> tuple[str, str]:
    topic, found, subscription = _split_subscription(op.path)
    if not found:
        raise InvalidError(f"Rules belong to subscriptions; '{op.path[:64]}' is none.")
    return topic, subscription


def _split_subscription(path: str) -> tuple[str, bool, str]:
    at = path.lower().find("/subscriptions/")
    if at < 0:
        return path, False, ""
    return path[:at], True, path[at + len("/subscriptions/") :]


def _add_rule(op: Operation) -> None:
    topic, subscription = _rule_owner(op)
    rule = read_rule(op.text("rule-name"), op.body.get("rule-description"))
    _later(op, op.broker.create_rule(topic, subscription, rule))


def _remove_rule(op: Operation) -> None:
    topic, subscription = _rule_owner(op)
    _later(op, op.broker.delete(f"{topic}/Subscriptions/{subscription}/Rules/{op.text('rule-name')}"))


def _enumerate_rules(op: Operation) -> None:
    topic, subscription = _rule_owner(op)
    skip, top = op.integer("skip", 0), op.integer("top", 100)
    if skip < 0 or top < 1:
        raise InvalidError(f"'skip' is {skip} and 'top' {top}; expected 0 or more and 1 or more.")
    rules = op.broker.list_rules(topic, subscription)[skip : skip + top]
    if rules:
        op.reply({"rules": [{"rule-description": rule_value(rule)} for rule in rules]})
    else:
        op.reply({}, 204)


def _later(op: Operation, work: Coroutine[Any, Any, object]) -> None:
    """Carry out an administration step of the broker, which is a coroutine, and reply when it is done."""

    async def carry_out() -> None:
        try:
            await work
        except BrokerError as error:
            op.refuse(error)
        else:
            op.reply({})

    task = asyncio.get_running_loop().create_task(carry_out())
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)


_RUNNING: set[asyncio.Task[None]] = set()

OPERATIONS: dict[str, tuple[str, Callable[[Operation], None]]] = {
    "peek-message": ("Listen", _peek),
    "renew-lock": ("Listen", _renew_lock),
    "schedule-message": ("Send", _schedule),
    "cancel-scheduled-message": ("Send", _cancel_scheduled),
    "update-disposition": ("Listen", _update_disposition),
    "receive-by-sequence-number": ("Listen", _receive_by_sequence_number),
    "renew-session-lock": ("Listen", _renew_session_lock),
    "get-session-state": ("Listen", _get_session_state),
    "set-session-state": ("Listen", _set_session_state),
    "get-message-sessions": ("Listen", _get_message_sessions),
    "batch-delete-messages": ("Listen", _batch_delete),
    "add-rule": ("Listen", _add_rule),
    "remove-rule": ("Listen", _remove_rule),
    "enumerate-rules": ("Listen", _enumerate_rules),
}
