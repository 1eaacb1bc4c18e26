"""The ledger: the operations of paired clients, syphons, spools and embedded namespaces, one JSON line each."""

from pairbus.ledger.files import closed_files, open_files, publish_orphans
from pairbus.ledger.records import (
    SCHEMA_VERSION,
    CompletedOperation,
    Operation,
    Outcome,
    Record,
    Role,
    Route,
    error_name,
    is_backlog_queue,
    outcome_of,
)
from pairbus.ledger.writer import LedgerLimits, LedgerWriter

__all__ = [
    "SCHEMA_VERSION",
    "CompletedOperation",
    "LedgerLimits",
    "LedgerWriter",
    "Operation",
    "Outcome",
    "Record",
    "Role",
    "Route",
    "closed_files",
    "error_name",
    "is_backlog_queue",
    "open_files",
    "outcome_of",
    "publish_orphans",
]
