"""The durable local journal for when both namespaces are down."""

from pairbus.spool.journal import Entry, Journal

__all__ = ["Entry", "Journal"]
