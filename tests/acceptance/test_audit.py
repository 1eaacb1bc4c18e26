"""scripts/audit.py: the SBOM of the locked packages, and what it says with and without an index that answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKED = re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8"), re.M)


class Index(BaseHTTPRequestHandler):
    """Knows one vulnerability, of aiohttp, and a withdrawn one of every package."""

    def do_GET(self) -> None:
        known = [{"id": "PYSEC-0", "withdrawn": "2026-01-01T00:00:00Z"}]
        if "/aiohttp/" in self.path:
            known.append({"id": "PYSEC-1", "withdrawn": None})  # type: ignore[dict-item]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"vulnerabilities": known}).encode())

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def served() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


def audit(index: str, **environment: str) -> tuple[int, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "PAIRBUS_OFFLINE")}
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "audit.py"],
        env=kept | {"PIP_INDEX_URL": index} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr


def test_a_known_vulnerability_is_told_and_in_ci_an_error() -> None:
    with served() as index:
        code, said = audit(index)
        assert (code, said.count("\n")) == (0, 1)
        assert re.match(r"audit: aiohttp \S+ has PYSEC-1; upgrade it", said)
        assert audit(index, CI="true")[0] == 1
    components = json.loads((ROOT / "build" / "sbom.json").read_bytes())["components"]
    assert [(one["name"], one["version"]) for one in components] == LOCKED
    assert all(one["hashes"] for one in components)


def test_without_an_index_it_succeeds_with_one_line() -> None:
    assert audit("http://127.0.0.1:9/simple", CI="true") == (
        0,
        "audit: skipped, because the package index does not tell vulnerabilities from here\n",
    )
    assert audit("http://127.0.0.1:9/simple", PAIRBUS_OFFLINE="1") == (0, "")
