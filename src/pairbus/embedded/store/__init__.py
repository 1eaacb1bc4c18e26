"""The namespace on disk: one SQLite database in WAL mode, one writer.

`Store.commit` writes one group of changes in one transaction and returns when it is on disk (`synchronous=FULL`); it
runs in the writer's thread. Reading payloads happens on the loop's thread, through a connection of its own.
"""

from pairbus.embedded.store.database import SchemaError, Store

__all__ = ["SchemaError", "Store"]
