"""Every table and every column.

The schemas of frames come from here, and so does the data dictionary:
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
    """The Spark type of a field of `Record`; an optional field has the same type, as every column is nullable."""
    (plain,) = [part for part in (get_args(kind) or (kind,)) if part is not type(None)]
    return next(spark for python, spark in reversed(_SPARK_TYPES.items()) if issubclass(plain, python))


_RECORD_TYPES = {name: _spark_type(kind) for name, kind in get_type_hints(Record).items()}
LINE_SCHEMA = t.StructType(
    [*(t.StructField(name, kind) for name, kind in _RECORD_TYPES.items()), t.StructField(BROKEN, _TEXT)]
)
"""A ledger line: the fields of `Record`. A field that an older writer left out is null; a field that a newer writer
added is ignored."""


def _recorded(name: str, meaning: str) -> tuple[str, t.DataType, str]:
    """A column with the type of its field in `Record`."""
    return name, _RECORD_TYPES[name], meaning


SILVER = _table(
    "silver",
    "One row for each ledger record, cleaned.",
    _recorded("process", "the process that recorded it: host, process id and a random part"),
    _recorded("n", "number of the record within the process"),
    ("at", _TIME, "when the operation ended, by the process's clock, UTC"),
    _recorded("role", "client, syphon, receiver or namespace"),
    _recorded("operation", "what was done; the ledger's reference lists all operations"),
    _recorded("entity", "where it was done, in lower case"),
    ("target", _TEXT, "the application's entity it was done for, if known, else `entity`"),
    (
        "primary",
        _TEXT,
        "the primary's name: the start of a backlog queue's path, else the first label of the namespace",
    ),
    ("backlog", _TEXT, "the backlog queue that was involved, null if none was"),
    ("on_backlog", _BOOL, "whether `entity` is a backlog queue"),
    _recorded("route", "primary, backlog, spool or syphon"),
    _recorded("outcome", "ok, failed, unknown (no answer) or empty (nothing received)"),
    _recorded("message_id", "the message's id, or its salted hash"),
    _recorded("id_hashed", "whether it is a hash"),
    _recorded("bytes", "size of the message, 0 if unknown"),
    _recorded("billed", "billed operations"),
    _recorded("error", "class of the error"),
    _recorded("latency_us", "how long the operation took, in microseconds"),
    _recorded("episode", "the failover it belongs to"),
    _recorded("state_from", "for a transition: the state before"),
    _recorded("state_to", "for a transition: the state after"),
    _recorded("cause", "why a state changed, a message was dead-lettered, or records are missing"),
    _recorded("count", "for a gap: the number of missing operations, else 1"),
    _recorded("address", "in a namespace's own records: the host and port by which clients may know it"),
    ("file", _TEXT, "the ledger file it was read from"),
    ("day", _DAY, "day of `at`; partition"),
    _recorded("namespace", "the namespace where it was done, in lower case; partition"),
)

QUARANTINE = _table(
    "quarantine",
    "Ledger lines that are not records, or are duplicates, with the reason. Nothing is dropped.",
    ("file", _TEXT, "the ledger file"),
    ("process", _TEXT, "the process that recorded it, if readable"),
    ("n", _LONG, "its number, if readable"),
    ("reason", _TEXT, "what is wrong"),
    ("line", _TEXT, "the line, if it cannot be parsed"),
)

_MESSAGE = (
    ("primary", _TEXT, "the primary's name"),
    ("target", _TEXT, "the entity the message is for"),
    ("message_id", _TEXT, "the message's id"),
    ("episode", _TEXT, "the failover in which it was diverted"),
    ("first_at", _TIME, "its first record"),
    ("last_at", _TIME, "its last record"),
    ("diverted_at", _TIME, "when it was first accepted into a backlog or spool"),
    ("home_at", _TIME, "when the primary first accepted it from a backlog or spool"),
    ("accepted", _INT, "copies reported to the application as accepted"),
    ("direct", _INT, "copies sent to the primary and accepted"),
    ("diverted", _INT, "copies accepted by a backlog queue"),
    ("spooled", _INT, "copies written to a spool"),
    ("unspooled", _INT, "copies that left a spool"),
    ("restored", _INT, "copies from a backlog that the primary accepted"),
    ("dead_lettered", _INT, "copies dead-lettered in a backlog queue; in `audit` the accepted ones that stay so"),
    ("expired", _INT, "copies that expired in a backlog queue; in `audit` the accepted ones that stay so"),
    ("resubmitted", _INT, "copies moved from a dead-letter queue back to their backlog queue"),
    ("removed", _INT, "copies completed in a backlog queue"),
    ("received", _INT, "copies that receivers settled"),
    ("failed", _INT, "attempts that were refused"),
    ("in_doubt", _INT, "attempts without an answer"),
    ("refused", _INT, "attempts of the application's own sends, on any route, that were refused or had no answer"),
    ("unanswered", _INT, "the application's attempts to put it into a backlog or spool that had no answer"),
    ("handled", _INT, "records of processes that took it from a backlog or spool, including failed restores"),
    ("hashed", _INT, "records with a hash instead of the id"),
)

MESSAGES = _table(
    "messages",
    "The evidence about every message that did not simply go to the primary. Other tables are computed from it.",
    ("k1", _LONG, "first half of a hash of primary, target and message id"),
    ("k2", _LONG, "second half"),
    ("subscription", _TEXT, "the topic's subscription, in rows that only count its receipts; else empty"),
    *_MESSAGE,
    ("namespace_home", _INT, "copies that the primary accepted, by its own ledger"),
    ("namespace_received", _INT, "copies that receivers settled, by the primary's own ledger"),
    ("day", _DAY, "day of `diverted_at`, else of `first_at`, in the message's own row; partition"),
)

AUDIT = _table(
    "audit",
    "What became of every message that was accepted into a backlog or a spool.",
    *_MESSAGE,
    ("inferred", _INT, "of `accepted`: 1 if no client recorded it, but it was in a backlog or spool"),
    ("home", _INT, "copies that the primary accepted, by the ledger that shows more"),
    ("delivered", _INT, "accepted copies that were delivered"),
    ("waiting", _INT, "accepted copies that still wait in a backlog or spool"),
    ("lost", _INT, "accepted copies that are nowhere: there must be none"),
    ("duplicates", _INT, "copies beyond the accepted ones"),
    ("verdict", _TEXT, "lost, waiting, dead-lettered, expired, duplicated, never accepted or delivered"),
    ("day", _DAY, "day of `diverted_at`, or of `first_at` if no client recorded it; partition"),
)

OPERATIONS_DAILY = _table(
    "operations_daily",
    "Operations and billed units by namespace, entity and kind.",
    ("namespace", _TEXT, "where they were done; its own name if it keeps a ledger"),
    ("entity", _TEXT, "on which entity"),
    ("primary", _TEXT, "for which primary"),
    ("target", _TEXT, "for which of its entities"),
    ("role", _TEXT, "the role that recorded them"),
    ("operation", _TEXT, "what was done"),
    ("route", _TEXT, "on which route"),
    ("outcome", _TEXT, "how it ended"),
    (
        "cause",
        _TEXT,
        "why the pairing caused them: pings, idle receives, diverted messages, creation; null if it did not",
    ),
    ("operations", _LONG, "the number of operations"),
    ("billed", _LONG, "billed operations"),
    ("bytes", _LONG, "bytes carried"),
    ("latency_us_sum", _LONG, "sum of latencies, in microseconds"),
    ("latency_us_max", _LONG, "the longest latency, in microseconds"),
    ("in_bill", _BOOL, "false if the namespace's own ledger counts the same operations"),
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
    "Messages diverted in each failover, by the day of the messages; summed in `episodes`.",
    ("episode", _TEXT, "the failover"),
    ("diverted", _LONG, "messages diverted"),
    ("home", _LONG, "of which the primary has"),
    ("waiting", _LONG, "of which still wait"),
    ("first_diverted_at", _TIME, "when the first was diverted"),
    ("last_home_at", _TIME, "when the last came home"),
    ("day", _DAY, "the day; partition"),
)

EPISODES = _table(
    "episodes",
    "Each failover of an entity in a paired client.",
    ("primary", _TEXT, "the primary's name"),
    ("target", _TEXT, "the entity"),
    ("process", _TEXT, "the process of the paired client"),
    ("episode", _TEXT, "the name of the failover"),
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
    ("still_waiting", _LONG, "messages that still wait"),
    ("mean_seconds", _REAL, "mean waiting time"),
    ("p50_seconds", _REAL, "half waited no longer"),
    ("p90_seconds", _REAL, "nine of ten waited no longer"),
    ("p99_seconds", _REAL, "99 of 100 waited no longer"),
    ("max_seconds", _REAL, "the longest waiting time"),
    ("day", _DAY, "the day; partition"),
)

AVAILABILITY = _table(
    "availability",
    "The share of accepted sends, with the pairing and as it would have been without it.",
    ("primary", _TEXT, "the primary's name"),
    ("target", _TEXT, "the entity"),
    ("offered", _LONG, "messages the application tried to send"),
    ("accepted", _LONG, "messages accepted, by the primary, a backlog or a spool"),
    ("accepted_by_primary", _LONG, "messages that the primary accepted"),
    ("with_pairing", _REAL, "accepted / offered"),
    ("without_pairing", _REAL, "accepted by the primary / offered"),
    ("day", _DAY, "the day; partition"),
)

BILLS = _table(
    "bills",
    "The cost of each namespace in each month, by the tariff that is valid on the first day of the month.",
    ("namespace", _TEXT, "the namespace"),
    ("month", _DAY, "first day of the month"),
    ("what", _TEXT, "line of the bill"),
    ("quantity", _MONEY, "hours, operations or connections"),
    ("price", _MONEY, "price of one, or of a million operations"),
    ("amount", _MONEY, "quantity at that price"),
    ("currency", _TEXT, "the tariff's currency"),
    ("tariff", _TEXT, "the tariff and its first day"),
    ("plan", _TEXT, "basic, standard or premium"),
    ("day", _DAY, "the same as `month`; partition"),
)

PAIRING_COST = _table(
    "pairing_cost",
    "The cost that the pairing added to each namespace and month, by cause. Causes share step prices in proportion.",
    ("namespace", _TEXT, "the namespace"),
    ("month", _DAY, "first day of the month"),
    ("cause", _TEXT, "pings, idle receives, diverted messages or creation"),
    ("billed", _LONG, "billed operations; a diverted message counts four, including the application's receive"),
    ("amount", _MONEY, "their cost on top of the rest of the month"),
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
also by namespace). Times and days are UTC, whatever the session's time zone. A column of *copies* counts a message as
often as it was accepted, carried or received: a message that was accepted once and delivered once has 1 in both.

## Reading them

Only what `CURRENT.json` names is current: the folders also have what the last build replaced. From Python:

```python
from pairbus.pipeline import schemas
from pairbus.pipeline.session import local_session
from pairbus.pipeline.store import TableStore

spark = local_session()
store = TableStore("tables")
audit = store.read_table(spark, schemas.AUDIT.schema, "audit", store.manifest())
audit.where("verdict = 'lost'").show()
```

Any other reader of Parquet takes the paths from `CURRENT.json`: `tables.NAME.DAY` is the number of the build, and
`NAME/batch=NUMBER/day=DAY/` (six digits) is the folder.

## Building them

- Each build reads only new ledger files, recomputes only the days they touch, and becomes current in one step. A build
  that is killed has changed nothing; run again, it gives the same tables.
- Files may arrive late and in any order. The records of a settled message may be read up to seven days apart, those of
  a waiting message any time apart. If an id is used again, its uses of the last seven days count.
- A file is identified by its name, a record by its `process` and `n`. A record counts once, even if it appears again in
  a copy of a file under another name, or twice in a file, in this build or a later one. The copies are in `quarantine`
  as `recorded twice`. In a ledger without copies this check costs one scan of two columns of the new records.
- Build as often as you like: every few minutes from cron or a systemd timer, or once a day. A second build at the same
  time is refused. Ledger files that were read may be moved away; files that have changed are refused.
- However often you build, the number of files is bounded. A day of a gold table is written as a whole, in one file for
  each task: up to two for each core. Each build adds files to silver, for each day and namespace that it read: one for
  each core or, beyond that, for each 128 MiB of ledger (each ledger file counts as 4 MiB more than its size). A day
  with more than 32 builds is written again as one, in files of about 128 MiB.
- Two builds of one ledger into two folders are independent: an experiment does not disturb the tables in use.
- Bills use the prices given to `pairbus ledger build`. A report shows the bills of the tables, unless it is given other
  prices: then it makes its own bills, and the tables keep theirs. A name in `--connections` that no namespace has is
  reported on standard error. It is not an error: a namespace may not have done anything yet.
- A line that is not a record goes to `quarantine` with the reason. Fields that a newer writer added are ignored. A line
  with a newer `version` is quarantined, and read by the next full build of a newer program. So are numbers that no
  writer writes, such as a size of 2^63-1, and lines above 1 MiB. Symbolic links and other entries of the ledger folder
  that are not ledger files are skipped, with a warning that names them.
"""


def dictionary() -> str:
    clean, kept = (SILVER, QUARANTINE), (MESSAGES, TRANSITIONS, EPISODE_MESSAGES)
    answers = tuple(table for table in TABLES if table not in clean + kept)
    chapters = {"Silver: clean records": clean, "Gold: answers": answers, "Kept from build to build": kept}
    return _HEAD + "".join(f"\n## {title}\n{''.join(map(_section, tables))}" for title, tables in chapters.items())


def _section(table: Table) -> str:
    rows = "".join(f"| `{c.name}` | {c.type.simpleString()} | {c.meaning} |\n" for c in table.columns)
    return f"\n### {table.name}\n{table.meaning}\n\n| column | type | meaning |\n|---|---|---|\n{rows}"


if __name__ == "__main__":
    sys.stdout.write(dictionary())
