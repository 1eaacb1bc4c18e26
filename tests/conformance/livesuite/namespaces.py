"""Namespaces as the suite sees them: each is a ``pairbus serve`` child process with its own key and data folder."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from livesuite import network

# Generous: many servers start at once, on machines that do other things too.
START_TIMEOUT_S = 180
MANAGEMENT_NAMESPACE = "management-tests"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A running embedded namespace and how to reach it through the names the suite uses."""

    name: str
    host: str
    key_name: str
    key: str
    folder: Path
    process: subprocess.Popen[bytes]
    log: IO[str]

    def connection_string(self, key_name: str, key: str, entity_path: str | None = None) -> str:
        """As the resource manager hands it out: no emulator flag, the default ports."""
        text = f"Endpoint=sb://{self.host}/;SharedAccessKeyName={key_name};SharedAccessKey={key}"
        return f"{text};EntityPath={entity_path}" if entity_path else text


_running: dict[str, Namespace] = {}


def start(name: str) -> Namespace:
    """The namespace called ``name``; started on the first call."""
    if name not in _running:
        _running[name] = _serve(name)
    return _running[name]


def by_host(host: str) -> Namespace | None:
    """The running namespace whose host name stands in ``host``, which may carry a port."""
    wanted = host.partition(":")[0].lower()
    return next((namespace for namespace in _running.values() if namespace.host == wanted), None)


def new_log_lines() -> list[tuple[str, str]]:
    """What each server logged since this was last asked."""
    return [(namespace.name, namespace.log.read()) for namespace in _running.values()]


def stop_all() -> None:
    """End the children and remove their folders."""
    for namespace in _running.values():
        namespace.process.terminate()
    for namespace in _running.values():
        try:
            namespace.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            namespace.process.kill()
        if namespace.process.stdin is not None:
            namespace.process.stdin.close()
        network.withdraw(namespace.name)
        namespace.log.close()
        shutil.rmtree(namespace.folder, ignore_errors=True)
    _running.clear()


def _serve(name: str) -> Namespace:
    folder = Path(tempfile.mkdtemp(prefix=f"pairbus-conformance-{name}-"))
    ready_file = folder / "ready.json"
    # It stops with this process, however that ends: then nobody holds the other end of its standard input.
    command = [sys.executable, "-m", "pairbus.cli", "serve", name, "--port", "0", "--stop-with-stdin"]
    command += ["--data", str(folder / "data"), "--ready-file", str(ready_file)]
    # Only its log: what it prints for its owner holds a key.
    with (folder / "server.log").open("wb") as log:
        # The pipe is never written to: it closes when this process ends, however it ends, and the server goes too.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log)
    ready = _wait_until_ready(process, ready_file, folder / "server.log")
    key_name, key = _key_of(ready["connection_string"])
    host = network.publish(name, int(ready["port"]), Path(ready["ca_file"]))
    return Namespace(name, host, key_name, key, folder, process, (folder / "server.log").open())


def _wait_until_ready(process: subprocess.Popen[bytes], ready_file: Path, log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if ready_file.is_file() and (text := ready_file.read_text()):
            ready: dict[str, Any] = json.loads(text)
            return ready
        if process.poll() is not None:
            raise RuntimeError(f"The embedded namespace ended with {process.returncode}: {log.read_text()}")
        time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"The embedded namespace was not ready after {START_TIMEOUT_S} s: {log.read_text()}")


def _key_of(connection_string: str) -> tuple[str, str]:
    parts = dict(part.split("=", 1) for part in connection_string.rstrip(";").split(";"))
    return parts["SharedAccessKeyName"], parts["SharedAccessKey"]
