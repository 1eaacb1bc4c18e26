"""Embedded namespaces for tests: start one, use it with the official SDK, break it, bring it back.

    with EmbeddedNamespace("contoso") as contoso:
        contoso.admin().create_queue("orders")
        contoso.fault("hang", entity="orders", duration=5)

Rules:
- `restart` keeps the connection string: same port, same key, same data.
- Without a data folder, a namespace uses a temporary one and removes it when it closes.
- A namespace runs on a thread of this process, or in a child process. Only a child process can be killed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.embedded.clock import Clock
from pairbus.embedded.errors import Limits
from pairbus.embedded.faults import RemoteSwitchboard
from pairbus.embedded.running import RunningServer
from pairbus.embedded.server import EmbeddedServer
from pairbus.testing.waiting import wait_until

START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 120.0


class EmbeddedNamespace:
    """A namespace in this process or, with `process=True`, in a child process that can be killed.

    `clock` and `limits` work only in this process. With `ledger`, a folder, the namespace records every operation.
    """

    def __init__(
        self,
        name: str = "contoso",
        *,
        data: Path | None = None,
        process: bool = False,
        port: int = 0,
        config: Path | None = None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        ledger: Path | None = None,
    ) -> None:
        if process and (clock is not None or limits is not None):
            raise ValueError("A namespace in a child process has its own clock and limits: leave them out.")
        self.name = name
        self._has_temporary_data = data is None
        self._data = Path(tempfile.mkdtemp(prefix="pairbus-")) if data is None else data
        self._host: Host = (
            ProcessHost(name, self._data, config, ledger)
            if process
            else ThreadHost(name, self._data, config=config, clock=clock, limits=limits, ledger=ledger)
        )
        self._port = port
        self._reserved_port: socket.socket | None = None
        self._running: RunningServer | None = None
        self._known: RunningServer | None = None

    def __repr__(self) -> str:
        return f"EmbeddedNamespace({self.name!r}, {self._running or 'not running'})"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start the server, or start it again after `kill` or `stop` on the same port and data."""
        if self._running is None:
            if self._port == 0:
                self._reserved_port, self._port = _reserve_port()
            self._running = self._known = self._host.start(self._port)
        return self

    def stop(self) -> None:
        """Stop the server cleanly."""
        self._running = None
        self._host.stop()

    def kill(self) -> None:
        """End the child process with SIGKILL: nothing is flushed or closed."""
        self._host.kill()
        self._running = None

    def restart(self) -> Self:
        """Start the server again; stop it first if it runs."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop the server and remove its temporary data folder."""
        try:
            self.stop()
        finally:
            if self._reserved_port is not None:
                self._reserved_port.close()
            if self._has_temporary_data:
                shutil.rmtree(self._data, ignore_errors=True)

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def data(self) -> Path:
        return self._data

    @property
    def pid(self) -> int:
        """The server's process id. It changes when a child process restarts."""
        return self._details().pid

    @property
    def port(self) -> int:
        return self._details().port

    @property
    def connection_string(self) -> str:
        """Valid while the server is down, too."""
        return self._details().connection_string

    @property
    def ca_file(self) -> str:
        """The certificate for the administration client's `connection_verify`."""
        return self._details().ca_file

    def _details(self) -> RunningServer:
        if self._known is None:
            raise RuntimeError(f"'{self.name}' was never started: use it as a context manager, or call start().")
        return self._known

    def client(self, **options: Any) -> ServiceBusClient:
        """The SDK's client, with the SDK's options. The caller closes it."""
        return ServiceBusClient.from_connection_string(self.connection_string, **options)

    def admin(self, **options: Any) -> ServiceBusAdministrationClient:
        """The SDK's administration client, trusting this server's certificate. The caller closes it."""
        return ServiceBusAdministrationClient.from_connection_string(
            self.connection_string, connection_verify=self.ca_file, **options
        )

    def fault(
        self,
        mode: str,
        *,
        entity: str | None = None,
        condition: str | None = None,
        rate: float | None = None,
        delay: float | None = None,
        duration: float | None = None,
    ) -> None:
        """Switch a fault on for one entity or for all; `delay` and `duration` are seconds."""
        self._switchboard().set(
            mode,
            entity=entity,
            condition=condition,
            rate=rate,
            delay_ms=None if delay is None else round(delay * 1000),
            for_ms=None if duration is None else round(duration * 1000),
        )

    def clear_faults(self, entity: str | None = None) -> None:
        """End the faults of one entity, or all faults."""
        self._switchboard().clear(entity)

    def faults(self) -> list[dict[str, Any]]:
        """The faults that are switched on."""
        return self._switchboard().list()

    def _switchboard(self) -> RemoteSwitchboard:
        return RemoteSwitchboard(self.connection_string)


@dataclass(frozen=True, slots=True)
class EmbeddedPair:
    """Two namespaces to pair: the primary holds the application's entities, the secondary the backlog."""

    primary: EmbeddedNamespace
    secondary: EmbeddedNamespace


@contextmanager
def embedded_pair(folder: Path | None = None, *, process: bool = False) -> Iterator[EmbeddedPair]:
    """Run a pair, `contoso` and `contoso-standby`, in `folder` or in temporary folders."""
    with ExitStack() as stack:
        namespaces = [
            EmbeddedNamespace(name, data=None if folder is None else folder / name, process=process)
            for name in ("contoso", "contoso-standby")
        ]
        for namespace in namespaces:
            stack.callback(namespace.close)
        with ThreadPoolExecutor(len(namespaces)) as starters:
            primary, secondary = starters.map(EmbeddedNamespace.start, namespaces)
        yield EmbeddedPair(primary, secondary)


def _reserve_port() -> tuple[socket.socket, int]:
    """Reserve a free port, so that it stays ours while the server is down.

    The socket is bound but does not listen. SO_REUSEADDR lets our server bind the port as well; connections are refused
    until it does, and the system gives the port to nobody else.
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port: int = reserved.getsockname()[1]
    return reserved, port


class Host(Protocol):
    """Runs a server on a data folder. It can be started again on the same folder and port."""

    def start(self, port: int) -> RunningServer: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class ThreadHost:
    """A server on its own event loop and thread in this process."""

    def __init__(self, name: str, data: Path, **options: Any) -> None:
        """`options` are those of `EmbeddedServer`."""
        self._name = name
        self._data = data
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: EmbeddedServer | None = None

    def start(self, port: int) -> RunningServer:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name=f"pairbus {self._name}", daemon=True)
        thread.start()
        self._loop, self._thread = loop, thread

        async def start() -> EmbeddedServer:
            server = EmbeddedServer(self._name, self._data, port=port, **self._options)
            await server.start()
            return server

        try:
            server = asyncio.run_coroutine_threadsafe(start(), loop).result(START_TIMEOUT_SECONDS)
        except BaseException:
            self._end_loop()
            raise
        self._server = server
        return RunningServer.of(server)

    def stop(self) -> None:
        if self._server is None or self._loop is None:
            return
        server, self._server = self._server, None
        try:
            asyncio.run_coroutine_threadsafe(server.stop(), self._loop).result(STOP_TIMEOUT_SECONDS)
        finally:
            self._end_loop()

    def kill(self) -> None:
        raise RuntimeError(
            f"'{self._name}' runs in this process and cannot be killed: use EmbeddedNamespace(..., process=True)."
        )

    def _end_loop(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_TIMEOUT_SECONDS)
            self._loop.close()
        self._loop = self._thread = None


class ProcessHost:
    """A server in a child process, run by `pairbus serve`.

    The child ends when its standard input closes, which happens when this process ends, however it ends.
    """

    def __init__(self, name: str, data: Path, config: Path | None, ledger: Path | None) -> None:
        self._name = name
        self._data = data
        self._options = {"--config": config, "--ledger": ledger}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, port: int) -> RunningServer:
        with tempfile.TemporaryDirectory(prefix="pairbus-") as folder:
            ready_file = Path(folder, "ready.json")
            errors = Path(folder, "stderr")
            command = [sys.executable, "-m", "pairbus.cli", "serve", self._name, "--stop-with-stdin"]
            command += ["--port", str(port), "--data", str(self._data), "--ready-file", str(ready_file)]
            for option, value in self._options.items():
                command += [] if value is None else [option, str(value)]
            # The variables of options are for commands that a user types.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}
            with errors.open("wb") as stderr:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    env=environment,
                    start_new_session=True,  # Ctrl-C must not reach it: we stop it in our own order
                )
            self._process = process
            try:
                wait_until(
                    lambda: ready_file.exists() or process.poll() is not None,
                    START_TIMEOUT_SECONDS,
                    f"the server '{self._name}' to accept connections",
                )
                if process.poll() is not None:
                    message = errors.read_text(encoding="utf-8", errors="replace").strip()
                    raise RuntimeError(f"The server '{self._name}' did not start: {message}")
                return RunningServer.read(ready_file)
            except BaseException:
                self.kill()
                raise

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal_number)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_SECONDS)
            raise
        finally:
            if process.stdin is not None:
                process.stdin.close()
