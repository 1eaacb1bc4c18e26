"""An embedded namespace for tests: start it, talk to it with the official SDK, break it, bring it back.

    with EmbeddedNamespace("contoso") as contoso:
        contoso.admin().create_queue("orders")
        contoso.fault("hang", entity="orders", duration=5)

Rules:
- The connection string stays the same over `restart`: same port, same key, same data.
- Without a data folder it keeps its data in a temporary one, which goes with it.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.embedded.clock import Clock
from pairbus.embedded.errors import Limits
from pairbus.embedded.faults import RemoteSwitchboard
from pairbus.embedded.running import RunningServer
from pairbus.testing.hosts import Host, ProcessHost, ThreadHost


def _keep_a_port() -> tuple[socket.socket, int]:
    """A free port that stays ours while its server is down.

    Bound but not listening: the server may bind it too, since both allow it, connections to it are refused, and the
    system gives it to nobody else, neither to another server nor to a connection that goes out.
    """
    kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port: int = kept.getsockname()[1]
    return kept, port


class EmbeddedNamespace:
    """A namespace in this process, or, with `process=True`, in a child process that can be killed.

    A clock of the test's own and other limits are for a namespace in this process. With `ledger`, a folder, the
    namespace records every operation there.
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
        self._own_data = data is None
        self._data = Path(tempfile.mkdtemp(prefix="pairbus-")) if data is None else data
        self._host: Host = (
            ProcessHost(name, self._data, config, ledger)
            if process
            else ThreadHost(name, self._data, config, clock, limits, ledger)
        )
        self._port = port
        self._kept_port: socket.socket | None = None
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
        """Starts the server; after `kill` or `stop`, again, on the same port and data."""
        if self._running is None:
            if self._port == 0:
                self._kept_port, self._port = _keep_a_port()
            self._running = self._known = self._host.start(self._port)
        return self

    def stop(self) -> None:
        """Stops the server in order."""
        self._running = None
        self._host.stop()

    def kill(self) -> None:
        """Ends the child process with SIGKILL: nothing is flushed, nothing is closed."""
        self._host.kill()
        self._running = None

    def restart(self) -> Self:
        """Brings the server back after `kill` or `stop`; one that runs is stopped first."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stops the server and removes a data folder of our own."""
        try:
            self.stop()
        finally:
            if self._kept_port is not None:
                self._kept_port.close()
            if self._own_data:
                shutil.rmtree(self._data, ignore_errors=True)

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def data(self) -> Path:
        return self._data

    @property
    def pid(self) -> int:
        """The process that serves: another one after each restart of a child process."""
        return self._details().pid

    @property
    def port(self) -> int:
        return self._details().port

    @property
    def connection_string(self) -> str:
        """Good also while the server is down: that is when a pairing is interesting."""
        return self._details().connection_string

    @property
    def ca_file(self) -> str:
        """The certificate that an administration client has to trust (`connection_verify`)."""
        return self._details().ca_file

    def _details(self) -> RunningServer:
        if self._known is None:
            raise RuntimeError(f"'{self.name}' was never started: use it as a context manager, or call start().")
        return self._known

    def client(self, **options: Any) -> ServiceBusClient:
        """The SDK's client; options are the SDK's. The caller closes it."""
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
        """Switches a fault on, for an entity or for all; `delay` and `duration` in seconds."""
        self._switchboard().set(
            mode,
            entity=entity,
            condition=condition,
            rate=rate,
            delay_ms=None if delay is None else round(delay * 1000),
            for_ms=None if duration is None else round(duration * 1000),
        )

    def clear_faults(self, entity: str | None = None) -> None:
        """Ends the faults of an entity, or all of them."""
        self._switchboard().clear(entity)

    def faults(self) -> list[dict[str, Any]]:
        """The faults that are on."""
        return self._switchboard().list()

    def _switchboard(self) -> RemoteSwitchboard:
        return RemoteSwitchboard(self.connection_string)


@dataclass(frozen=True, slots=True)
class EmbeddedPair:
    """Two namespaces to pair: where the application's entities live, and where the backlog waits."""

    primary: EmbeddedNamespace
    secondary: EmbeddedNamespace


@contextmanager
def embedded_pair(folder: Path | None = None, *, process: bool = False) -> Iterator[EmbeddedPair]:
    """A running pair, `contoso` and `contoso-standby`; both start at the same time."""
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
