"""Every table and every column. Frames are made from this, and so is the data dictionary:
`python -m pairbus.pipeline.schemas > docs/reference/tables.md`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from pyspark.sql import types as t

from pairbus.ledger.records import Record

_SPARK_TYPES: dict[type, t.DataType] = {str: t.StringType(), int: t.LongType(), bool: t.BooleanType()}
_TEXT, _LONG, _INT = t.StringType(), t.LongType(), t.IntegerType()
_TIME, _DAY, _BOOL, _REAL = t.TimestampType(), t.DateType(), t.BooleanType(), t.DoubleType()
_MONEY = t.DecimalType(38, 12)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: t.DataType
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> t.StructType:
        return t.StructType([t.StructField(column.name, column.type) for column in self.columns])

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def _table(name: str, meaning: str, *columns: tuple[str, t.DataType, str]) -> Table:
    return Table(name, meaning, tuple(Column(*column) for column in columns))


BROKEN = "_broken"
"""The column of a ledger line that Spark could not parse."""


def _spark_type(kind: Any) -> t.DataType:
    """The Spark type of a field of `Record`; an optional field is of the same type, nullable."""
    (plain,) = [part for part in (get_args(kind) or (kind,)) if part is not type(None)]
    return next(spark for python, spark in reversed(_SPARK_TYPES.items()) if issubclass(plain, python))


_RECORD_TYPES = {name: _spark_type(kind) for name, kind in get_type_hints(Record).items()}
LINE_SCHEMA = t.StructType(
    [*(t.StructField(name, kind) for name, kind in _RECORD_TYPES.items()), t.StructField(BROKEN, _TEXT)]
)
"""A ledger line: the fields of `Record`. A field that an older writer left out is null or its default; one that a newer
writer added is ignored."""


def _recorded(name: str, meaning: str) -> tuple[str, t.DataType, str]:
    """A column with the type that the field has in `Record`."""
    return name, _RECORD_TYPES[name], meaning


SILVER = _table(
    "silver",
    "One row for each ledger record, cleaned.",
    _recorded("process", "who recorded it: host, process id and a random part"),
    _recorded("n", "number of the record within the process"),
    ("at", _TIME, "when the operation ended, by the process's clock, UTC"),
    _recorded("role", "client, syphon, receiver or namespace"),
    _recorded("operation", "what was done; the ledger's reference lists all"),
    _recorded("entity", "where it was done, in lower case"),
    ("target", _TEXT, "the application's entity it was done for, where that is known, else `entity`"),
    ("primary", _TEXT, "the primary's name: the head of a backlog queue's path, else the namespace's first label"),
    ("backlog", _TEXT, "the backlog queue that took part, null if none did"),
    ("on_backlog", _BOOL, "whether `entity` is a backlog queue"),
    _recorded("route", "primary, backlog, spool or syphon"),
    _recorded("outcome", "ok, failed, unknown (no answer) or empty (nothing received)"),
    _recorded("message_id", "the message's id, or its salted hash"),
    _recorded("id_hashed", "whether it is a hash"),
    _recorded("bytes", "size of the message, 0 if not known"),
    _recorded("billed", "billed operations"),
    _recorded("error", "class of the error"),
    _recorded("latency_us", "how long the operation took, in microseconds"),
    _recorded("episode", "the failover it belongs to"),
    _recorded("state_from", "for a transition: the state before"),
    _recorded("state_to", "for a transition: the state after"),
    _recorded("cause", "why a state changed, a message was dead-lettered, or records are missing"),
    _recorded("count", "for a gap: how many operations are missing, else 1"),
    _recorded("address", "of a namespace's own records: the host and port that clients may name it by"),
    ("file", _TEXT, "the ledger file it was read from"),
    ("day", _DAY, "day of `at`; partition"),
    _recorded("namespace", "namespace where it was done, in lower case; partition"),
)

QUARANTINE = _table(
    "quarantine",
    "Lines of the ledger that are no records, each with its reason. Nothing is dropped.",
    ("file", _TEXT, "the ledger file"),
    ("process", _TEXT, "who recorded it, if that can be read"),
    ("n", _LONG, "its number, if that can be read"),
    ("reason", _TEXT, "what is wrong"),
    ("line", _TEXT, "the line, if it could not be parsed at all"),
)

_MESSAGE = (
    ("primary", _TEXT, "the primary's name"),
    ("target", _TEXT, "the entity the message is for"),
    ("message_id", _TEXT, "the message's id"),
    ("episode", _TEXT, "the failover in which it was diverted"),
    ("first_at", _TIME, "its first record"),
    ("last_at", _TIME, "its last record"),
    ("diverted_at", _TIME, "when it was first accepted into a backlog or spool"),
    ("home_at", _TIME, "when the primary first took it out of a backlog or spool"),
    ("accepted", _INT, "copies the application was told are accepted"),
    ("direct", _INT, "copies sent to the primary and taken"),
    ("diverted", _INT, "copies taken by a backlog queue"),
    ("spooled", _INT, "copies written to a spool"),
    ("unspooled", _INT, "copies that left a spool"),
    ("restored", _INT, "copies taken by the primary from a backlog"),
    ("dead_lettered", _INT, "copies dead-lettered in a backlog queue; in `audit` the accepted ones that stay so"),
    ("expired", _INT, "copies whose time was over in a backlog queue; in `audit` the accepted ones that stay so"),
    ("resubmitted", _INT, "copies put back from a dead-letter queue into their backlog queue"),
    ("removed", _INT, "copies completed in a backlog queue"),
    ("received", _INT, "copies that receivers settled"),
    ("failed", _INT, "attempts that were refused"),
    ("in_doubt", _INT, "attempts without an answer"),
    ("refused", _INT, "attempts of the application's own sends, on any way, that were refused or had no answer"),
    ("unanswered", _INT, "the application's attempts to put it into a backlog or spool that had no answer"),
    ("handled", _INT, "records of those who had it from a backlog or spool, of restores also the failed ones"),
    ("hashed", _INT, "records that have a hash in place of the id"),
)

MESSAGES = _table(
    "messages",
    "The evidence about every message that did not simply go to the primary; the other tables are made from it.",
    ("k1", _LONG, "first half of a hash of primary, target and message id"),
    ("k2", _LONG, "second half"),
    ("subscription", _TEXT, "empty; or, in rows that only count receipts, the topic's subscription they are of"),
    *_MESSAGE,
    ("namespace_home", _INT, "copies that the primary's own ledger says it took"),
    ("namespace_received", _INT, "copies that the primary's own ledger says were settled"),
    ("day", _DAY, "day of `diverted_at`, or of `first_at` if it was not, by the message's own row; partition"),
)

AUDIT = _table(
    "audit",
    "What became of every message that was accepted into a backlog or a spool.",
    *_MESSAGE,
    ("inferred", _INT, "of `accepted`: 1 where no client has told, but it was in a backlog or spool all the same"),
    ("home", _INT, "copies the primary took, by whichever record shows more"),
    ("delivered", _INT, "accepted copies that were delivered"),
    ("waiting", _INT, "accepted copies that still wait in a backlog or spool"),
    ("lost", _INT, "accepted copies of which nothing is left: there must be none"),
    ("duplicates", _INT, "copies beyond the accepted ones"),
    ("verdict", _TEXT, "lost, waiting, dead-lettered, expired, duplicated, never accepted or delivered"),
    ("day", _DAY, "day of `diverted_at`, or of `first_at` if no client has told; partition"),
)

OPERATIONS_DAILY = _table(
    "operations_daily",
    "Operations and billed units by namespace, entity and kind.",
    ("namespace", _TEXT, "where they were done; by its own name if it keeps a ledger"),
    ("entity", _TEXT, "on which entity"),
    ("primary", _TEXT, "for which primary"),
    ("target", _TEXT, "for which of its entities"),
    ("role", _TEXT, "who recorded them"),
    ("operation", _TEXT, "what was done"),
    ("route", _TEXT, "on which way"),
    ("outcome", _TEXT, "how it ended"),
    ("cause", _TEXT, "what of the pairing it belongs to: pings, idle receives, diverted messages, creation, or null"),
    ("operations", _LONG, "how many"),
    ("billed", _LONG, "billed operations"),
    ("bytes", _LONG, "bytes carried"),
    ("latency_us_sum", _LONG, "sum of latencies, in microseconds"),
    ("latency_us_max", _LONG, "the longest, in microseconds"),
    ("in_bill", _BOOL, "false where the namespace's own ledger counts the same operations"),
    ("day", _DAY, "the day; partition"),
)

TRANSITIONS = _table(
    "transitions",
    "Every change of an entity's state in a paired client.",
    ("primary", _TEXT, "the primary's name"),
    ("target", _TEXT, "the entity"),
    ("process", _TEXT, "the process of the paired client"),
    ("episode", _TEXT, "the failover it belongs to"),
    ("n", _LONG, "number of the record within the process"),
    ("at", _TIME, "when"),
    ("state_from", _TEXT, "the state before"),
    ("state_to", _TEXT, "the state after"),
    ("cause", _TEXT, "why"),
    ("day", _DAY, "the day; partition"),
)

EPISODE_MESSAGES = _table(
    "episode_messages",
    "What was diverted in each failover, by the day of the messages; summed up in `episodes`.",
    ("episode", _TEXT, "the failover"),
    ("diverted", _LONG, "messages diverted"),
    ("home", _LONG, "of which the primary has"),
    ("waiting", _LONG, "of which still wait"),
    ("first_diverted_at", _TIME, "the first one"),
    ("last_home_at", _TIME, "the last one that came home"),
    ("day", _DAY, "the day; partition"),
)

EPISODES = _table(
    "episodes",
    "Each failover of an entity in a paired client.",
    ("primary", _TEXT, "the primary's name"),
    ("target", _TEXT, "the entity"),
    ("process", _TEXT, "the process of the paired client"),
    ("episode", _TEXT, "its name"),
    ("suspect_at", _TIME, "when the entity became suspect, null if it failed over at once"),
    ("failed_over_at", _TIME, "when it failed over, null if it recovered before"),
    ("healthy_at", _TIME, "when it was healthy again, null if it is not"),
    ("cause", _TEXT, "the first cause"),
    ("ended_by", _TEXT, "what made it healthy"),
    ("failed_over_seconds", _REAL, "how long it was failed over"),
    ("diverted", _LONG, "messages diverted"),
    ("home", _LONG, "of which the primary has"),
    ("waiting", _LONG, "of which still wait"),
    ("seconds_to_first_backlog_message", _REAL, "from the failover to the first message in a backlog"),
    ("seconds_to_drained", _REAL, "from healthy to the last message home, null while some wait"),
    ("day", _DAY, "day of the first transition; partition"),
)

WAITING = _table(
    "waiting",
    "How long messages waited in backlogs and spools, by the day they were diverted.",
    ("primary", _TEXT, "the primary's name"),
    ("target", _TEXT, "the entity"),
    ("messages", _LONG, "messages that came home"),
    ("still_waiting", _LONG, "messages that did not yet"),
    ("mean_seconds", _REAL, "mean time"),
    ("p50_seconds", _REAL, "half waited no longer"),
    ("p90_seconds", _REAL, "nine of ten waited no longer"),
    ("p99_seconds", _REAL, "99 of 100 waited no longer"),
    ("max_seconds", _REAL, "the longest time"),
    ("day", _DAY, "the day; partition"),
)

AVAILABILITY = _table(
    "availability",
    "Share of sends accepted, with the pairing and as it would have been without.",
    ("primary", _TEXT, "the primary's name"),
    ("target", _TEXT, "the entity"),
    ("offered", _LONG, "messages the application tried to send"),
    ("accepted", _LONG, "messages accepted, wherever"),
    ("accepted_by_primary", _LONG, "messages the primary itself accepted"),
    ("with_pairing", _REAL, "accepted / offered"),
    ("without_pairing", _REAL, "accepted by the primary / offered"),
    ("day", _DAY, "the day; partition"),
)

BILLS = _table(
    "bills",
    "What each namespace costs in each month, by the tariff that holds on its first day.",
    ("namespace", _TEXT, "the namespace"),
    ("month", _DAY, "first day of the month"),
    ("what", _TEXT, "line of the bill"),
    ("quantity", _MONEY, "hours, operations or connections"),
    ("price", _MONEY, "price of one (of a million operations)"),
    ("amount", _MONEY, "quantity at that price"),
    ("currency", _TEXT, "the tariff's currency"),
    ("tariff", _TEXT, "the tariff and the day it began"),
    ("plan", _TEXT, "basic, standard or premium"),
    ("day", _DAY, "the same as `month`; partition"),
)

PAIRING_COST = _table(
    "pairing_cost",
    "What the pairing added to each namespace's month, by cause. Amounts share the step prices in proportion.",
    ("namespace", _TEXT, "the namespace"),
    ("month", _DAY, "first day of the month"),
    ("cause", _TEXT, "pings, idle receives, diverted messages or creation"),
    ("billed", _LONG, "billed operations; a diverted message counts its four, the receiver's own included"),
    ("amount", _MONEY, "what they cost beyond the rest of the month"),
    ("currency", _TEXT, "the tariff's currency"),
    ("day", _DAY, "the same as `month`; partition"),
)

TABLES = (
    SILVER,
    QUARANTINE,
    OPERATIONS_DAILY,
    BILLS,
    PAIRING_COST,
    EPISODES,
    WAITING,
    AUDIT,
    AVAILABILITY,
    MESSAGES,
    TRANSITIONS,
    EPISODE_MESSAGES,
)


_HEAD = """# Tables

`pairbus ledger build` reads the [ledger](ledger.md) and keeps these tables, as Parquet, partitioned by day (silver
also by namespace). Times and days are UTC, whatever the session's time zone. A row that says
*copies* counts a message as often as it was accepted, carried or received; a message that was accepted once and
delivered once has 1 in both.

## Reading them

Only what `CURRENT.json` names is current: a folder may also hold what the last build replaced. From Python,

```python
from pairbus.pipeline import schemas
from pairbus.pipeline.session import local_session
from pairbus.pipeline.store import TableStore

spark = local_session()
store = TableStore("tables")
audit = store.read_table(spark, schemas.AUDIT.schema, "audit", store.manifest())
audit.where("verdict = 'lost'").show()
```

From any other reader of Parquet, take the paths from `CURRENT.json`: `tables.NAME.DAY` is the number of the build,
and `NAME/batch=NUMBER/day=DAY/` (six digits) is the folder.

## Building them

- Each build reads only ledger files it has not read, recomputes only the days they touch, and becomes current in one
  step. Killed at any moment it has changed nothing; run again it gives the same tables.
- Files may come late and in any order. A message's records may be read up to seven days apart after it was settled,
  and any time apart while it waits; an id that was used before counts with its uses of the last seven days.
- A file is known by its name, a record by its `process` and `n`: what comes again, in a copy of a file under another
  name or twice in a file, in this build or a later one, counts once. The copies are in `quarantine`, as
  `recorded twice`. In a ledger without copies this costs one look at two columns of what was read.
- Run it as often as you like: from cron or a systemd timer every few minutes for fresh tables, or once a day. A
  second build at the same time is refused. Ledger files that were read may be moved away; files that change are
  refused.
- However often you build, the number of files is bounded. A gold table's day is written as a whole, in one file for
  each task: up to two for each core. Silver grows with each build, for each day and namespace that it read about,
  by one file for each core or, beyond that, for each 128 MiB of ledger (a file counts as 4 MiB more than it has); a day
  that has come to more than 32 builds is written again as one, in files of about 128 MiB.
- Two builds of one ledger into two folders are independent: an experiment does not disturb the tables in use.
- Bills are made with the prices that `pairbus ledger build` is given. A report has the tables' own, whatever they are,
  unless it is given others: then it makes bills of its own, and the tables keep theirs. A name in `--connections` that
  no namespace has is told on standard error, and is no error: a namespace may have done nothing yet.
- A line that is no record goes to `quarantine` with its reason. Fields that a newer writer added are ignored; a
  `version` newer than the program knows is quarantined, and read by the next full build of a newer program.
"""


def dictionary() -> str:
    clean, kept = (SILVER, QUARANTINE), (MESSAGES, TRANSITIONS, EPISODE_MESSAGES)
    answers = tuple(table for table in TABLES if table not in clean and table not in kept)
    parts = [_HEAD, "\n## Silver: clean records\n"]
    parts += [_section(table) for table in clean]
    parts.append("\n## Gold: answers\n")
    parts += [_section(table) for table in answers]
    parts.append("\n## Kept from build to build\n")
    parts += [_section(table) for table in kept]
    return "".join(parts)


def _section(table: Table) -> str:
    rows = "".join(f"| `{c.name}` | {c.type.simpleString()} | {c.meaning} |\n" for c in table.columns)
    return f"\n### {table.name}\n{table.meaning}\n\n| column | type | meaning |\n|---|---|---|\n{rows}"


if __name__ == "__main__":
    sys.stdout.write(dictionary())
