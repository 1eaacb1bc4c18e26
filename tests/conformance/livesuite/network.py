"""What a hosts file and a local certificate authority would do, inside one test process.

Rules: only names of namespaces that exist resolve, whatever the port; every other name under the suffix fails as an
unknown host does; names outside the suffix are left to the system. Certificates of the namespaces are added to the
usual roots, never instead of them, and verification stays on.
"""

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import certifi

SUFFIX = ".servicebus.localhost"

_ports: dict[str, int] = {}
_system_getaddrinfo = socket.getaddrinfo
_bundle: Path | None = None


def install() -> None:
    """Resolve the namespaces' names, and make the bundle of trusted roots the one that is used everywhere."""
    global _bundle
    handle, name = tempfile.mkstemp(prefix="pairbus-conformance-", suffix=".pem")
    os.close(handle)
    _bundle = Path(name)
    _bundle.write_bytes(Path(certifi.where()).read_bytes())
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        os.environ[variable] = name
    # The suite passes certifi.where() where it means "the usual roots".
    certifi.where = lambda: name
    socket.getaddrinfo = _getaddrinfo


def uninstall() -> None:
    """Forget the names and remove the bundle."""
    global _bundle
    socket.getaddrinfo = _system_getaddrinfo
    _ports.clear()
    if _bundle is not None:
        _bundle.unlink(missing_ok=True)
        _bundle = None


def publish(namespace: str, port: int, ca_file: Path) -> str:
    """Make ``namespace`` reachable and trusted; return its host name."""
    if _bundle is None:
        raise RuntimeError("network.install() has not been called: there is no bundle to add a certificate to.")
    host = f"{namespace}{SUFFIX}".lower()
    _ports[host] = port
    with _bundle.open("ab") as bundle:
        bundle.write(b"\n" + ca_file.read_bytes())
    _trust_in_aiohttp(ca_file)
    return host


def withdraw(namespace: str) -> None:
    """The name does not resolve any more."""
    _ports.pop(f"{namespace}{SUFFIX}".lower(), None)


def _trust_in_aiohttp(ca_file: Path) -> None:
    """aiohttp reads the trusted roots once, when it is imported, which is before the namespaces exist."""
    from aiohttp import connector

    context: Any = getattr(connector, "_SSL_CONTEXT_VERIFIED", None)
    if context is not None:
        context.load_verify_locations(ca_file)


def _getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else host
    if isinstance(name, str) and name.lower().endswith(SUFFIX):
        if name.lower() not in _ports:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return _system_getaddrinfo("127.0.0.1", _ports[name.lower()], *args, **kwargs)
    return _system_getaddrinfo(host, port, *args, **kwargs)
