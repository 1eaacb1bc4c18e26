"""The durable local journal for when both namespaces are down."""

from pairbus.spool.journal import SpoolEntry, SpoolJournal

__all__ = ["SpoolEntry", "SpoolJournal"]
