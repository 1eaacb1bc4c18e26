"""The durable local journal for when both namespaces are down."""

from pairbus.spool.journal import SpooledMessage, SpoolEntry, SpoolJournal, look_into

__all__ = ["SpoolEntry", "SpoolJournal", "SpooledMessage", "look_into"]
