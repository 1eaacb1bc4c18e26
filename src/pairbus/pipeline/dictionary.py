"""The data dictionary, written from the schemas: `python -m pairbus.pipeline.dictionary >
docs/reference/tables.md`.
"""

from __future__ import annotations

import sys

from pairbus.pipeline.schemas import (
    EPISODE_MESSAGES,
    MESSAGES,
    QUARANTINE,
    SILVER,
    TABLES,
    TRANSITIONS,
    Table,
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
