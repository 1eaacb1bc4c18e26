"""`pairbus fault` as a user runs it, against a server in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError

from pairbus.testing import EmbeddedNamespace, wait_until

ENTITY_DISABLED = "com.microsoft:entity-disabled"


def fault(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pairbus.cli", "fault", *words], capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNamespace]:
    data = tmp_path_factory.mktemp("contoso")
    with EmbeddedNamespace("contoso-faults", data=data, process=True) as namespace:
        with namespace.admin() as admin:
            admin.create_queue("orders")
        yield namespace


def spellings(server: EmbeddedNamespace) -> dict[str, str]:
    return {
        "its data folder": str(server.data),
        "its description": str(server.data / "server.json"),
        "its connection string": server.connection_string,
    }


@pytest.mark.parametrize("spelling", ["its data folder", "its description", "its connection string"])
def test_a_fault_is_set_listed_and_cleared_by(server: EmbeddedNamespace, spelling: str) -> None:
    target = spellings(server)[spelling]
    done = fault(target, "--entity", "orders", "--mode", "hang")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"Fault hang: orders at 127.0.0.1:{server.port}, until it is cleared.\n"
    listed = [json.loads(line) for line in fault(target).stdout.splitlines()]
    assert [(each["mode"], each["entity"]) for each in listed] == [("hang", "orders")]
    assert fault(target, "--clear").stdout.startswith("Faults cleared")
    assert fault(target).stdout.startswith("No fault is active")


def test_the_sdk_sees_the_fault_and_its_end(server: EmbeddedNamespace) -> None:
    words = ["--entity", "orders", "--mode", "error", "--condition", ENTITY_DISABLED]
    assert fault(str(server.data), *words).returncode == 0
    with server.client(retry_total=0) as client:
        sender = client.get_queue_sender("orders")
        with pytest.raises(MessagingEntityDisabledError):
            sender.send_messages(ServiceBusMessage("not now"))
        assert fault(str(server.data), "--clear", "--entity", "orders").returncode == 0
        sender.send_messages(ServiceBusMessage("now"))


def test_a_fault_with_a_duration_ends_by_itself(server: EmbeddedNamespace) -> None:
    assert fault(str(server.data), "--entity", "orders", "--mode", "refuse", "--for", "300ms").returncode == 0
    wait_until(lambda: not server.faults(), what="the fault to end")


def test_a_key_without_the_manage_right_switches_nothing(server: EmbeddedNamespace) -> None:
    head, _, _ = server.connection_string.partition("SharedAccessKey=")
    done = fault(f"{head}SharedAccessKey=d3JvbmcgYXMgY2FuIGJl", "--mode", "hang")
    assert done.returncode == 2
    assert "refuses the key" in done.stderr
    assert "d3JvbmcgYXMgY2FuIGJl" not in done.stderr
    assert server.faults() == []


def test_a_server_that_was_killed_is_recognised(tmp_path: Path) -> None:
    with EmbeddedNamespace("contoso-killed", data=tmp_path, process=True) as namespace:
        namespace.kill()
        for target in ("contoso-killed", str(tmp_path)):
            done = fault(target, "--mode", "hang")
            assert done.returncode == 2
            assert "pairbus serve" in done.stderr
            assert done.stderr.count("\n") == 1
