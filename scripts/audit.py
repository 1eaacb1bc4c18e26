"""Write the SBOM of the locked packages (CycloneDX 1.5), and look for known vulnerabilities in them.

`make lint` runs it. It asks the index that pip uses. If the index does not answer, it says so in one line and succeeds;
PAIRBUS_OFFLINE=1 asks nothing. A vulnerability of a locked release that is not in `ACCEPTED` is printed. In CI
(CI=true) it is an error; elsewhere a new advisory must not stop somebody's tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pairbus

ROOT = Path(__file__).parents[1]
SBOM = ROOT / "build" / "sbom.json"
ACCEPTED: dict[str, str] = {}
"""Vulnerabilities that do not concern pairbus, each with the reason."""
SECONDS = 5.0


def locked(text: str) -> list[tuple[str, str, list[str]]]:
    """The name, version and hashes of every package in a lock file."""
    found = re.findall(r"^([a-z0-9._-]+)==([^ \\;]+)((?:.*\\\n)(?: +--hash=\S+(?: \\)?\n?)+)", text, re.MULTILINE)
    return [(name, version, re.findall(r"sha256:([0-9a-f]{64})", rest)) for name, version, rest in found]


def sbom(packages: list[tuple[str, str, list[str]]]) -> dict[str, Any]:
    """A CycloneDX document. The same packages give the same document, including its serial number."""
    identity = " ".join(f"{name}=={version}" for name, version, _ in packages)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {"component": {"type": "library", "name": "pairbus", "version": pairbus.__version__}},
        "components": [
            {
                "type": "library",
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                "hashes": [{"alg": "SHA-256", "content": value} for value in hashes],
            }
            for name, version, hashes in packages
        ],
    }


def pip(*arguments: str) -> str:
    asked = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def index() -> str:
    """The base address of the package index's JSON interface: the configured index, or pip's own default."""
    configured = os.environ.get("PIP_INDEX_URL") or pip("config", "get", "global.index-url")
    if not configured:
        default = re.search(r"\(default\s+(\S+)\)", pip("install", "--help"))
        configured = default[1] if default else ""
    return configured.rstrip("/").removesuffix("/simple")


def vulnerabilities(base: str, name: str, version: str) -> list[str] | None:
    """The ids of a release's known vulnerabilities; None if the index does not say."""
    try:
        with urllib.request.urlopen(f"{base}/pypi/{name}/{version}/json", timeout=SECONDS) as answer:  # noqa: S310
            known = json.load(answer).get("vulnerabilities")
    except (OSError, ValueError):
        return None
    return None if known is None else [entry["id"] for entry in known if not entry.get("withdrawn")]


def main() -> int:
    packages = locked((ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8"))
    SBOM.parent.mkdir(exist_ok=True)
    SBOM.write_text(json.dumps(sbom(packages), indent=1) + "\n", encoding="utf-8")
    if os.environ.get("PAIRBUS_OFFLINE"):
        return 0
    base = index()
    # One question decides whether the index answers at all; offline, the others would only wait.
    if vulnerabilities(base, *packages[0][:2]) is None:
        print("audit: skipped, because the package index does not tell vulnerabilities from here", file=sys.stderr)
        return 0
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda package: vulnerabilities(base, *package[:2]), packages)
        found = [
            (f"{name} {version}", i)
            for (name, version, _), ids in zip(packages, answers, strict=True)
            for i in ids or ()
        ]
    for release, identity in found:
        if identity not in ACCEPTED:
            print(f"audit: {release} has {identity}; upgrade it with scripts/lock.sh --upgrade", file=sys.stderr)
    return int(bool(os.environ.get("CI")) and any(identity not in ACCEPTED for _, identity in found))


if __name__ == "__main__":
    sys.exit(main())
