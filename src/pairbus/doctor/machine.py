"""Checks of this machine: Python, the packages beside it, Java, and the port a local namespace would take."""

from __future__ import annotations

import importlib.util
import platform
import socket
import sys

from pairbus.doctor.findings import Finding, failed, ok, skipped, warning
from pairbus.embedded.running import running_servers

OLDEST_PYTHON = (3, 11)
# What makes each part work, by the extra that brings it.
EXTRAS = {
    "syphon": ("aiohttp", "proton"),
    "embedded": ("aiohttp", "proton", "cryptography", "defusedxml", "lark"),
    "spark": ("pyspark", "pyarrow", "pandas"),
    "dashboard": ("aiohttp",),
    "metrics": ("prometheus_client", "opentelemetry"),
    "identity": ("azure.identity",),
}


def check_python() -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] < OLDEST_PYTHON:
        return failed("python", f"Python {version}", "pairbus needs 3.11 or newer: install one and use it")
    return ok("python", f"Python {version}")


def check_packages() -> Finding:
    missing = sorted(extra for extra, modules in EXTRAS.items() if not all(map(_installed, modules)))
    if not missing:
        return ok("packages", "every part is installed")
    wanted = ",".join(missing)
    return warning(
        "packages", f"not installed: {', '.join(missing)}", f"pip install 'pairbus[{wanted}]' if you need it"
    )


def check_java() -> Finding:
    if not _installed("pyspark"):
        return skipped("java", "Spark is not installed, so no Java is needed")
    from pairbus.pipeline.java import JavaMissingError, find_java

    try:
        java = find_java()
    except JavaMissingError as error:
        found, _, remedy = str(error).rstrip(".").rpartition(": ")
        return failed("java", found, remedy)
    return ok("java", f"Java {java.major} by {java.origin}")


def check_port(port: int) -> Finding:
    """Whether `pairbus serve` could take this port."""
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError as error:
            owners = [server.name for server in running_servers() if server.port == port]
            if owners:
                return ok("port", f"{port} is taken by the local namespace '{owners[0]}'")
            return warning(
                "port",
                f"{port} of this machine cannot be taken ({error.strerror})",
                f"start local namespaces with another one, such as pairbus serve --port {min(port + 1, 65535)}",
            )
    return ok("port", f"{port} is free for a local namespace")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
