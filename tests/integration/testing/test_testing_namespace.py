"""`pairbus.testing`: what it promises to people who write tests with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusConnectionError

from pairbus.embedded.errors import Limits
from pairbus.testing import EmbeddedNamespace, EmbeddedPair, ManualClock


def send(client: ServiceBusClient, text: str) -> None:
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage(text))


def peek(client: ServiceBusClient) -> list[str]:
    with client.get_queue_receiver("orders") as receiver:
        return [str(message) for message in receiver.peek_messages(100)]


def both_ways(pair: EmbeddedPair) -> None:
    assert pair.primary.connection_string != pair.secondary.connection_string
    for namespace in (pair.primary, pair.secondary):
        with namespace.admin() as admin:
            admin.create_queue("orders")
        with namespace.client() as client:
            send(client, namespace.name)
            assert peek(client) == [namespace.name]


def test_a_pair_in_this_process(pairbus_pair: EmbeddedPair) -> None:
    both_ways(pairbus_pair)


def test_a_pair_of_child_processes(pairbus_process_pair: EmbeddedPair) -> None:
    both_ways(pairbus_process_pair)
    assert pairbus_process_pair.primary.pid != pairbus_process_pair.secondary.pid


@pytest.mark.parametrize("process", [False, True], ids=["in process", "child process"])
def test_a_restart_keeps_the_connection_string_and_the_messages(process: bool) -> None:
    with EmbeddedNamespace(process=process) as namespace:
        with namespace.admin() as admin:
            admin.create_queue("orders")
        before = namespace.connection_string
        with namespace.client() as client:
            send(client, "kept")
        namespace.stop()
        assert not namespace.running
        assert namespace.connection_string == before
        with namespace.client(retry_total=0) as client, pytest.raises(ServiceBusConnectionError):
            send(client, "nobody there")
        namespace.restart()
        assert namespace.connection_string == before
        with namespace.client() as client:
            assert peek(client) == ["kept"]


def test_a_killed_process_comes_back_as_another_one() -> None:
    with EmbeddedNamespace(process=True) as namespace:
        with namespace.admin() as admin:
            admin.create_queue("orders")
        killed = namespace.pid
        namespace.kill()
        namespace.start()
        assert namespace.pid != killed
        with namespace.admin() as admin:
            assert admin.get_queue("orders").name == "orders"


def test_a_namespace_in_this_process_cannot_be_killed() -> None:
    with EmbeddedNamespace() as namespace:
        with pytest.raises(RuntimeError, match="process=True"):
            namespace.kill()
        assert namespace.running


@pytest.mark.parametrize("process", [False, True], ids=["in process", "child process"])
def test_faults_from_python(process: bool) -> None:
    with EmbeddedNamespace(process=process) as namespace:
        with namespace.admin() as admin:
            admin.create_queue("orders")
        namespace.fault("slow", entity="orders", delay=0.001)
        namespace.fault("throttle", rate=10.5, duration=3600)
        modes = {fault.get("entity"): fault["mode"] for fault in namespace.faults()}
        assert modes == {"orders": "slow", None: "throttle"}
        namespace.clear_faults("orders")
        assert [fault["mode"] for fault in namespace.faults()] == ["throttle"]
        namespace.clear_faults()
        assert namespace.faults() == []


def test_a_namespace_that_is_down_in_any_way_can_still_be_mended() -> None:
    with EmbeddedNamespace() as namespace:
        for mode in ("refuse", "drop", "hang", "accept-then-fail"):
            namespace.fault(mode)
            assert [fault["mode"] for fault in namespace.faults()] == [mode]
        namespace.clear_faults()
        with namespace.admin() as admin:
            admin.create_queue("orders")
        with namespace.client() as client:
            send(client, "mended")
            assert peek(client) == ["mended"]


def test_a_test_owns_the_time_of_its_namespace() -> None:
    clock = ManualClock()
    with EmbeddedNamespace(clock=clock) as namespace:
        with namespace.admin() as admin:
            admin.create_queue("orders")
        with namespace.client() as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("locked"))
            with client.get_queue_receiver("orders") as receiver:
                (first,) = receiver.receive_messages(max_wait_time=10)
                assert first.delivery_count == 0
                clock.advance(61)  # the lock lasts a minute
                (again,) = receiver.receive_messages(max_wait_time=10)
                assert (str(again), again.delivery_count) == ("locked", 1)


def test_limits_of_ones_own() -> None:
    with EmbeddedNamespace(limits=Limits(max_message_bytes=2048)) as namespace:
        with namespace.admin() as admin:
            admin.create_queue("orders")
        with namespace.client() as client, pytest.raises(MessageSizeExceededError):
            send(client, "x" * 4000)


def test_what_a_child_process_cannot_have_is_said() -> None:
    with pytest.raises(ValueError, match="has its own clock and limits"):
        EmbeddedNamespace(process=True, clock=ManualClock())


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        EmbeddedNamespace(data=tmp_path),
        pytest.raises(RuntimeError, match=r"did not start: pairbus: .* is in use by another server"),
    ):
        EmbeddedNamespace(data=tmp_path, process=True).start()


def test_before_the_start_there_is_no_connection_string() -> None:
    namespace = EmbeddedNamespace()
    with pytest.raises(RuntimeError, match="was never started"):
        _ = namespace.connection_string
    namespace.close()


def test_its_own_data_folder_goes_with_it() -> None:
    with EmbeddedNamespace() as namespace:
        assert namespace.data.is_dir()
    assert not namespace.data.exists()


def test_the_plugin_costs_a_test_run_nothing_until_it_is_used() -> None:
    code = "import sys, pairbus.testing.plugin; print({'azure', 'aiohttp', 'proton'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


def test_the_fixtures_work_in_a_project_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(pairbus_pair):\n    assert pairbus_pair.primary.connection_string\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_several_namespaces_in_one_process_do_not_mix() -> None:
    with EmbeddedNamespace("one") as one, EmbeddedNamespace("two") as two:
        with one.admin() as admin:
            admin.create_queue("orders")
        with two.admin() as admin:
            assert [queue.name for queue in admin.list_queues()] == []
