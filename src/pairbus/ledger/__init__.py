"""The ledger: what every paired client, syphon, spool and embedded namespace did, one JSON line for each
operation.
"""

from pairbus.ledger.files import closed_files, open_files, publish_orphans
from pairbus.ledger.records import (
    SCHEMA_VERSION,
    Operation,
    Outcome,
    Record,
    Role,
    Route,
    is_backlog_queue,
)
from pairbus.ledger.scribe import LedgerLimits
from pairbus.ledger.writer import LedgerWriter

__all__ = [
    "SCHEMA_VERSION",
    "LedgerLimits",
    "LedgerWriter",
    "Operation",
    "Outcome",
    "Record",
    "Role",
    "Route",
    "closed_files",
    "is_backlog_queue",
    "open_files",
    "publish_orphans",
]
