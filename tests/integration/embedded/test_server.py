"""The assembled server: starting, the reasons not to start, private files, the configuration, and stopping."""

import asyncio
import contextlib
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient, SqlRuleFilter

from pairbus.embedded.entities.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.embedded.errors import EntityNotFoundError, Limits
from pairbus.embedded.security import sign
from pairbus.embedded.server import EmbeddedServer, ServerStartError
from pairbus.testing import EmbeddedNamespace


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def serve(server: EmbeddedServer, work: Callable[[EmbeddedServer], Awaitable[None]]) -> None:
    async def main() -> None:
        await server.start()
        try:
            await work(server)
        finally:
            await server.stop()

    asyncio.run(main())


async def nothing(_: EmbeddedServer) -> None:
    pass


def refusal(server: EmbeddedServer) -> str:
    with pytest.raises(ServerStartError) as refused:
        serve(server, nothing)
    message = str(refused.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    data = tmp_path / "deep" / "data"

    async def work(server: EmbeddedServer) -> None:
        await server.broker.create(QueueDescription("q"))
        assert mode(data) == 0o700
        for file in data.iterdir():
            assert file.name == "ca.pem" or mode(file) == 0o600, file

    serve(EmbeddedServer("contoso", data), work)


def test_key_certificate_and_entities_stay_with_the_folder(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes]] = []

    async def work(server: EmbeddedServer) -> None:
        if not seen:
            await server.broker.create(QueueDescription("q"))
        assert server.broker.get("q").name == "q"
        secret = server.connection_string.partition("SharedAccessKey=")[2]
        seen.append((secret, server.ca_file.read_bytes()))

    for _ in range(2):
        serve(EmbeddedServer("contoso", tmp_path / "data"), work)
    assert seen[0] == seen[1]
    serve(EmbeddedServer("other", tmp_path / "other"), nothing)
    assert (tmp_path / "other" / "ca.pem").read_bytes() != seen[0][1]


def test_the_connection_string_is_the_emulators(tmp_path: Path) -> None:
    async def work(server: EmbeddedServer) -> None:
        parts = dict(part.partition("=")[::2] for part in server.connection_string.split(";"))
        assert parts["Endpoint"] == f"sb://127.0.0.1:{server.port}"
        assert parts["SharedAccessKeyName"] == "RootManageSharedAccessKey"
        assert parts["UseDevelopmentEmulator"] == "true"
        assert parts["SharedAccessKey"] not in repr(server)

    serve(EmbeddedServer("contoso", tmp_path / "data"), work)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refusal(EmbeddedServer("contoso", tmp_path / "data", port=port, ledger=tmp_path / "ledger"))
    assert f"Cannot use port {port} of 127.0.0.1 (Address already in use)" in message
    assert list(tmp_path.iterdir()) == [], "nothing was made for a server that cannot be"
    serve(EmbeddedServer("contoso", tmp_path / "data", port=port), nothing)


def test_a_port_that_is_none(tmp_path: Path) -> None:
    assert "Cannot use port 70000" in refusal(EmbeddedServer("contoso", tmp_path / "data", port=70_000))


def test_a_folder_held_by_another_server(tmp_path: Path) -> None:
    async def work(_: EmbeddedServer) -> None:
        with pytest.raises(ServerStartError, match=f"in use by another server \\(process {os.getpid()}\\)"):
            await EmbeddedServer("contoso", tmp_path / "data").start()

    serve(EmbeddedServer("contoso", tmp_path / "data"), work)
    serve(EmbeddedServer("contoso", tmp_path / "data"), nothing)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Cannot use the data folder" in refusal(EmbeddedServer("contoso", tmp_path / "file"))
    assert "Cannot use the data folder" in refusal(EmbeddedServer("contoso", tmp_path / "file" / "below"))


def test_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    assert "other users can write to it" in refusal(EmbeddedServer("contoso", tmp_path / "data"))
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("name", ["namespace.db", "namespace.db-wal", "server.pem", "ca.pem", "lock", "server.json"])
def test_a_planted_file(tmp_path: Path, name: str) -> None:
    """Whoever could write to the folder earlier may have left a database, a certificate or a link there."""
    serve(EmbeddedServer("contoso", tmp_path / "data"), nothing)
    planted = tmp_path / "data" / name
    kept = planted.read_bytes() if planted.exists() else b""
    victim = tmp_path / "victim"
    victim.write_bytes(kept)
    planted.unlink(missing_ok=True)
    planted.symlink_to(victim)
    assert f"do not trust '{name}' in it: it is a symbolic link" in refusal(
        EmbeddedServer("contoso", tmp_path / "data")
    )
    assert victim.read_bytes() == kept
    planted.unlink()
    planted.write_bytes(kept)
    planted.chmod(0o666)
    assert f"do not trust '{name}' in it: other users can" in refusal(EmbeddedServer("contoso", tmp_path / "data"))
    planted.chmod(0o600)
    serve(EmbeddedServer("contoso", tmp_path / "data"), nothing)


def test_a_ledger_folder_that_others_can_write_to(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger").chmod(0o777)
    message = refusal(EmbeddedServer("contoso", tmp_path / "data", ledger=tmp_path / "ledger"))
    assert f"Cannot use the ledger folder '{tmp_path / 'ledger'}': other users can write to it" in message


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no folders, not even from root")
def test_a_folder_that_cannot_be_made() -> None:
    assert "Cannot use the data folder /proc/pairbus/data" in refusal(
        EmbeddedServer("contoso", Path("/proc/pairbus/data"))
    )


def test_a_database_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "namespace.db").write_bytes(b"this is not a database, whatever its name says" * 100)
    assert "Cannot use the data folder" in refusal(EmbeddedServer("contoso", tmp_path))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "example.com", ""])
def test_only_loopback(tmp_path: Path, host: str) -> None:
    assert "loopback" in refusal(EmbeddedServer("contoso", tmp_path, host=host))


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 64, "../up"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    assert "not a valid namespace name" in refusal(EmbeddedServer(name, tmp_path))


def test_a_bad_configuration_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text('{"UserConfig":\n {"Namespaces": [{"Nam": "contoso"}]}}')
    message = refusal(EmbeddedServer("contoso", tmp_path / "data", config=config))
    assert f"{config}, line 2: the key 'Nam' is unknown in a namespace: did you mean Name?" in message
    assert not (tmp_path / "data").exists()


CONFIG = """{"UserConfig": {"Namespaces": [{
  "Name": "contoso",
  "Queues": [
    {"Name": "first", "Properties": {"ForwardTo": "second", "LockDuration": "PT30S"}},
    {"Name": "second"}
  ],
  "Topics": [{"Name": "events", "Subscriptions": [
    {"Name": "plain"},
    {"Name": "chosen", "Properties": {"ForwardTo": "second"}, "Rules": [
      {"Name": "by-label", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Label": "x"}}},
      {"Name": "by-sql", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a = 1"}}}
    ]}
  ]}]
}]}}
"""


def test_a_configuration_makes_the_entities_and_changes_them_at_the_next_start(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(CONFIG)
    with EmbeddedNamespace("contoso", data=tmp_path / "data", config=config) as namespace:
        with namespace.admin() as admin:
            assert [queue.name for queue in admin.list_queues()] == ["first", "second"]
            assert str(admin.get_queue("first").forward_to).endswith("/second")
            assert [rule.name for rule in admin.list_rules("events", "plain")] == ["$Default"]
            assert [rule.name for rule in admin.list_rules("events", "chosen")] == ["by-label", "by-sql"]
            assert isinstance(admin.get_rule("events", "chosen", "by-label").filter, CorrelationRuleFilter)
            admin.create_queue("mine")
        changed = CONFIG.replace('"PT30S"', '"PT40S"').replace('"a = 1"', '"a = 2"').replace("by-label", "by-subject")
        config.write_text(changed)
        namespace.restart()
        with namespace.admin() as admin:
            assert [queue.name for queue in admin.list_queues()] == ["first", "mine", "second"]
            lock_duration = admin.get_queue("first").lock_duration
            assert lock_duration is not None
            assert not isinstance(lock_duration, str)
            assert lock_duration.total_seconds() == 40
            assert [rule.name for rule in admin.list_rules("events", "chosen")] == ["by-sql", "by-subject"]
            sql = admin.get_rule("events", "chosen", "by-sql").filter
            assert isinstance(sql, SqlRuleFilter)
            assert sql.sql_expression == "a = 2"


def test_a_configuration_cannot_change_what_creation_fixed(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(CONFIG)
    serve(EmbeddedServer("contoso", tmp_path / "data", config=config), nothing)
    config.write_text(CONFIG.replace('"LockDuration": "PT30S"', '"RequiresSession": true'))
    message = refusal(EmbeddedServer("contoso", tmp_path / "data", config=config))
    assert "RequiresSession of 'first' is false and cannot be changed to true" in message


def test_several_namespaces_in_one_process_do_not_share_keys(tmp_path: Path) -> None:
    with EmbeddedNamespace("one", data=tmp_path / "1") as one, EmbeddedNamespace("two", data=tmp_path / "2") as two:
        assert one.port != two.port
        mixed = one.connection_string.replace(str(one.port), str(two.port))
        with (
            ServiceBusAdministrationClient.from_connection_string(mixed, connection_verify=two.ca_file) as admin,
            pytest.raises(ClientAuthenticationError),
        ):
            admin.create_queue("q")


HALF_A_HEADER = b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: "
HALF_A_BODY = b"PUT /$pairbus/faults HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
REQUEST_AND_PAUSE = b"GET /$pairbus/health HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
AMQP_OPEN = (  # SASL ANONYMOUS, then an open frame, and no token
    b"AMQP\x03\x01\x00\x00" + b"\x00\x00\x00\x19\x02\x01\x00\x00\x00\x53\x41\xc0\x0c\x01\xa3\x09ANONYMOUS"
    b"AMQP\x00\x01\x00\x00" + b"\x00\x00\x00\x11\x02\x00\x00\x00\x00\x53\x10\xc0\x04\x01\xa1\x01x"
)
HEALTH = b"GET /$pairbus/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
STRANGERS = [b"", b"\x16\x03\x01", b"AMQP", HALF_A_HEADER, HALF_A_BODY, REQUEST_AND_PAUSE, UPGRADE, AMQP_OPEN]


def test_strangers_with_every_connection_do_not_lock_out_a_client(tmp_path: Path) -> None:
    """Far more connections than the limit, in every state before a valid token, while clients work and come."""
    limits = Limits(max_connections=40)
    with EmbeddedNamespace("contoso", data=tmp_path / "data", limits=limits) as namespace, namespace.admin() as admin:
        admin.create_queue("q")
        with namespace.client() as early, early.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("before"))
            held = []
            for number in range(8):
                for said in STRANGERS:
                    held.append(socket.create_connection(("127.0.0.1", namespace.port), timeout=30))
                    held[-1].sendall(said)
                sender.send_messages(ServiceBusMessage(f"early {number}"))
                with namespace.client(retry_total=0) as late, late.get_queue_sender("q") as other:
                    other.send_messages(ServiceBusMessage(f"late {number}"))
            assert admin.get_queue_runtime_properties("q").active_message_count == 17
            for connection in held:
                connection.close()


@pytest.mark.parametrize("said", STRANGERS)
def test_a_connection_without_a_valid_token_is_closed_in_time(tmp_path: Path, said: bytes) -> None:
    limits = Limits(unproven_seconds=0.3)
    with (
        EmbeddedNamespace("contoso", data=tmp_path / "data", limits=limits) as namespace,
        socket.create_connection(("127.0.0.1", namespace.port), timeout=9) as connection,
    ):
        connection.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):
                pass


def test_a_stranger_cannot_stay_by_repeating_a_request_that_is_answered(tmp_path: Path) -> None:
    limits = Limits(unproven_seconds=0.3)
    with (
        EmbeddedNamespace("contoso", data=tmp_path / "data", limits=limits) as namespace,
        socket.create_connection(("127.0.0.1", namespace.port), timeout=9) as connection,
    ):
        answers, give_up_s = 0, time.monotonic() + 9
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(HEALTH)
            while connection.recv(4096):
                answers += 1
                assert time.monotonic() < give_up_s, "the connection stays open"
                connection.sendall(HEALTH)
        assert answers


def authorization(namespace: EmbeddedNamespace) -> dict[str, str]:
    parts = dict(part.split("=", 1) for part in namespace.connection_string.split(";"))
    names = parts["SharedAccessKeyName"], parts["SharedAccessKey"]
    return {"Authorization": sign("sb://localhost", *names, int(time.time()) + 600)}


def ask(connection: HTTPConnection, path: str, headers: dict[str, str] | None = None) -> int:
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_a_request_of_the_control_routes_with_a_token_proves_its_connection(tmp_path: Path) -> None:
    limits = Limits(max_connections=4)
    with EmbeddedNamespace("contoso", data=tmp_path / "data", limits=limits) as namespace:
        controlling, stranger, new = (HTTPConnection("127.0.0.1", namespace.port, timeout=9) for _ in range(3))
        with closing(controlling), closing(stranger), closing(new):
            assert ask(controlling, "/$pairbus/health") == ask(stranger, "/$pairbus/health") == 200
            assert ask(controlling, "/$pairbus/faults", authorization(namespace)) == 200
            assert ask(new, "/$pairbus/health") == 200
            opened = controlling.sock
            assert ask(controlling, "/$pairbus/faults", authorization(namespace)) == 200
            assert controlling.sock is opened
            with contextlib.suppress(ConnectionResetError):
                assert stranger.sock.recv(1) == b""


def test_a_request_with_a_token_waits_as_long_as_a_fault_lasts(tmp_path: Path) -> None:
    limits = Limits(unproven_seconds=1)
    with EmbeddedNamespace("contoso", data=tmp_path / "data", limits=limits) as namespace:
        namespace.fault("hang")
        waiting, stranger = (HTTPConnection("127.0.0.1", namespace.port, timeout=9) for _ in range(2))
        with closing(waiting), closing(stranger):
            waiting.request("GET", "/$Resources/Queues?api-version=2021-05", headers=authorization(namespace))
            stranger.request("GET", "/$Resources/Queues?api-version=2021-05")
            with contextlib.suppress(ConnectionResetError):
                assert stranger.sock.recv(1) == b""
            namespace.clear_faults()
            assert waiting.getresponse().status == 200


def test_connections_that_the_system_has_no_descriptors_for_are_not_promised() -> None:
    program = """if True:
        import logging, resource
        from pairbus.embedded.server import allowed_connections
        logging.basicConfig()
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, 600))
        print(allowed_connections(100), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        print(allowed_connections(2000), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["100", "400", "344", "600"]
    assert "At most 344 connections, not 2000" in done.stderr


def test_what_speaks_no_protocol_is_closed(tmp_path: Path) -> None:
    with EmbeddedNamespace("contoso", data=tmp_path / "data") as namespace:
        for greeting in (b"\x16\x03\x01garbage that is no handshake", b"AMQP garbage", b"\x00\x01\x02 \r\n\r\n"):
            with socket.create_connection(("127.0.0.1", namespace.port), timeout=30) as connection:
                connection.sendall(greeting)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
        with namespace.admin() as admin:
            assert list(admin.list_queues()) == []


def test_everything_decided_is_there_after_a_stop(tmp_path: Path) -> None:
    async def make(server: EmbeddedServer) -> None:
        broker = server.broker
        await broker.create(TopicDescription("t"))
        await broker.create(SubscriptionDescription("t", "s"))
        await broker.create(QueueDescription("q"))
        await broker.delete("q")

    async def look(server: EmbeddedServer) -> None:
        assert server.broker.get("t/Subscriptions/s").name == "s"
        with pytest.raises(EntityNotFoundError):
            server.broker.get("q")

    serve(EmbeddedServer("contoso", tmp_path / "data"), make)
    serve(EmbeddedServer("contoso", tmp_path / "data"), look)


def test_a_server_whose_disk_refuses_stops_and_frees_its_folder(tmp_path: Path) -> None:
    async def main() -> None:
        server = EmbeddedServer("contoso", tmp_path)
        await server.start()
        server.broker._store._writer.execute("PRAGMA busy_timeout = 0")
        with closing(sqlite3.connect(tmp_path / "namespace.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await server.stop()
        again = EmbeddedServer("contoso", tmp_path)
        await again.start()
        await again.stop()

    asyncio.run(main())


def test_a_client_learns_that_the_namespace_is_being_stopped(tmp_path: Path) -> None:
    with EmbeddedNamespace("contoso", data=tmp_path / "data") as namespace:
        with namespace.admin() as admin:
            admin.create_queue("q")
        with namespace.client(retry_total=0) as client, client.get_queue_receiver("q") as receiver:
            namespace.stop()
            with pytest.raises(ServiceBusConnectionError, match="being stopped"):
                receiver.receive_messages(max_wait_time=30)


def test_a_stopped_server_says_so(tmp_path: Path) -> None:
    server = EmbeddedServer("contoso", tmp_path / "data")
    serve(server, nothing)
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.port


IDLE = """
import asyncio, sys
from pathlib import Path
from pairbus.embedded.server import EmbeddedServer

async def main():
    server = EmbeddedServer("contoso", Path(sys.argv[1]))
    await server.start()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    print(resident, "pyspark" in sys.modules, "azure.servicebus" in sys.modules)
    await server.stop()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_idle_server_is_small_and_loads_neither_sdk_nor_spark(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", IDLE, str(tmp_path / "data")], capture_output=True, text=True, check=True, timeout=60
    )
    resident, pyspark, sdk = answer.stdout.split()
    assert int(resident) < 80 * 1024 * 1024
    assert (pyspark, sdk) == ("False", "False")
