"""A namespace that was killed leaves its secrets only in the private files that hold them."""

from __future__ import annotations

from pathlib import Path

from azure.servicebus import ServiceBusMessage
from tests.support.leaks import leaks, secrets_of

from pairbus.testing import EmbeddedNamespace


def test_a_crash_leaves_no_secret_elsewhere(tmp_path: Path) -> None:
    data, ledger = tmp_path / "data", tmp_path / "ledger"
    with EmbeddedNamespace("contoso", data=data, ledger=ledger, process=True) as namespace:
        with namespace.admin() as admin:
            admin.create_queue("orders")
        with namespace.client() as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("an order"))
        namespace.kill()
        secrets = secrets_of(data)
        assert len(secrets) >= 3
        assert list(ledger.iterdir())
        assert list(leaks(secrets, tmp_path)) == []
        (tmp_path / "core").write_bytes(b"..." + min(secrets))
        assert list(leaks(secrets, tmp_path)) == [tmp_path / "core"], "the search finds what it looks for"
