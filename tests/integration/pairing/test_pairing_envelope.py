"""A message that went through a backlog is, on the primary, the message that was sent directly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.support.messages import messages
from tests.support.pairing import backlog_raws, paired, raws

from pairbus import envelope
from pairbus.amqp.message import Sections, list_fields, map_items
from pairbus.envelope import Restored
from pairbus.pairing import sdk
from pairbus.testing.namespace import EmbeddedPair, embedded_pair

BROKERS = ("x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-message-state", "x-opt-enqueue-sequence-number")


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedPair, Any, Any]]:
    """A pair, a client that diverts everything, and one that knows nothing of pairing."""
    folder: Path = tmp_path_factory.mktemp("pair")
    with embedded_pair(folder) as pair:
        with pair.primary.admin() as admin:
            admin.create_queue("direct")
            admin.create_queue("orders")
        with (
            paired(pair, "sync", backlog_queue_count=1, ping_primary_interval=1800) as client,
            pair.primary.client() as bare,
        ):
            client.fail_over("orders")
            yield pair, client, bare


def shown(raw: bytes) -> dict[str, Any]:
    """What a receiver of the message can see, with what no two sends share left out."""
    parts = Sections.split(raw)
    properties = list_fields(parts.properties, 13)
    properties[8] = properties[9] = None  # the SDK derives these two from the moment of sending
    annotations = map_items(parts.message_annotations)
    return {
        "header": list_fields(parts.header, 5)[:4],
        "annotations": {key: value for key, value in annotations.items() if key not in BROKERS},
        "properties": [(type(value), value) for value in properties],
        "application": parts.application_properties,
        "body": parts.body,
        "footer": parts.footer,
    }


@given(message=messages(shortest_ttl_ms=3_600_000))
@settings(
    max_examples=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_out_through_the_backlog_and_home(ways: tuple[EmbeddedPair, Any, Any], message: Any) -> None:
    pair, client, bare = ways
    direct = senders(bare, "direct")
    direct.send_messages(message)
    senders(client, "orders").send_messages(message)

    form = backlog_raws(client, pair)[-1]
    home = envelope.restore(form, now_ms=time.time_ns() // 1_000_000)
    assert isinstance(home, Restored)
    assert home.destination == "orders"
    way_home = senders(bare, "orders")
    way_home.send_messages(sdk.RawBatch([home.raw], way_home))

    assert shown(raws(pair.primary, "orders")[-1]) == shown(raws(pair.primary, "direct")[-1])


def senders(client: Any, queue: str) -> Any:
    """One sender for each queue and client, kept open."""
    kept = vars(client).setdefault("_kept_for_the_test", {})
    if queue not in kept:
        kept[queue] = client.get_queue_sender(queue)
    return kept[queue]
