"""`pairbus dashboard` as a user runs it: a process, its token, its signals, its refusals, who it answers."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.published import PRIMARY, published_hour

PAIRBUS = (sys.executable, "-m", "pairbus.cli", "dashboard")


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [*PAIRBUS, "--port", "0", "--state-dir", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None, process.communicate()
            yield process, int(found[1])
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> str:
    """The rest of what it said, once it has ended without a complaint."""
    assert process.stdout is not None
    assert process.stderr is not None
    shown, complaints = process.stdout.read(), process.stderr.read()
    assert (process.wait(60), complaints) == (0, "")
    return shown


def asked(
    port: int, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def refused(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [*PAIRBUS, *words], env=environment or None, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_it_serves_until_it_is_told_to_stop_and_keeps_its_token_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(state, "--allow-control") as (process, port):
        token_file = state / f"dashboard-{port}.token"
        token = token_file.read_text().strip()
        assert len(token) >= 40
        assert [stat.S_IMODE(path.stat().st_mode) for path in (state, token_file)] == [0o700, 0o600]
        assert asked(port, "/")[0] == 200
        process.send_signal(signal.SIGINT)
        shown = ended(process)
    assert str(token_file) in shown
    assert token not in shown  # standard output is no terminal: it may be a log
    assert not token_file.exists()


def test_a_stream_that_is_open_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/api/events")
        stream = connection.getresponse()
        assert stream.getheader("Content-Type", "").startswith("text/event-stream")
        assert stream.readline() == b"retry: 2000\n"
        process.send_signal(signal.SIGTERM)
        ended(process)
        connection.close()


def test_every_answer_is_guarded_and_other_names_are_refused(tmp_path: Path) -> None:
    with published_hour(tmp_path / "state"), serving(tmp_path / "state") as (_, port):
        for path in ("/", "/page.js", "/page.css", "/api/state", "/nowhere"):
            status, headers, _ = asked(port, path)
            lowered = {name.lower(): value for name, value in headers.items()}
            assert status == (404 if path == "/nowhere" else 200)
            assert lowered["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
            assert (lowered["x-content-type-options"], lowered["cache-control"]) == ("nosniff", "no-store")
            assert "set-cookie" not in lowered
            assert "access-control-allow-origin" not in lowered
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "[::1", "0.0.0.0"):
            status, _, body = asked(port, "/api/state", Host=host)
            assert status in (400, 421), host
            assert b"orders" not in body
        for host in ("localhost", f"localhost:{port}", "127.0.0.1:9999", "[::1]:80"):
            assert asked(port, "/api/state", Host=host)[0] == 200, host


def test_without_control_nothing_can_be_changed(tmp_path: Path) -> None:
    with published_hour(tmp_path / "state"), serving(tmp_path / "state") as (_, port):
        wish = json.dumps({"action": "fail over", "primary": PRIMARY, "entity": "orders"}).encode()
        status, _, body = asked(port, "/api/control", "POST", wish, X_Pairbus_Token="x")
        assert (status, json.loads(body)["error"]) == (403, "This page is read-only: start it with --allow-control.")
        assert asked(port, "/api/control")[0] == 405
        assert list((tmp_path / "state").rglob("request-*")) == []


def test_a_request_that_nobody_takes_is_taken_back(tmp_path: Path) -> None:
    with published_hour(tmp_path / "state"), serving(tmp_path / "state", "--allow-control") as (_, port):
        (token_file,) = (tmp_path / "state").glob("*.token")
        wish = json.dumps({"action": "fail over", "primary": PRIMARY, "entity": "orders"}).encode()
        status, _, body = asked(port, "/api/control", "POST", wish, X_Pairbus_Token=token_file.read_text().strip())
        said: dict[str, Any] = json.loads(body)
        assert (status, said["done"], len(said["answers"])) == (200, 0, 2)
        assert {one["text"] for one in said["answers"]} == {
            "The process did not take the request, so it was withdrawn and nothing was done."
        }
        assert list((tmp_path / "state").rglob("request-*")) == []


def test_what_cannot_run_is_one_sentence(tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    assert "Neither --state-dir nor PAIRBUS_STATE_DIR is set" in refused(PATH="")
    assert "70000" in refused("--port", "70000", *state)
    assert "is not a folder" in refused("--ledger", str(tmp_path / "nothing"), *state)
    assert "-1" in refused("--month-operations", "-1", *state)
    assert "platinum" in refused("--plan", "platinum", *state)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Cannot listen on port {port}" in refused("--port", str(port), *state)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    assert "Other users can access the state folder" in refused("--state-dir", str(tmp_path / "open"))


@pytest.mark.parametrize("option", ["--port", "--month-operations"])
def test_a_number_must_be_one(option: str, tmp_path: Path) -> None:
    assert "many" in refused(option, "many", "--state-dir", str(tmp_path / "state"))
