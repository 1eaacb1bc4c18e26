"""Addresses of what can be sent to or received from.

`orders`, `topic/Subscriptions/name`, and behind either `/$DeadLetterQueue` or `/$Transfer/$DeadLetterQueue`. Case does
not matter for finding an entity; the case it was created with is kept for showing.
"""

from dataclasses import dataclass
from enum import IntEnum

from pairbus.embedded.errors import InvalidError


class SubQueue(IntEnum):
    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2


_SUFFIXES = (
    ("/$transfer/$deadletterqueue", SubQueue.TRANSFER_DEAD_LETTER),
    ("/$deadletterqueue", SubQueue.DEAD_LETTER),
)
_SUBSCRIPTIONS = "/subscriptions/"
MAX_PATH_LENGTH = 1_024


@dataclass(frozen=True, slots=True)
class Address:
    """An entity's key (lower case, for looking up) and which of its queues is meant."""

    key: str
    sub_queue: SubQueue

    @property
    def topic_key(self) -> str | None:
        """The topic's key when this is a subscription."""
        topic, found, _ = self.key.partition(_SUBSCRIPTIONS)
        return topic if found else None


def parse_address(path: str) -> Address:
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidError(
            f"The path '{path[:64]}…' has {len(path)} characters: at most {MAX_PATH_LENGTH} are allowed."
        )
    key = path.strip("/").lower()
    for suffix, sub_queue in _SUFFIXES:
        if key.endswith(suffix):
            return Address(key[: -len(suffix)], sub_queue)
    return Address(key, SubQueue.MAIN)


def subscription_key(topic: str, name: str) -> str:
    return f"{topic}{_SUBSCRIPTIONS}{name}".lower()


def subscription_path(topic: str, name: str) -> str:
    return f"{topic}/Subscriptions/{name}"


def rule_path(topic: str, subscription: str, name: str) -> str:
    return f"{subscription_path(topic, subscription)}/Rules/{name}"
