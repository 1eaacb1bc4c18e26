"""The options of `spark.read.format("servicebus")` and `df.write.format("servicebus")`, read once into frozen values.

Rules:
- Names are case-insensitive, as Spark's are. A name nobody knows, a value out of range, or two options that exclude
  each other are a `ValueError` in one sentence. What Spark itself adds (`path`, `checkpointLocation`, ...) is left
  alone.
- The connection string is kept out of every repr. With `connectionStringEnv` only the *name* of an environment
  variable travels from the driver to the executors: each process reads its own environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SUB_QUEUES = {"deadletter": "$DeadLetterQueue", "transferdeadletter": "$Transfer/$DeadLetterQueue"}
OF_SPARK = frozenset({"path", "checkpointlocation", "querytimeout", "queryname", "__datasource_options"})

_CONNECTION = ("connectionString", "connectionStringEnv", "connectionVerify")
_ENTITIES = ("queue", "queuePattern", "topic", "subscription", "subQueue")
READ = (*_CONNECTION, *_ENTITIES, "messagesPerPartition")
STREAM = (*READ, "maxMessagesPerTrigger", "maxBytesPerTrigger", "failOnDataLoss")
WRITE = (*_CONNECTION, "queue", "topic", "retryTimeout")


@dataclass(frozen=True, slots=True)
class Access:
    """How to be let into the namespace; never shown."""

    variable: str | None = None
    connection_verify: str | None = None
    _connection_string: str | None = field(default=None, repr=False)

    def connection_string(self, environment: Mapping[str, str] | None = None) -> str:
        """From the option itself, or from the environment of this very process."""
        if self._connection_string is not None:
            return self._connection_string
        found = (os.environ if environment is None else environment).get(self.variable or "")
        if not found:
            raise ValueError(
                f"The environment variable {self.variable!r} named by the option connectionStringEnv is not set in "
                f"process {os.getpid()}; set it for the driver and for every executor "
                f"(spark.executorEnv.{self.variable})."
            )
        return found


@dataclass(frozen=True, slots=True)
class Entities:
    """What to read: names, or a pattern of queue names, or subscriptions of a topic; or a sub-queue of those."""

    queues: tuple[str, ...] = ()
    pattern: str | None = None
    topic: str | None = None
    subscriptions: tuple[str, ...] = ()
    sub_queue: str | None = None

    @property
    def named(self) -> tuple[str, ...]:
        """The paths of what is named; empty for a pattern."""
        names = self.queues or tuple(f"{self.topic}/Subscriptions/{name}" for name in self.subscriptions)
        return tuple(self.path(name) for name in names)

    def path(self, entity: str) -> str:
        return f"{entity}/{self.sub_queue}" if self.sub_queue else entity


@dataclass(frozen=True, slots=True)
class ReadOptions:
    access: Access
    entities: Entities
    messages_per_partition: int
    max_messages: int
    max_bytes: int
    fail_on_data_loss: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    access: Access
    destination: str | None
    retry_seconds: float


def read_options(options: Mapping[str, str], kind: Literal["batch", "stream"]) -> ReadOptions:
    found = _known(options, STREAM, "read from")
    if kind == "batch":
        streaming = [name for name in STREAM if name not in READ and name.lower() in found]
        if streaming:
            raise ValueError(
                f"The option {streaming[0]} is for streams (spark.readStream); a batch reads all there is."
            )
    return ReadOptions(
        _access(found),
        _entities(found),
        _number(found, "messagesPerPartition", 20_000, 1, 10_000_000),
        _number(found, "maxMessagesPerTrigger", 100_000, 1, 100_000_000),
        _number(found, "maxBytesPerTrigger", 256 << 20, 1, 1 << 50),
        _flag(found, "failOnDataLoss", True),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    found = _known(options, WRITE, "write to")
    if "queue" in found and "topic" in found:
        raise ValueError("The options queue and topic are both given; a fixed destination is one of them.")
    return WriteOptions(
        _access(found),
        found.get("queue") or found.get("topic") or None,
        float(_number(found, "retryTimeout", 60, 1, 3600)),
    )


def check_names(options: Mapping[str, str]) -> None:
    """ValueError for an option that no use of the format knows: as early as Spark asks for anything."""
    _known(options, tuple(dict.fromkeys((*STREAM, *WRITE))), "read from or write to")


def _known(options: Mapping[str, str], names: tuple[str, ...], verb: str) -> dict[str, str]:
    found = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in names}
    for name in options:
        if name.lower() not in known and name.lower() not in OF_SPARK:
            raise ValueError(f"The option {name!r} is not known to {verb} servicebus; known: {', '.join(names)}.")
    return {name: value for name, value in found.items() if name in known}


def _access(found: Mapping[str, str]) -> Access:
    text, variable = found.get("connectionstring"), found.get("connectionstringenv")
    if bool(text) == bool(variable):
        problem = "both" if text else "neither"
        raise ValueError(
            f"{problem.capitalize()} of the options connectionString and connectionStringEnv are given; give one, "
            "best connectionStringEnv, the name of an environment variable that holds the connection string."
        )
    return Access(variable, found.get("connectionverify"), text)


def _entities(found: Mapping[str, str]) -> Entities:
    queues, subscriptions = _names(found, "queue"), _names(found, "subscription")
    pattern, topic = found.get("queuepattern"), found.get("topic")
    if sum(bool(way) for way in (queues, pattern, topic)) != 1:
        raise ValueError(
            "Say what to read with one of these: queue (a name, or several with commas), queuePattern, or topic with "
            "subscription."
        )
    if bool(topic) != bool(subscriptions):
        raise ValueError("The options topic and subscription belong together: messages wait in subscriptions.")
    if pattern:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"queuePattern is {pattern!r}, which is not a regular expression: {error}.") from None
    given = found.get("subqueue", "")
    sub_queue = SUB_QUEUES.get(given.replace("-", "").lower())
    if given and sub_queue is None:
        raise ValueError(f"subQueue is {given!r}; allowed: 'deadLetter' or 'transferDeadLetter'.")
    return Entities(queues, pattern or None, topic or None, subscriptions, sub_queue)


def _names(found: Mapping[str, str], name: str) -> tuple[str, ...]:
    names = [piece.strip() for piece in found.get(name, "").split(",") if piece.strip()]
    seen: dict[str, str] = {}
    for one in names:
        if one.lower() in seen:
            raise ValueError(f"{name} names {one!r} twice.")
        seen[one.lower()] = one
    return tuple(names)


def _number(found: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = found.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise ValueError(f"{name} is {text!r}; allowed: a whole number from {least} to {most}.")
    return value


def _flag(found: Mapping[str, str], name: str, default: bool) -> bool:
    text = found.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} is {text!r}; allowed: true or false.")
    return text == "true"
