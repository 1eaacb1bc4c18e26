"""The durable local journal for when both namespaces are down."""

from pairbus.spool.journal import DEFAULT_LIMIT_BYTES, Entry, Journal

__all__ = ["DEFAULT_LIMIT_BYTES", "Entry", "Journal"]
