"""What an entity is told to be: descriptions of queues, topics and subscriptions, with the service's defaults
and limits.

Invariants:
- A description is a value. `validate()` checks it alone, `validate_change(current)` also that an update
  leaves alone what the service fixes at creation. What needs other entities (does the forward target exist?)
  is checked where they are known.
- Durations are integer milliseconds; `FOREVER_MS` means no limit. Sizes carry their unit in the name.
- `forward_to` and `forward_dead_lettered_messages_to` hold entity paths, never URIs.
- `from_json(d.to_json()) == d`. Fields a stored text lacks get their defaults, so old stores stay readable.
"""

import json
import re
from dataclasses import dataclass, fields
from typing import Any, Self

from pairbus.embedded.entities.authorization import AuthorizationRule, validate_rules
from pairbus.embedded.entities.durations import DAY_MS, FOREVER_MS, MINUTE_MS, SECOND_MS, format_duration
from pairbus.embedded.entities.rules import (
    DEFAULT_RULE,
    DEFAULT_RULE_NAME,
    CorrelationFilter,
    FalseFilter,
    PropertyValue,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from pairbus.embedded.errors import InvalidError

__all__ = [
    "DEFAULT_RULE",
    "DEFAULT_RULE_NAME",
    "FOREVER_MS",
    "MAX_SUBSCRIPTIONS_PER_TOPIC",
    "AuthorizationRule",
    "CorrelationFilter",
    "FalseFilter",
    "PropertyValue",
    "QueueDescription",
    "RuleDescription",
    "RuleFilter",
    "SqlAction",
    "SqlFilter",
    "SubscriptionDescription",
    "TopicDescription",
    "TrueFilter",
    "validate_entity_name",
    "validate_subscription_name",
]

MAX_ENTITY_NAME_LENGTH = 260
MAX_SUBSCRIPTION_NAME_LENGTH = 50
MAX_SUBSCRIPTIONS_PER_TOPIC = 2_000
MAX_USER_METADATA_LENGTH = 1_024
MAX_DELIVERY_COUNT = 2_147_483_647
SIZES_IN_MEGABYTES = (1_024, 2_048, 3_072, 4_096, 5_120)
PARTITIONS = 16

STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")

_ENTITY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~/-]*[A-Za-z0-9])?", re.ASCII)
_SUBSCRIPTION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


def validate_entity_name(name: str) -> None:
    """A queue's or topic's name: also a path, so a segment that would make it a subscription's path is
    refused.
    """
    if not 1 <= len(name) <= MAX_ENTITY_NAME_LENGTH:
        raise InvalidError(
            f"The entity name '{name[:64]}' has {len(name)} characters: 1 to {MAX_ENTITY_NAME_LENGTH} are allowed."
        )
    if _ENTITY_NAME.fullmatch(name) is None or "//" in name:
        raise InvalidError(
            f"The entity name '{name}' is not allowed: use letters, digits and . - _ ~ / (no two slashes in"
            " a row),"
            " and begin and end with a letter or digit."
        )
    if "subscriptions" in name.lower().split("/")[1:]:
        raise InvalidError(f"The entity name '{name}' is not allowed: the segment 'Subscriptions' is reserved.")


def validate_subscription_name(name: str) -> None:
    if not 1 <= len(name) <= MAX_SUBSCRIPTION_NAME_LENGTH:
        raise InvalidError(
            f"The subscription name '{name[:64]}' has {len(name)} characters:"
            f" 1 to {MAX_SUBSCRIPTION_NAME_LENGTH} are allowed."
        )
    if _SUBSCRIPTION_NAME.fullmatch(name) is None:
        raise InvalidError(
            f"The subscription name '{name}' is not allowed: use letters, digits and . - _,"
            " and begin and end with a letter or digit."
        )


@dataclass(frozen=True, slots=True)
class QueueDescription:
    name: str
    lock_duration_ms: int = MINUTE_MS
    max_size_in_megabytes: int = 1_024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live_ms: int = FOREVER_MS
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window_ms: int = 10 * MINUTE_MS
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    auto_delete_on_idle_ms: int = FOREVER_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    user_metadata: str | None = None
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    max_message_size_in_kilobytes: int = 256
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    def validate(self) -> None:
        validate_entity_name(self.name)
        _validate_lock(self.lock_duration_ms)
        _validate_publishing(self)
        _validate_max_delivery_count(self.max_delivery_count)
        _validate_forwarding(self)

    def validate_change(self, current: "QueueDescription") -> None:
        """As `validate`, and what is fixed at creation must equal `current`."""
        self.validate()
        _validate_fixed(
            self,
            current,
            ("requires_session", "requires_duplicate_detection", "enable_partitioning"),
            self.name,
        )

    def to_json(self) -> str:
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**_fields_from_json(cls, text))


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    default_message_time_to_live_ms: int = FOREVER_MS
    max_size_in_megabytes: int = 1_024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window_ms: int = 10 * MINUTE_MS
    enable_batched_operations: bool = True
    filtering_messages_before_publishing: bool = False
    status: str = "Active"
    support_ordering: bool = True
    auto_delete_on_idle_ms: int = FOREVER_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int = 256
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    def validate(self) -> None:
        validate_entity_name(self.name)
        _validate_publishing(self)

    def validate_change(self, current: "TopicDescription") -> None:
        """As `validate`, and what is fixed at creation must equal `current`."""
        self.validate()
        _validate_fixed(self, current, ("requires_duplicate_detection", "enable_partitioning"), self.name)

    def to_json(self) -> str:
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**_fields_from_json(cls, text))


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    topic: str
    name: str
    lock_duration_ms: int = MINUTE_MS
    requires_session: bool = False
    default_message_time_to_live_ms: int = FOREVER_MS
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle_ms: int = FOREVER_MS
    user_metadata: str | None = None
    default_rule: RuleDescription | None = None
    """The rule a new subscription starts with (None: `DEFAULT_RULE`). Creation reads it; afterwards the rules
    speak.
    """

    def validate(self) -> None:
        validate_entity_name(self.topic)
        validate_subscription_name(self.name)
        _validate_lock(self.lock_duration_ms)
        _validate_lifetime(self)
        _validate_max_delivery_count(self.max_delivery_count)
        _validate_forwarding(self)
        if self.default_rule is not None:
            self.default_rule.validate()

    def validate_change(self, current: "SubscriptionDescription") -> None:
        """As `validate`, and what is fixed at creation must equal `current`."""
        self.validate()
        _validate_fixed(self, current, ("requires_session",), f"{self.topic}/Subscriptions/{self.name}")

    def to_json(self) -> str:
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**_fields_from_json(cls, text))


def _validate_range(field_name: str, value_ms: int, lowest_ms: int, highest_ms: int) -> None:
    if not lowest_ms <= value_ms <= highest_ms:
        raise InvalidError(
            f"{field_name} is {format_duration(max(value_ms, 0))}:"
            f" it must be between {format_duration(lowest_ms)} and {format_duration(highest_ms)}."
        )


def _validate_lock(lock_duration_ms: int) -> None:
    _validate_range("LockDuration", lock_duration_ms, 5 * SECOND_MS, 5 * MINUTE_MS)


def _validate_lifetime(entity: QueueDescription | TopicDescription | SubscriptionDescription) -> None:
    _validate_range("DefaultMessageTimeToLive", entity.default_message_time_to_live_ms, SECOND_MS, FOREVER_MS)
    _validate_range("AutoDeleteOnIdle", entity.auto_delete_on_idle_ms, 5 * MINUTE_MS, FOREVER_MS)
    if entity.status not in STATUSES:
        raise InvalidError(f"Status is '{entity.status[:64]}': it must be one of {', '.join(STATUSES)}.")
    if entity.user_metadata is not None and len(entity.user_metadata) > MAX_USER_METADATA_LENGTH:
        raise InvalidError(
            f"UserMetadata has {len(entity.user_metadata)} characters: at most {MAX_USER_METADATA_LENGTH} are allowed."
        )


def _validate_publishing(entity: QueueDescription | TopicDescription) -> None:
    """What queues and topics share: they take messages from senders."""
    _validate_lifetime(entity)
    _validate_range(
        "DuplicateDetectionHistoryTimeWindow",
        entity.duplicate_detection_history_time_window_ms,
        20 * SECOND_MS,
        7 * DAY_MS,
    )
    sizes: tuple[int, ...] = SIZES_IN_MEGABYTES
    if entity.enable_partitioning:
        sizes += tuple(PARTITIONS * size for size in SIZES_IN_MEGABYTES)
    if entity.max_size_in_megabytes not in sizes:
        raise InvalidError(
            f"MaxSizeInMegabytes is {entity.max_size_in_megabytes}: it must be one of {', '.join(map(str, sizes))}."
        )
    if not 1 <= entity.max_message_size_in_kilobytes <= 102_400:
        raise InvalidError(
            f"MaxMessageSizeInKilobytes is {entity.max_message_size_in_kilobytes}: it must be between 1 and 102400."
        )
    if entity.enable_express and entity.requires_duplicate_detection:
        raise InvalidError(
            "EnableExpress and RequiresDuplicateDetection are both true: they cannot be enabled together."
        )
    validate_rules(entity.authorization_rules)


def _validate_max_delivery_count(count: int) -> None:
    if not 1 <= count <= MAX_DELIVERY_COUNT:
        raise InvalidError(f"MaxDeliveryCount is {count}: it must be between 1 and {MAX_DELIVERY_COUNT}.")


def _validate_forwarding(entity: QueueDescription | SubscriptionDescription) -> None:
    for field_name, path in (
        ("ForwardTo", entity.forward_to),
        ("ForwardDeadLetteredMessagesTo", entity.forward_dead_lettered_messages_to),
    ):
        if path is not None:
            try:
                validate_entity_name(path)
            except InvalidError as error:
                raise InvalidError(f"{field_name} names no queue or topic. {error.description}") from None


def _validate_fixed(new: Any, current: Any, field_names: tuple[str, ...], path: str) -> None:
    for field_name in field_names:
        before, after = getattr(current, field_name), getattr(new, field_name)
        if before != after:
            element = "".join(word.capitalize() for word in field_name.split("_"))
            raise InvalidError(
                f"{element} of '{path}' is {str(before).lower()} and cannot be changed to"
                f" {str(after).lower()}:"
                " it is fixed when the entity is created."
            )


def _to_json(description: QueueDescription | TopicDescription | SubscriptionDescription) -> str:
    plain: dict[str, Any] = {}
    for item in fields(description):
        value = getattr(description, item.name)
        match value:
            case RuleDescription():
                value = value.to_plain()
            case tuple():
                value = [rule.to_plain() for rule in value]
        plain[item.name] = value
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _fields_from_json(
    cls: type[QueueDescription] | type[TopicDescription] | type[SubscriptionDescription], text: str
) -> dict[str, Any]:
    plain = json.loads(text)
    known = {item.name: plain[item.name] for item in fields(cls) if item.name in plain}
    if "authorization_rules" in known:
        known["authorization_rules"] = tuple(map(AuthorizationRule.from_plain, known["authorization_rules"]))
    if known.get("default_rule") is not None:
        known["default_rule"] = RuleDescription.from_plain(known["default_rule"])
    return known
