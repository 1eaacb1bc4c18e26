"""Every table and every column, as `tables.toml` lists them, and the schema of a ledger line.

`scripts/generate_tables_reference.py` writes the data dictionary, docs/reference/tables.md, from here.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple, get_args, get_type_hints

from pyspark.sql import types as t

from pairbus.ledger.records import Record


class Column(NamedTuple):
    name: str
    type: str
    """As in the JSON form of a Spark schema."""
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> t.StructType:
        fields = [{"name": c.name, "type": c.type, "nullable": True, "metadata": {}} for c in self.columns]
        return t.StructType.fromJson({"type": "struct", "fields": fields})

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def _read_tables() -> dict[str, Table]:
    content = tomllib.loads((files("pairbus.pipeline") / "tables.toml").read_text(encoding="utf-8"))
    tables = {}
    for name, table in content["tables"].items():
        lists = [content["evidence"] if column == "evidence" else [column] for column in table["columns"]]
        tables[name] = Table(name, table["meaning"], tuple(Column(*column) for each in lists for column in each))
    return tables


_BY_NAME = _read_tables()
TABLES = tuple(_BY_NAME.values())
SILVER, QUARANTINE = _BY_NAME["silver"], _BY_NAME["quarantine"]
MESSAGES, AUDIT, WAITING = _BY_NAME["messages"], _BY_NAME["audit"], _BY_NAME["waiting"]
TRANSITIONS, EPISODES, EPISODE_MESSAGES = _BY_NAME["transitions"], _BY_NAME["episodes"], _BY_NAME["episode_messages"]
OPERATIONS_DAILY, AVAILABILITY = _BY_NAME["operations_daily"], _BY_NAME["availability"]
BILLS, PAIRING_COST = _BY_NAME["bills"], _BY_NAME["pairing_cost"]

BROKEN = "_broken"
"""The column of a ledger line that Spark could not parse."""

_SPARK_TYPES: dict[type, t.DataType] = {bool: t.BooleanType(), int: t.LongType(), str: t.StringType()}


def _spark_type(kind: Any) -> t.DataType:
    """The Spark type of a field of `Record`; an optional field has the same type, as every column is nullable."""
    (plain,) = [part for part in (get_args(kind) or (kind,)) if part is not type(None)]
    return next(spark for python, spark in _SPARK_TYPES.items() if issubclass(plain, python))


LINE_SCHEMA = t.StructType(
    [
        *(t.StructField(name, _spark_type(kind)) for name, kind in get_type_hints(Record).items()),
        t.StructField(BROKEN, t.StringType()),
    ]
)
"""A ledger line: the fields of `Record`. A field that an older writer left out is null; a field that a newer writer
added is ignored."""
