"""The JavaScript SDK does a round of its features against an embedded namespace.

The SDK is installed from the lock file beside this test, once, into a folder that git ignores; after that no network is
needed. Without node and npm the test is skipped; in CI (`CI=true`) it fails instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairbus.testing import EmbeddedNamespace

HERE = Path(__file__).parent / "javascript"
CACHE = Path(__file__).parents[2] / ".cache" / "javascript"
INSTALL_TIMEOUT_SECONDS = 240
ROUND_TIMEOUT_SECONDS = 240
FEATURES = (
    "send and complete",
    "batches and large messages",
    "abandon with properties, delivery count, dead letters",
    "defer and receive by number",
    "schedule, cancel and peek",
    "time to live and duplicates",
    "a lost lock and a lost link",
    "subscribe and iterate",
    "topics, filters and actions",
    "rules over AMQP",
    "sessions, state and locks",
    "no session in time",
    "forwarding",
    "administration of queues",
    "administration of topics and rules",
    "lists over pages",
    "what is not there, and wrong keys",
)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is not installed: install Node.js for the JavaScript SDK (apt-get install nodejs npm)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def sdk_folder() -> Path:
    """A folder with the SDK in it, made once for each lock file."""
    npm = _program("npm")
    files = [HERE / name for name in ("package.json", "package-lock.json", ".npmrc")]
    name = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    folder = CACHE / name
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in files:
            shutil.copy(file, folder)
        subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=folder,
            check=True,
            capture_output=True,
            timeout=INSTALL_TIMEOUT_SECONDS,
        )
        (folder / "installed").touch()
    return folder


@pytest.fixture(scope="module")
def outcomes(sdk_folder: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """What became of each feature, from one run of the round."""
    node = _program("node")
    with EmbeddedNamespace("contoso") as namespace:
        environment = {
            **os.environ,
            "CONNECTION_STRING": namespace.connection_string,
            "NODE_EXTRA_CA_CERTS": namespace.ca_file,
            "SDK_FOLDER": str(sdk_folder),
            "NAMESPACE": namespace.name,
        }
        done = subprocess.run(
            [node, str(HERE / "round.mjs")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=ROUND_TIMEOUT_SECONDS,
        )
    assert done.returncode == 0, done.stderr
    yield {line["feature"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("feature", FEATURES)
def test_feature(outcomes: dict[str, dict[str, Any]], feature: str) -> None:
    assert outcomes[feature]["ok"], outcomes[feature]["error"]


def test_the_list_of_features_is_complete(outcomes: dict[str, dict[str, Any]]) -> None:
    assert set(outcomes) == set(FEATURES)


def test_the_lock_file_names_no_registry() -> None:
    """Whoever installs uses a registry of their own choice."""
    packages = json.loads((HERE / "package-lock.json").read_text())["packages"]
    assert len(packages) > 10
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []
