"""Where an embedded namespace runs: on a thread of this process, or in a child process.

Both start a server on a data folder and say where it listens, and both can be started again on the same folder and
port. Only a child process can be killed: that is what it is for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Protocol

from pairbus.embedded.clock import Clock
from pairbus.embedded.errors import Limits
from pairbus.embedded.running import RunningServer
from pairbus.embedded.server import EmbeddedServer
from pairbus.testing.waiting import wait_until

START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 120.0


class Host(Protocol):
    def start(self, port: int) -> RunningServer: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class ThreadHost:
    """A server on an event loop of its own, on a thread of this process."""

    def __init__(
        self,
        name: str,
        data: Path,
        config: Path | None,
        clock: Clock | None,
        limits: Limits | None,
        ledger: Path | None = None,
    ) -> None:
        self._name = name
        self._data = data
        self._config = config
        self._clock = clock
        self._limits = limits or Limits()
        self._ledger = ledger
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: EmbeddedServer | None = None

    def start(self, port: int) -> RunningServer:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name=f"pairbus {self._name}", daemon=True)
        thread.start()
        self._loop, self._thread = loop, thread

        async def start() -> EmbeddedServer:
            server = EmbeddedServer(
                self._name,
                self._data,
                port=port,
                config=self._config,
                clock=self._clock,
                limits=self._limits,
                ledger=self._ledger,
            )
            await server.start()
            return server

        try:
            server = asyncio.run_coroutine_threadsafe(start(), loop).result(START_TIMEOUT_SECONDS)
        except BaseException:
            self._end_loop()
            raise
        self._server = server
        return RunningServer(
            name=self._name,
            port=server.port,
            connection_string=server.connection_string,
            ca_file=str(server.ca_file),
            pid=os.getpid(),
        )

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


def _without_options() -> dict[str, str]:
    """The environment without options of the command line: they are meant for a command that somebody typed."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}


class ProcessHost:
    """A server in a child process, run by `pairbus serve`.

    The child watches its standard input, whose other end is ours: it goes when we go, however we go.
    """

    def __init__(self, name: str, data: Path, config: Path | None, ledger: Path | None = None) -> None:
        self._name = name
        self._data = data
        self._config = config
        self._ledger = ledger
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, port: int) -> RunningServer:
        with tempfile.TemporaryDirectory(prefix="pairbus-") as folder:
            ready_file = Path(folder, "ready.json")
            complaint = Path(folder, "stderr")
            command = [sys.executable, "-m", "pairbus.cli", "serve", self._name, "--stop-with-stdin"]
            command += ["--port", str(port), "--data", str(self._data), "--ready-file", str(ready_file)]
            if self._config is not None:
                command += ["--config", str(self._config)]
            if self._ledger is not None:
                command += ["--ledger", str(self._ledger)]
            with complaint.open("wb") as stderr:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    env=_without_options(),
                    start_new_session=True,  # Ctrl-C is ours to pass on, in our order
                )
            self._process = process
            try:
                wait_until(
                    lambda: ready_file.exists() or process.poll() is not None,
                    START_TIMEOUT_SECONDS,
                    f"the server '{self._name}' to take connections",
                )
                if process.poll() is not None:
                    said = complaint.read_text(encoding="utf-8", errors="replace").strip()
                    raise RuntimeError(f"The server '{self._name}' did not start: {said}")
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
