"""The operations of `entity/$management`: one function each, and the right each one needs.

An operation reads the fields of its `ManagementCall`, calls the broker, and replies or refuses, now or when the broker
has finished. A BrokerError it raises is a refusal, too. Field names are the service's own. Clients send rules as maps
and receive them as described lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, cast
from uuid import UUID

from pairbus.amqp.types import Array, Described, Int, Symbol, Timestamp, ULong
from pairbus.embedded.broker import Broker, ReceiveMode
from pairbus.embedded.entities.descriptions import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    PropertyValue,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from pairbus.embedded.entities.message import (
    AbandonMessage,
    CompleteMessage,
    DeadLetterMessage,
    DeferMessage,
    Settlement,
)
from pairbus.embedded.errors import BrokerError, InvalidError

MAX_PEEK = 1_000
MAX_SESSIONS_PAGE = 1_000
MAX_DELETE = 4_000
MAX_ITEMS = 10_000
LATEST_MS = 253_402_243_200_000
"""A later time means "no time": clients write the end of the year 9999 in several ways."""

_RULE = ULong(0x13700000004)
_NO_ACTION = ULong(0x13700000005)
_SQL_ACTION = ULong(0x13700000006)
_SQL_FILTER = ULong(0x1370000006)
_TRUE_FILTER = ULong(0x1370000007)
_FALSE_FILTER = ULong(0x1370000008)
_CORRELATION_FILTER = ULong(0x1370000009)

_COMPATIBILITY_LEVEL = Int(20)
# In the order of the described list.
_CORRELATION_FIELDS = {field.replace("_", "-"): field for field in CORRELATION_FIELDS}

T = TypeVar("T")


class ReplyCallback(Protocol):
    def __call__(self, body: dict[str, Any], status: int = 200) -> None: ...


@dataclass(frozen=True, slots=True)
class ManagementCall:
    """One request: the entity's path, the fields of the body, and how to answer."""

    broker: Broker
    path: str
    body: dict[str, Any]
    reply: ReplyCallback
    refuse: Callable[[BrokerError], None]

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.body.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidError(f"'{name}' must be a whole number.")
        return int(value)

    def text(self, name: str) -> str:
        value = self.optional_text(name)
        if value is None:
            raise InvalidError(f"'{name}' is missing. Give it as a string.")
        return value

    def optional_text(self, name: str) -> str | None:
        value = self.body.get(name)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if value is not None and not isinstance(value, str):
            raise InvalidError(f"'{name}' must be a string.")
        return None if value is None else str(value)

    def items(self, name: str, kind: type[T]) -> list[T]:
        value = self.body.get(name)
        items = value.items if isinstance(value, Array) else value
        if not isinstance(items, list) or len(items) > MAX_ITEMS or not all(isinstance(item, kind) for item in items):
            raise InvalidError(f"'{name}' must be an array of at most {MAX_ITEMS} items of type {kind.__name__}.")
        return cast(list[T], items)

    def page(self, default_top: int) -> tuple[int, int]:
        """How many items to skip, and how many to return."""
        skip, top = self.integer("skip", 0), self.integer("top", default_top)
        if skip < 0 or top < 1:
            raise InvalidError(f"'skip' is {skip} and 'top' is {top}. They must be at least 0 and 1.")
        return skip, top

    def lock_tokens(self) -> list[bytes]:
        return [token.bytes_le for token in self.items("lock-tokens", UUID)]

    def sequence_numbers(self) -> list[int]:
        return [int(number) for number in self.items("sequence-numbers", int)]

    def answer(self, body: Callable[[T], dict[str, Any]]) -> Callable[[T | BrokerError], None]:
        """A callback for the broker: it replies with the body for a result (204 if that is empty), or refuses."""

        def answer(result: T | BrokerError) -> None:
            if isinstance(result, BrokerError):
                self.refuse(result)
            else:
                self.reply(body(result), 200 if result else 204)

        return answer

    def done(self, error: BrokerError | None) -> None:
        """For broker calls that only succeed or fail."""
        if error is None:
            self.reply({})
        else:
            self.refuse(error)


def _peek(call: ManagementCall) -> None:
    count = call.integer("message-count")
    if count < 1:
        raise InvalidError(f"'message-count' is {count}. It must be at least 1.")
    start = call.integer("from-sequence-number")
    raws = call.broker.peek(call.path, start, min(count, MAX_PEEK), call.optional_text("session-id"))
    call.reply({"messages": [{"message": raw} for raw in raws]}, 200 if raws else 204)


def _renew_lock(call: ManagementCall) -> None:
    ends = call.broker.renew_locks(call.path, call.lock_tokens())
    call.reply({"expirations": Array(0x83, [Timestamp(end) for end in ends])})


def _schedule(call: ManagementCall) -> None:
    raws = []
    for entry in call.items("messages", dict):
        raw = entry.get("message")
        if not isinstance(raw, bytes):
            raise InvalidError("Every item of 'messages' must have a 'message', the encoded bytes.")
        raws.append(raw)
    call.broker.schedule(call.path, raws, call.answer(lambda numbers: {"sequence-numbers": Array(0x81, numbers)}))


def _cancel_scheduled(call: ManagementCall) -> None:
    call.broker.cancel_scheduled(call.path, call.sequence_numbers(), call.done)


def _update_disposition(call: ManagementCall) -> None:
    changes = call.body.get("properties-to-modify") or {}
    if not isinstance(changes, dict):
        raise InvalidError("'properties-to-modify' must be a map.")
    changes = {str(key): value for key, value in changes.items()}
    outcome: Settlement
    match call.text("disposition-status"):
        case "completed":
            outcome = CompleteMessage()
        case "abandoned":
            outcome = AbandonMessage(changes)
        case "defered" | "deferred":
            outcome = DeferMessage(changes)
        case "suspended":
            outcome = DeadLetterMessage(
                call.optional_text("deadletter-reason"), call.optional_text("deadletter-description"), changes
            )
        case status:
            raise InvalidError(
                f"'disposition-status' is '{status[:64]}'. Use completed, abandoned, defered or suspended."
            )
    call.broker.settle(call.path, call.lock_tokens(), outcome, call.done, session_id=call.optional_text("session-id"))


def _receive_by_sequence_number(call: ManagementCall) -> None:
    settle_mode = call.integer("receiver-settle-mode", 1)
    mode = ReceiveMode.RECEIVE_AND_DELETE if settle_mode == 0 else ReceiveMode.PEEK_LOCK

    def messages(received: list[tuple[bytes, bytes]]) -> dict[str, Any]:
        return {"messages": [{"lock-token": UUID(bytes_le=token), "message": raw} for token, raw in received]}

    answer, session_id = call.answer(messages), call.optional_text("session-id")
    call.broker.receive_deferred(call.path, call.sequence_numbers(), mode, session_id, answer)


def _renew_session_lock(call: ManagementCall) -> None:
    call.reply({"expiration": Timestamp(call.broker.renew_session(call.path, call.text("session-id")))})


def _get_session_state(call: ManagementCall) -> None:
    call.reply({"session-state": call.broker.get_session_state(call.path, call.text("session-id"))})


def _set_session_state(call: ManagementCall) -> None:
    state = call.body.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise InvalidError("'session-state' must be bytes or null.")
    call.broker.set_session_state(call.path, call.text("session-id"), state, call.done)


def _get_message_sessions(call: ManagementCall) -> None:
    since: int | None = call.integer("last-updated-time", LATEST_MS)
    if since is not None and since >= LATEST_MS:
        since = None
    skip, top = call.page(MAX_SESSIONS_PAGE)
    session_ids = call.broker.list_sessions(call.path, since, skip, min(top, MAX_SESSIONS_PAGE))
    call.reply({"skip": Int(skip), "sessions-ids": Array(0xB1, session_ids)}, 200 if session_ids else 204)


def _batch_delete(call: ManagementCall) -> None:
    count = call.integer("message-count")
    if not 1 <= count <= MAX_DELETE:
        raise InvalidError(f"'message-count' is {count}. It must be between 1 and {MAX_DELETE}.")
    before_ms = call.integer("enqueued-time-utc", LATEST_MS)
    call.broker.delete_batch(call.path, count, before_ms, call.answer(lambda deleted: {"message-count": Int(deleted)}))


def _subscription(call: ManagementCall) -> str:
    """The call's path, which must be a subscription's."""
    if "/subscriptions/" not in call.path.lower():
        raise InvalidError(f"'{call.path[:64]}' is not a subscription. Only subscriptions have rules.")
    return call.path


def _add_rule(call: ManagementCall) -> None:
    rule = _read_rule(call.text("rule-name"), call.body.get("rule-description"))
    _run_later(call, call.broker.create_rule(_subscription(call), rule))


def _remove_rule(call: ManagementCall) -> None:
    _run_later(call, call.broker.delete_rule(_subscription(call), call.text("rule-name")))


def _enumerate_rules(call: ManagementCall) -> None:
    skip, top = call.page(100)
    rules = call.broker.list_rules(_subscription(call))[skip : skip + top]
    call.reply({"rules": [{"rule-description": _rule_value(rule)} for rule in rules]}, 200 if rules else 204)


def _run_later(call: ManagementCall, work: Coroutine[Any, Any, object]) -> None:
    """Run an administrative operation of the broker, a coroutine, and reply when it is done."""

    async def run() -> None:
        try:
            await work
        except BrokerError as error:
            call.refuse(error)
        else:
            call.reply({})

    task = asyncio.get_running_loop().create_task(run())
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)


_RUNNING: set[asyncio.Task[None]] = set()

OPERATIONS: dict[str, tuple[str, Callable[[ManagementCall], None]]] = {
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


# --- rules --------------------------------------------------------------------------------------------------


def _read_rule(name: str, value: Any) -> RuleDescription:
    fields = _map(value, "rule-description")
    if "sql-filter" in fields:
        expression = _map(fields["sql-filter"], "sql-filter").get("expression")
        rule_filter: RuleFilter = SqlFilter(_text(expression, "expression"))
    elif "correlation-filter" in fields:
        rule_filter = _read_correlation(_map(fields["correlation-filter"], "correlation-filter"))
    elif "false-filter" in fields:
        rule_filter = FalseFilter()
    else:
        rule_filter = TrueFilter()
    action = fields.get("sql-rule-action")
    return RuleDescription(
        name,
        rule_filter,
        None if action is None else SqlAction(_text(_map(action, "sql-rule-action").get("expression"), "expression")),
    )


def _read_correlation(fields: dict[str, Any]) -> CorrelationFilter:
    system = {
        attribute: None if fields.get(key) is None else str(fields[key])
        for key, attribute in _CORRELATION_FIELDS.items()
    }
    properties = _map(fields.get("properties") or {}, "properties")
    return CorrelationFilter(**system, properties={key: _property(key, item) for key, item in properties.items()})


def _property(name: str, value: Any) -> PropertyValue:
    if isinstance(value, Timestamp):
        try:
            return datetime.fromtimestamp(value / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            raise InvalidError(f"Property '{name[:64]}' is a time outside of the years 1 to 9999.") from None
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)  # the plain type, not our AMQP subclass
    raise InvalidError(f"Property '{name[:64]}' has a type that correlation filters do not support.")


def _rule_value(rule: RuleDescription) -> Described:
    action: Described = Described(_NO_ACTION, [])
    if rule.action is not None:
        action = Described(_SQL_ACTION, [rule.action.expression, _COMPATIBILITY_LEVEL])
    return Described(_RULE, [_filter_value(rule.filter), action, rule.name, Timestamp(rule.created_ms)])


def _filter_value(rule_filter: RuleFilter) -> Described:
    match rule_filter:
        case SqlFilter(expression):
            return Described(_SQL_FILTER, [expression, _COMPATIBILITY_LEVEL])
        case CorrelationFilter():
            values = [getattr(rule_filter, attribute) for attribute in _CORRELATION_FIELDS.values()]
            properties = {key: _property_value(item) for key, item in rule_filter.properties.items()}
            return Described(_CORRELATION_FILTER, [*values, properties])
        case FalseFilter():
            return Described(_FALSE_FILTER, [])
        case TrueFilter():
            return Described(_TRUE_FILTER, [])


def _property_value(value: PropertyValue) -> Any:
    if isinstance(value, datetime):
        return Timestamp(int(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1000))
    if isinstance(value, int) and value > 2**63 - 1:
        return ULong(value)
    if isinstance(value, str | bool | int | float):
        return value
    return Described(Symbol("com.microsoft:timespan"), int(value.total_seconds() * 10_000_000))


def _map(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidError(f"'{name}' must be a map.")
    return {key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key): item for key, item in value.items()}


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidError(f"'{name}' must be a string.")
    return str(value)
