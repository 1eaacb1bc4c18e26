"""When the demo may stop counting copies: not while one is in somebody's hand, or in a dead-letter queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage

from pairbus.demo.fleet import ORDERS, PRICES
from pairbus.demo.story import _create_entities, _left_over
from pairbus.testing import embedded_pair


def test_what_is_not_completed_is_left_over(tmp_path: Path) -> None:
    with embedded_pair(tmp_path) as pair, pair.primary.admin() as admin, pair.primary.client() as client:
        _create_entities(admin)
        assert _left_over(admin) == 0
        with client.get_queue_sender(ORDERS) as orders, client.get_topic_sender(PRICES) as prices:
            orders.send_messages([ServiceBusMessage("a", message_id="a"), ServiceBusMessage("b", message_id="b")])
            both: dict[Any, Any] = {"region": "europe", "amount": 600}
            prices.send_messages(ServiceBusMessage("c", message_id="c", application_properties=both))
        assert _left_over(admin) == 4
        with client.get_queue_receiver(ORDERS) as receiver:
            first, second = [next(iter(receiver)), next(iter(receiver))]
            assert _left_over(admin) == 4
            receiver.complete_message(first)
            receiver.dead_letter_message(second)
        for name in ("europe", "large"):
            with client.get_subscription_receiver(PRICES, name) as receiver:
                receiver.complete_message(next(iter(receiver)))
        assert _left_over(admin) == 1
