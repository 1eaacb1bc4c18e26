"""Send through an outage of the primary, on two embedded namespaces in this process.

.venv/bin/python examples/send_through_an_outage.py
"""

from __future__ import annotations

from azure.servicebus import ServiceBusMessage

from pairbus import SendAvailabilityPairedNamespaceOptions, pair_namespace
from pairbus.testing import embedded_pair


def main() -> None:
    with embedded_pair() as pair:
        with pair.primary.admin() as admin:
            admin.create_queue("orders")
        options = SendAvailabilityPairedNamespaceOptions(
            pair.secondary.admin(),
            pair.secondary.client(),
            primary_name="contoso",
            backlog_queue_count=1,
            failover_interval=0,
        )
        with (
            pair_namespace(pair.primary.client(retry_total=0), options) as paired,
            paired.get_queue_sender("orders") as sender,
        ):
            paired.on_transition(print)
            sender.send_messages(ServiceBusMessage("while the primary works"))
            pair.primary.fault("error", entity="orders", condition="amqp:internal-error")
            sender.send_messages(ServiceBusMessage("while the primary is down"))
            print(f"orders is {paired.state('orders').value}; both messages were accepted.")


if __name__ == "__main__":
    main()
