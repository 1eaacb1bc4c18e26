"""The Spark connector for Service Bus.

The way of a message: `wire` (AMQP) → `messages` (sections) → `columns` (rows); and back: `sending` (rows to messages)
→ `wire`. `batch`, `stream` and `writer` are what Spark calls; `options`, `ranges`, `offsets`, `variant` and `filters`
are values and functions without any connection.
"""

from pairbus.pipeline.servicebus.source import ServiceBusDataSource

__all__ = ["ServiceBusDataSource"]
