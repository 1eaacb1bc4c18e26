"""Write docs/reference/tables.md: the data dictionary of the tables. A test fails when the page is out of date."""

from __future__ import annotations

from pathlib import Path

from pairbus.pipeline.schemas import EPISODE_MESSAGES, MESSAGES, QUARANTINE, SILVER, TABLES, TRANSITIONS, Table

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "tables.md"
HEAD = """# Tables

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
audit = store.read(spark, schemas.AUDIT)
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
  that are not ledger files are skipped, with a warning that names them; the report says how many.
"""


def page() -> str:
    clean, kept = (SILVER, QUARANTINE), (MESSAGES, TRANSITIONS, EPISODE_MESSAGES)
    answers = tuple(table for table in TABLES if table not in clean + kept)
    chapters = {"Silver: clean records": clean, "Gold: answers": answers, "Kept from build to build": kept}
    return HEAD + "".join(f"\n## {title}\n{''.join(map(_section, tables))}" for title, tables in chapters.items())


def _section(table: Table) -> str:
    types = (field.dataType.simpleString() for field in table.schema)
    rows = "".join(f"| `{c.name}` | {kind} | {c.meaning} |\n" for c, kind in zip(table.columns, types, strict=True))
    return f"\n### {table.name}\n{table.meaning}\n\n| column | type | meaning |\n|---|---|---|\n{rows}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
