"""Names, paths and ids of entities and their queues.

A path is `orders` or `topic/Subscriptions/name`, and behind either of them `/$DeadLetterQueue` or
`/$Transfer/$DeadLetterQueue`. Case does not matter for finding an entity; paths are shown in the case they were created
with. An entity's id and one of its queues make a queue id.
"""

import re
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
QUEUE_IDS_PER_ENTITY = 4
MAX_PATH_LENGTH = 1_024
MAX_ENTITY_NAME_LENGTH = 260
MAX_SUBSCRIPTION_NAME_LENGTH = 50

_ENTITY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~/-]*[A-Za-z0-9])?", re.ASCII)
_SUBSCRIPTION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """An entity's key (its path in lower case) and one of its queues."""

    key: str
    sub_queue: SubQueue


def parse_address(path: str) -> Address:
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidError(
            f"The path '{path[:64]}…' has {len(path)} characters. At most {MAX_PATH_LENGTH} are allowed."
        )
    key = path.strip("/").lower()
    for suffix, sub_queue in _SUFFIXES:
        if key.endswith(suffix):
            return Address(key[: -len(suffix)], sub_queue)
    return Address(key, SubQueue.MAIN)


def subscription_path(topic: str, name: str) -> str:
    return f"{topic}/Subscriptions/{name}"


def queue_id_of(entity_id: int, sub_queue: SubQueue) -> int:
    return entity_id * QUEUE_IDS_PER_ENTITY + sub_queue


def entity_id_of(queue_id: int) -> int:
    return queue_id // QUEUE_IDS_PER_ENTITY


def sub_queue_of(queue_id: int) -> SubQueue:
    return SubQueue(queue_id % QUEUE_IDS_PER_ENTITY)


def validate_entity_name(name: str) -> None:
    """Check the name of a queue or topic. It is also a path, so it must not look like a subscription's."""
    if not 1 <= len(name) <= MAX_ENTITY_NAME_LENGTH:
        raise InvalidError(
            f"The entity name '{name[:64]}' has {len(name)} characters. 1 to {MAX_ENTITY_NAME_LENGTH} are allowed."
        )
    segments = name.lower().split("/")
    if _ENTITY_NAME.fullmatch(name) is None or not {"", ".", ".."}.isdisjoint(segments):
        raise InvalidError(
            f"The entity name '{name}' is not allowed. Use letters, digits and . - _ ~ / (no empty segment, and no"
            " segment . or ..), and begin and end with a letter or digit."
        )
    if "subscriptions" in segments[1:]:
        raise InvalidError(f"The entity name '{name}' is not allowed: the segment 'Subscriptions' is reserved.")


def validate_subscription_name(name: str) -> None:
    if not 1 <= len(name) <= MAX_SUBSCRIPTION_NAME_LENGTH:
        raise InvalidError(
            f"The subscription name '{name[:64]}' has {len(name)} characters."
            f" 1 to {MAX_SUBSCRIPTION_NAME_LENGTH} are allowed."
        )
    if _SUBSCRIPTION_NAME.fullmatch(name) is None:
        raise InvalidError(
            f"The subscription name '{name}' is not allowed. Use letters, digits and . - _,"
            " and begin and end with a letter or digit."
        )
