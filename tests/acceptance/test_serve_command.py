"""`pairbus serve` as a user runs it: a process, its ready file, its signals, its refusals."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.testing import wait_until

PAIRBUS = (sys.executable, "-m", "pairbus.cli")


@contextmanager
def serving(folder: Path, *options: str, name: str | None = "contoso") -> Iterator[subprocess.Popen[str]]:
    """A server in the foreground of a process, ready; `folder/ready.json` tells where."""
    ready_file = folder / "ready.json"
    command = [*PAIRBUS, "serve", *([] if name is None else [name]), "--port", "0", "--data", str(folder / "data")]
    command += ["--ready-file", str(ready_file), *options]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until(lambda: ready_file.exists() or process.poll() is not None, what="the ready file")
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()


def ready(folder: Path) -> dict[str, str | int]:
    content: dict[str, str | int] = json.loads((folder / "ready.json").read_text())
    return content


def refused(*words: str) -> str:
    """The one sentence with which a command declines."""
    done = subprocess.run([*PAIRBUS, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("pairbus: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_server_says_where_it_is_and_the_sdk_uses_it(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        path = tmp_path / "ready.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        said = ready(tmp_path)
        assert set(said) == {"name", "port", "connection_string", "ca_file", "pid"}
        assert (said["name"], said["pid"]) == ("contoso", process.pid)
        assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
        connection_string = str(said["connection_string"])
        with ServiceBusAdministrationClient.from_connection_string(
            connection_string, connection_verify=said["ca_file"]
        ) as admin:
            admin.create_queue("orders")
        with ServiceBusClient.from_connection_string(connection_string) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("an order"))
            with client.get_queue_receiver("orders") as receiver:
                assert [str(message) for message in receiver.receive_messages(max_wait_time=10)] == ["an order"]
        process.send_signal(signal.SIGTERM)
        shown, complaints = process.communicate(timeout=30)
    assert f"Connection string: {connection_string}" in shown
    assert complaints == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as process:
        process.send_signal(number)
        _, complaints = process.communicate(timeout=30)
        assert (process.returncode, complaints) == (0, "")
    assert not (tmp_path / "ready.json").exists()
    assert not (tmp_path / "data" / "server.json").exists()


def test_it_comes_back_with_the_same_key_and_the_messages(tmp_path: Path) -> None:
    strings = []
    for text in ("first", "second"):
        with serving(tmp_path) as process:
            said = ready(tmp_path)
            strings.append(str(said["connection_string"]).partition(";")[2])
            with ServiceBusAdministrationClient.from_connection_string(
                str(said["connection_string"]), connection_verify=said["ca_file"]
            ) as admin:
                if text == "first":
                    admin.create_queue("orders")
            with ServiceBusClient.from_connection_string(str(said["connection_string"])) as client:
                with client.get_queue_sender("orders") as sender:
                    sender.send_messages(ServiceBusMessage(text))
                with client.get_queue_receiver("orders") as receiver:
                    peeked = [str(message) for message in receiver.peek_messages(10)]
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    assert peeked == ["first", "second"]
    assert strings[0] == strings[1]


def test_health_over_http(tmp_path: Path) -> None:
    with serving(tmp_path):
        address = f"http://127.0.0.1:{ready(tmp_path)['port']}/$pairbus/health"
        with urllib.request.urlopen(address) as answer:
            assert answer.status == 200


def test_it_goes_with_whoever_started_it(tmp_path: Path) -> None:
    """A test run or a demo that is killed leaves no servers behind."""
    program = f"""
import os, signal
from pathlib import Path
from pairbus.testing import EmbeddedNamespace
server = EmbeddedNamespace(data=Path({str(tmp_path / "data")!r}), process=True).start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    pid = int(killed.stdout)
    wait_until(lambda: not is_alive(pid), what="the orphaned server to go")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A process nobody waits for stays as a zombie: it is as gone as it can be.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_it_cannot_stop_with_a_file(tmp_path: Path) -> None:
    said = refused("serve", "contoso", "--data", str(tmp_path / "data"), "--port", "0", "--stop-with-stdin")
    assert "needs a pipe" in said


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused("serve", "contoso", "--data", str(tmp_path / "data"), "--port", port)
    assert port in said


def test_a_data_folder_that_is_held_is_said(tmp_path: Path) -> None:
    with serving(tmp_path):
        said = refused("serve", "contoso", "--data", str(tmp_path / "data"), "--port", "0")
    assert str(tmp_path / "data") in said


def test_a_data_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused("serve", "contoso", "--data", str(tmp_path / "file" / "d"), "--port", "0")


@pytest.mark.parametrize("content", ["{", "[]", '{"nonsense": 1}', None])
def test_a_config_that_does_not_parse_is_said(tmp_path: Path, content: str | None) -> None:
    config = tmp_path / "config.json"
    if content is not None:
        config.write_text(content)
    data = str(tmp_path / "data")
    assert str(config) in refused("serve", "contoso", "--data", data, "--port", "0", "--config", str(config))


def test_only_loopback_is_served(tmp_path: Path) -> None:
    said = refused("serve", "contoso", "--data", str(tmp_path / "data"), "--port", "0", "--host", "0.0.0.0")
    assert "0.0.0.0" in said


@pytest.mark.parametrize("name", ["no/slashes", "", "-" * 60, ".."])
def test_a_name_that_is_none_is_said(tmp_path: Path, name: str) -> None:
    assert repr(name) in refused("serve", "--data", str(tmp_path / "data"), "--port", "0", "--", name)


def test_a_server_is_found_by_its_name_in_any_case_and_from_anywhere(tmp_path: Path) -> None:
    with serving(tmp_path, name="contoso-by-name"):
        assert Path(str(ready(tmp_path)["ca_file"])).is_absolute()
        for spelling in ("contoso-by-name", "CONTOSO-BY-NAME"):
            done = subprocess.run(
                [*PAIRBUS, "fault", spelling, "--mode", "hang", "--for", "1s"], capture_output=True, text=True, cwd="/"
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert f"127.0.0.1:{ready(tmp_path)['port']}, for 1s" in done.stdout


def test_all_namespaces_of_a_config_are_served_at_once(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    queues = {"primary": "orders", "standby": "invoices"}
    namespaces = [{"Name": name, "Queues": [{"Name": queue}]} for name, queue in queues.items()]
    config.write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
    with serving(tmp_path, "--config", str(config), name=None) as process:
        described = [json.loads(line) for line in (tmp_path / "ready.json").read_text().splitlines()]
        assert [one["name"] for one in described] == list(queues)
        for one in described:
            with ServiceBusAdministrationClient.from_connection_string(
                one["connection_string"], connection_verify=one["ca_file"]
            ) as admin:
                assert [queue.name for queue in admin.list_queues()] == [queues[one["name"]]]
        assert sorted(path.name for path in (tmp_path / "data").iterdir()) == sorted(queues)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_serving_nobody_is_refused(tmp_path: Path) -> None:
    assert "No namespace is named" in refused("serve", "--data", str(tmp_path / "data"))


def test_a_namespace_named_twice_is_refused(tmp_path: Path) -> None:
    assert "named twice" in refused("serve", "contoso", "Contoso", "--data", str(tmp_path / "data"))
