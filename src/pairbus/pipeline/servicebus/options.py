"""The options of `spark.read.format("servicebus")` and `df.write.format("servicebus")`, parsed into frozen values.

Rules:
- Names are case-insensitive, as in Spark. An unknown name, a value out of range, and options that exclude each other
  raise `ValueError` with one sentence. Spark's own options (`path`, `checkpointLocation`, ...) are ignored.
- No repr shows the connection string. With `connectionStringEnv` only the name of an environment variable travels from
  the driver to the executors: each process reads its own environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SUB_QUEUES = {"deadletter": "$DeadLetterQueue", "transferdeadletter": "$Transfer/$DeadLetterQueue"}
SPARK_OPTIONS = frozenset({"path", "checkpointlocation", "querytimeout", "queryname", "__datasource_options"})

_CONNECTION = ("connectionString", "connectionStringEnv", "connectionVerify")
_ENTITIES = ("queue", "queuePattern", "topic", "subscription", "subQueue")
READ = (*_CONNECTION, *_ENTITIES, "messagesPerPartition")
STREAM = (*READ, "maxMessagesPerTrigger", "maxBytesPerTrigger", "failOnDataLoss")
WRITE = (*_CONNECTION, "queue", "topic", "retryTimeout")


@dataclass(frozen=True, slots=True)
class Access:
    """A connection string, or the environment variable that holds it. The string is never shown."""

    variable: str | None = None
    connection_verify: str | None = None
    _connection_string: str | None = field(default=None, repr=False)

    def connection_string(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the option's value, or that of the variable in this process's environment."""
        if self._connection_string is not None:
            return self._connection_string
        value = (os.environ if environment is None else environment).get(self.variable or "")
        if not value:
            raise ValueError(
                f"The environment variable {self.variable!r} named by the option connectionStringEnv is not set in "
                f"process {os.getpid()}. Set it for the driver and for every executor "
                f"(spark.executorEnv.{self.variable})."
            )
        return value


@dataclass(frozen=True, slots=True)
class Entities:
    """The entities to read: named queues, a pattern of queue names, or subscriptions; or a sub-queue of each."""

    queues: tuple[str, ...] = ()
    pattern: str | None = None
    topic: str | None = None
    subscriptions: tuple[str, ...] = ()
    sub_queue: str | None = None

    @property
    def named(self) -> tuple[str, ...]:
        """The paths of named entities. Empty for a pattern."""
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
    values = _known(options, STREAM, "reading from")
    if kind == "batch":
        for name in STREAM:
            if name not in READ and name.lower() in values:
                raise ValueError(
                    f"The option {name} is for streams (spark.readStream). A batch reads all messages; remove it."
                )
    return ReadOptions(
        _access(values),
        _entities(values),
        _number(values, "messagesPerPartition", 20_000, 1, 10_000_000),
        _number(values, "maxMessagesPerTrigger", 100_000, 1, 100_000_000),
        _number(values, "maxBytesPerTrigger", 256 << 20, 1, 1 << 50),
        _flag(values, "failOnDataLoss", True),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    values = _known(options, WRITE, "writing to")
    if "queue" in values and "topic" in values:
        raise ValueError("The options queue and topic are both set. Set only one of them as the destination.")
    return WriteOptions(
        _access(values),
        values.get("queue") or values.get("topic") or None,
        float(_number(values, "retryTimeout", 60, 1, 3600)),
    )


def check_names(options: Mapping[str, str]) -> None:
    """Raise ValueError for an option that neither reading nor writing knows."""
    _known(options, tuple(dict.fromkeys((*STREAM, *WRITE))), "reading from or writing to")


def _known(options: Mapping[str, str], names: tuple[str, ...], use: str) -> dict[str, str]:
    known = {name.lower() for name in names}
    for name in options:
        if name.lower() not in known | SPARK_OPTIONS:
            raise ValueError(f"Unknown option {name!r} for {use} servicebus. Known options: {', '.join(names)}.")
    return {name.lower(): value for name, value in options.items() if name.lower() in known}


def _access(values: Mapping[str, str]) -> Access:
    text, variable = values.get("connectionstring"), values.get("connectionstringenv")
    if bool(text) == bool(variable):
        raise ValueError(
            f"{'Both' if text else 'Neither'} of the options connectionString and connectionStringEnv are set. Set one "
            "of them, preferably connectionStringEnv: the name of an environment variable with the connection string."
        )
    return Access(variable, values.get("connectionverify"), text)


def _entities(values: Mapping[str, str]) -> Entities:
    queues, subscriptions = _names(values, "queue"), _names(values, "subscription")
    pattern, topic = values.get("queuepattern"), values.get("topic")
    if sum(bool(choice) for choice in (queues, pattern, topic)) != 1:
        raise ValueError(
            "Set one of these options to say what to read: queue (one name, or several separated by commas), "
            "queuePattern, or topic with subscription."
        )
    if bool(topic) != bool(subscriptions):
        raise ValueError("Set the options topic and subscription together: messages wait in subscriptions.")
    if pattern:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"queuePattern is {pattern!r}, which is not a regular expression: {error}.") from None
    name = values.get("subqueue", "")
    sub_queue = SUB_QUEUES.get(name.replace("-", "").lower())
    if name and sub_queue is None:
        raise ValueError(f"subQueue is {name!r}; allowed: 'deadLetter' or 'transferDeadLetter'.")
    return Entities(queues, pattern or None, topic or None, subscriptions, sub_queue)


def _names(values: Mapping[str, str], option: str) -> tuple[str, ...]:
    names = [piece.strip() for piece in values.get(option, "").split(",") if piece.strip()]
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ValueError(f"{option} names {name!r} twice.")
        seen.add(name.lower())
    return tuple(names)


def _number(values: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = values.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise ValueError(f"{name} is {text!r}; allowed: a whole number from {least} to {most}.")
    return value


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} is {text!r}; allowed: true or false.")
    return text == "true"
