"""Spark imports every module named `pyspark_*`, so the format `servicebus` needs no registration."""

from pairbus.pipeline.servicebus import ServiceBusDataSource

DefaultSource = ServiceBusDataSource
