"""Carry a backlog home with Spark, and prove that nothing is lost.

An outage fills the backlog queues of the secondary. When it is over, a Spark job carries everything home, and the
ledger says what became of each message. Runs on two local namespaces of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from azure.servicebus import ServiceBusMessage

from pairbus import SendAvailabilityPairedNamespaceOptions, pair_namespace
from pairbus.pipeline import Access, run_spark_syphon
from pairbus.pipeline.report import summarise
from pairbus.pipeline.session import local_session
from pairbus.testing import EmbeddedPair, embedded_pair


def send_through_an_outage(pair: EmbeddedPair, ledger: Path) -> None:
    options = SendAvailabilityPairedNamespaceOptions(
        pair.secondary.admin(),
        pair.secondary.client(),
        primary_name="contoso",
        backlog_queue_count=2,
        failover_interval=0,
        ledger=ledger,
    )
    with (
        pair_namespace(pair.primary.client(retry_total=0), options) as paired,
        paired.get_queue_sender("orders") as sender,
    ):
        pair.primary.fault("error", entity="orders", condition="amqp:internal-error")
        for number in range(200):
            sender.send_messages(ServiceBusMessage(f"order {number}", message_id=f"order-{number}"))
        pair.primary.clear_faults()


def main() -> None:
    with embedded_pair(process=True) as pair, tempfile.TemporaryDirectory() as folder:
        with pair.primary.admin() as admin:
            admin.create_queue("orders")
        send_through_an_outage(pair, Path(folder))
        spark = local_session("example", cores=2)
        primary, secondary = (
            Access(None, end.ca_file, end.connection_string) for end in (pair.primary, pair.secondary)
        )
        report = run_spark_syphon(primary, secondary, spark=spark, once=True, primary_name="contoso", ledger=folder)
        print(f"{report.restored} messages carried home in {report.rounds} round(s)")
        print(summarise(spark, folder).sentence)
        spark.stop()


if __name__ == "__main__":
    main()
