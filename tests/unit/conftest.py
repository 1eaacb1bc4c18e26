"""No test in this folder may start a server: those belong to tests/integration."""

from __future__ import annotations

import socket
import subprocess
from typing import Any, NoReturn

import pytest

SENTENCE = "A test in tests/unit {}: move it to tests/integration, or test the module without it."


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    start_process = subprocess.Popen.__init__

    def refuse_to_listen(*_: Any) -> NoReturn:
        pytest.fail(SENTENCE.format("listens on a socket"))

    def refuse_to_serve(self: Any, command: Any, *rest: Any, **options: Any) -> None:
        if not isinstance(command, str | bytes) and "serve" in map(str, command):
            pytest.fail(SENTENCE.format("starts a server process"))
        start_process(self, command, *rest, **options)

    monkeypatch.setattr(socket.socket, "listen", refuse_to_listen, raising=False)
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse_to_serve)
