"""The checks: of this machine, of the connection to a namespace, and of the rights of a credential.

Rights are tested without leaving a trace. Manage: read the properties of the namespace. Send: open a link to an entity,
and send nothing. Listen: peek at an entity, which removes nothing. Manage includes the other two.
"""

from __future__ import annotations

import asyncio
import email.utils
import errno
import importlib.util
import platform
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus

import certifi
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from pairbus.doctor import Finding, failed, ok, skipped, warning
from pairbus.embedded.running import running_servers
from pairbus.syphon.namespaces import Namespace

OLDEST_PYTHON = (3, 11)
# The packages of each extra.
EXTRAS = {
    "syphon": ("aiohttp", "proton"),
    "embedded": ("aiohttp", "proton", "trustme", "defusedxml", "lark"),
    "spark": ("pyspark", "pyarrow", "pandas"),
    "dashboard": ("aiohttp",),
    "metrics": ("prometheus_client", "opentelemetry"),
    "identity": ("azure.identity",),
}
CONNECT_SECONDS = 15.0
CERTIFICATE_DAYS = 14
SKEW_WARNING_SECONDS = 30.0
SKEW_FAILED_SECONDS = 300.0
MAX_HEADER_BYTES = 64 * 1024
MANAGE, SEND, LISTEN = "Manage", "Send", "Listen"
_REFUSED = (401, 403)


# --- this machine -------------------------------------------------------------------------------------------


def check_python() -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] < OLDEST_PYTHON:
        return failed("python", f"Python {version}", "pairbus needs 3.11 or newer: install one and use it")
    return ok("python", f"Python {version}")


def check_packages() -> Finding:
    missing = sorted(extra for extra, modules in EXTRAS.items() if not all(map(_is_installed, modules)))
    if not missing:
        return ok("packages", "all extras are installed")
    extras = ",".join(missing)
    return warning(
        "packages", f"not installed: {', '.join(missing)}", f"pip install 'pairbus[{extras}]' if you need it"
    )


def check_java() -> Finding:
    if not _is_installed("pyspark"):
        return skipped("java", "Spark is not installed, so Java is not needed")
    from pairbus.pipeline.java import JavaMissingError, find_java

    try:
        java = find_java()
    except JavaMissingError as error:
        found, _, remedy = str(error).rstrip(".").rpartition(": ")
        return failed("java", found, remedy)
    return ok("java", f"Java {java.major} by {java.origin}")


def check_port(port: int) -> Finding:
    """Whether `pairbus serve` could use this port."""
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError as error:
            owners = [server.name for server in running_servers() if server.port == port]
            if owners:
                return ok("port", f"{port} is used by the local namespace '{owners[0]}'")
            return warning(
                "port",
                f"cannot use {port} on this machine ({error.strerror})",
                f"start local namespaces on another port, such as pairbus serve --port {min(port + 1, 65535)}",
            )
    return ok("port", f"{port} is free for a local namespace")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


# --- the connection, without a credential -------------------------------------------------------------------


def administration_address(namespace: Namespace) -> tuple[str, int]:
    """Host and port of the administration: a local namespace has one port for everything, Azure uses 443."""
    host, port = namespace.address
    return host, port if ":" in namespace.host else 443


async def check_address(role: str, namespace: Namespace) -> Finding:
    check = f"{role} address"
    ports = []
    for host, port in dict.fromkeys((namespace.address, administration_address(namespace))):
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return failed(
                check, f"{host}:{port} does not answer within {CONNECT_SECONDS:.0f} s", "open this port in the firewall"
            )
        except OSError as error:
            return failed(
                check,
                f"cannot connect to {host}:{port} ({_cause(error)})",
                "check the name, that the namespace is running, and that the firewall opens this port",
            )
        writer.close()
        ports.append(str(port))
    return ok(check, f"{namespace.hostname} answers on {' and '.join(ports)}")


def _cause(error: OSError) -> str:
    """The error in words. A host with several addresses raises one error that quotes the errors of all."""
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "connection refused"
    return error.strerror or str(error)


async def check_certificate(role: str, namespace: Namespace) -> Finding:
    check = f"{role} certificate"
    host, port = administration_address(namespace)
    trusted = namespace.connection_verify or certifi.where()
    try:
        context = ssl.create_default_context(cafile=trusted)
    except OSError as error:
        return failed(check, f"cannot read the CA certificate {trusted} ({error})", "name the right file with ca-file")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        return failed(check, f"{host} is not trusted ({error.verify_message})", _certificate_remedy(error))
    except TimeoutError:
        return failed(check, f"{host} does not finish the TLS handshake", "check for a hanging server or a proxy")
    except (ssl.SSLError, OSError) as error:
        return failed(check, f"{host} does not speak TLS ({error})", "check for a proxy in between")
    shown = writer.get_extra_info("peercert") or {}
    writer.close()
    return _check_expiry(check, str(shown.get("notAfter", "")))


def _certificate_remedy(error: ssl.SSLCertVerificationError) -> str:
    if "expired" in error.verify_message:
        return "replace it; a local namespace creates a new one when you delete ca.pem and server.pem in its folder"
    if "not yet valid" in error.verify_message:
        return "set the clock of this machine"
    if "mismatch" in error.verify_message.lower():
        return "use the host name that the certificate is for"
    return "trust its CA with PAIRBUS_CA_FILE or ca-file; for a local namespace that is ca.pem in its folder"


def _check_expiry(check: str, not_after: str) -> Finding:
    if not not_after:
        return ok(check, "trusted")
    ends = ssl.cert_time_to_seconds(not_after)
    day = datetime.fromtimestamp(ends, UTC).date().isoformat()
    if ends - time.time() < CERTIFICATE_DAYS * 86_400:
        return warning(check, f"trusted, but only until {day}", "renew it before")
    return ok(check, f"trusted, valid until {day}")


async def check_clock(role: str, namespace: Namespace) -> Finding:
    """Compare clocks, using the Date header of the namespace's response, which has a resolution of one second."""
    check = f"{role} clock"
    before = time.time()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            date = await _response_date(namespace)
    except (OSError, TimeoutError, ssl.SSLError) as error:
        return failed(
            check, f"no response to an HTTP request ({error or 'timeout'})", "check whether a fault is active"
        )
    if date is None:
        return warning(check, "the response has no date", "compare the clocks yourself")
    skew = date + 0.5 - (before + time.time()) / 2
    found = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    if abs(skew) > SKEW_FAILED_SECONDS:
        return failed(check, found, "set the clock of this machine (NTP): tokens and locks would seem expired")
    if abs(skew) > SKEW_WARNING_SECONDS:
        return warning(check, found, "set the clock of this machine (NTP)")
    return ok(check, "agrees with this machine")


async def _response_date(namespace: Namespace) -> float | None:
    host, port = administration_address(namespace)
    context = ssl.create_default_context(cafile=namespace.connection_verify or certifi.where())
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=host, limit=MAX_HEADER_BYTES
    )
    try:
        writer.write(f"GET /$Resources/queues HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise OSError("the response is not HTTP") from error
    finally:
        writer.close()
    for line in head.decode("latin-1").splitlines():
        name, _, value = line.partition(":")
        if name.lower() == "date":
            try:
                return email.utils.parsedate_to_datetime(value.strip()).timestamp()
            except (ValueError, OverflowError):  # a proxy may answer with something else
                return None
    return None


# --- the rights of a credential -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights that a credential has and lacks."""

    has: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    entity: str | None = None
    """The entity on which Send and Listen were tested."""
    is_missing: bool = False
    """The entity does not exist."""
    trouble: str | None = None
    """An error that says nothing about rights."""
    refusal: str | None = None
    """The text with which the namespace refused Manage."""


async def find_rights(namespace: Namespace, entity: str | None) -> Rights:
    """Test Manage and, without it, Send and Listen on `entity`."""
    try:
        async with namespace.administration() as admin:
            await admin.get_namespace_properties()
        return Rights(frozenset({MANAGE, SEND, LISTEN}), entity=entity)
    except ClientAuthenticationError as error:
        refusal = first_line(error)
    except HttpResponseError as error:
        if error.status_code not in _REFUSED:
            return Rights(trouble=first_line(error))
        refusal = first_line(error)
    except (AzureError, OSError) as error:
        return Rights(trouble=first_line(error))
    if entity is None:
        return Rights(lacks=frozenset({MANAGE}), refusal=refusal)
    return await _test_links(namespace, entity, refusal)


async def _test_links(namespace: Namespace, entity: str, refusal: str) -> Rights:
    has, lacks = set(), {MANAGE}
    is_missing, trouble = False, None
    async with namespace.client(retry_total=0) as client:
        for right in (SEND, LISTEN):
            try:
                if right == SEND:
                    async with client.get_queue_sender(entity):
                        has.add(right)
                else:
                    async with client.get_queue_receiver(entity) as receiver:
                        await receiver.peek_messages(1)
                        has.add(right)
            except (ServiceBusAuthenticationError, ServiceBusAuthorizationError) as error:
                if is_missing := _means_missing(error):
                    break
                lacks.add(right)
            except MessagingEntityNotFoundError:
                is_missing = True
                break
            except (ServiceBusError, OSError) as error:
                trouble = first_line(error)
                break
    return Rights(frozenset(has), frozenset(lacks), entity, is_missing, trouble, refusal)


def _means_missing(error: ServiceBusError) -> bool:
    """Whether the entity does not exist: its token is refused with 404, which the SDK reports like a wrong key."""
    return getattr(getattr(error, "inner_exception", None), "status_code", None) == HTTPStatus.NOT_FOUND


def first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return text[:200] or type(error).__name__
