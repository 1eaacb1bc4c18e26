"""What leaves the journal, or does not, is in the ledger: an attempt without an answer explains a later duplicate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from azure.servicebus import ServiceBusMessage
from tests.support.pairing import Shell, paired

from pairbus.testing import wait_until
from pairbus.testing.namespace import EmbeddedPair

FAST: dict[str, Any] = {"failover_interval": 0, "ping_primary_interval": 1, "send_timeout": 3}


@pytest.fixture
def pair(own_pair: EmbeddedPair) -> EmbeddedPair:
    return own_pair


@pytest.mark.parametrize("shell", get_args(Shell))
@pytest.mark.parametrize(("fault", "outcome"), [("refuse", "failed"), ("accept-then-fail", "unknown")])
def test_what_the_primary_did_not_take_from_the_spool_is_recorded(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path, fault: str, outcome: str
) -> None:
    spool, ledger = tmp_path / "spool", tmp_path / "ledger"
    with paired(pair, shell, spool=spool, backlog_queue_count=1, **FAST) as client:
        pair.primary.stop()
        pair.secondary.stop()
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("kept", message_id="m"))
    pair.primary.restart()
    pair.secondary.restart()
    pair.primary.fault(fault, entity="orders")
    with paired(pair, shell, spool=spool, ledger=ledger, backlog_queue_count=1, **FAST) as client:
        wait_until(lambda: client.spool.depth == 0, 60, "an empty spool")
    records = [json.loads(line) for file in ledger.iterdir() for line in file.read_bytes().splitlines()]
    spooled = [one for one in records if one.get("route") == "spool"]
    assert [(one["operation"], one.get("outcome", "ok"), one["message_id"]) for one in spooled] == [
        ("send", outcome, "m"),
        ("divert", "ok", "m"),
    ]
