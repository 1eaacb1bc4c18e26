"""Checks on the way to a namespace: its address, its certificate, its clock. No credential is used here."""

from __future__ import annotations

import asyncio
import email.utils
import errno
import ssl
import time
from datetime import UTC, datetime

import certifi

from pairbus.doctor.findings import Finding, failed, ok, warning
from pairbus.syphon.namespaces import Namespace

REACH_SECONDS = 15.0
CERTIFICATE_DAYS = 14
SKEW_WARNING_SECONDS = 30.0
SKEW_FAILED_SECONDS = 300.0
MOST_HEADER_BYTES = 64 * 1024


def administration_address(namespace: Namespace) -> tuple[str, int]:
    """Where the administration answers: a local namespace has one port for all, the service has 443."""
    host, port = namespace.address
    return host, port if ":" in namespace.host else 443


async def check_address(role: str, namespace: Namespace) -> Finding:
    check = f"{role} address"
    reached = []
    for host, port in dict.fromkeys((namespace.address, administration_address(namespace))):
        try:
            async with asyncio.timeout(REACH_SECONDS):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return failed(
                check, f"{host}:{port} does not answer within {REACH_SECONDS:.0f} s", "let the firewall open this port"
            )
        except OSError as error:
            return failed(
                check,
                f"{host}:{port} cannot be reached ({_cause(error)})",
                "check the name, that the namespace runs, and that the firewall opens this port",
            )
        writer.close()
        reached.append(str(port))
    return ok(check, f"{namespace.hostname} answers on {' and '.join(reached)}")


def _cause(error: OSError) -> str:
    """In words. A host with several addresses gives one error that quotes those of all."""
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
        return failed(
            check, f"the certificate to trust, {trusted}, cannot be read ({error})", "name the right file as ca-file"
        )
    try:
        async with asyncio.timeout(REACH_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        return failed(check, f"{host} is not trusted ({error.verify_message})", _certificate_remedy(error))
    except TimeoutError:
        return failed(check, f"{host} does not agree on encryption", "look whether something hangs or stands between")
    except (ssl.SSLError, OSError) as error:
        return failed(check, f"{host} does not speak TLS ({error})", "look whether a proxy stands between")
    shown = writer.get_extra_info("peercert") or {}
    writer.close()
    return _valid_until(check, str(shown.get("notAfter", "")))


def _certificate_remedy(error: ssl.SSLCertVerificationError) -> str:
    if "expired" in error.verify_message:
        return "replace it; a local namespace makes a new one when ca.pem and server.pem are removed from its folder"
    if "not yet valid" in error.verify_message:
        return "set the clock of this machine"
    if "mismatch" in error.verify_message.lower():
        return "use the host name that the certificate is for"
    return "trust its authority with PAIRBUS_CA_FILE or ca-file; for a local namespace that is ca.pem in its folder"


def _valid_until(check: str, not_after: str) -> Finding:
    if not not_after:
        return ok(check, "trusted")
    ends = ssl.cert_time_to_seconds(not_after)
    day = datetime.fromtimestamp(ends, UTC).date().isoformat()
    if ends - time.time() < CERTIFICATE_DAYS * 86_400:
        return warning(check, f"trusted, but only until {day}", "renew it before")
    return ok(check, f"trusted, valid until {day}")


async def check_clock(role: str, namespace: Namespace) -> Finding:
    """The namespace's time by the date in its answers, which has no better resolution than a second."""
    check = f"{role} clock"
    before = time.time()
    try:
        async with asyncio.timeout(REACH_SECONDS):
            date = await _date_of_answer(namespace)
    except (OSError, TimeoutError, ssl.SSLError) as error:
        return failed(check, f"no answer to a plain request ({error or 'time is over'})", "look whether a fault is on")
    if date is None:
        return warning(check, "the answer has no date", "compare the clocks yourself")
    skew = date + 0.5 - (before + time.time()) / 2
    side = "ahead of" if skew > 0 else "behind"
    found = f"{abs(skew):.0f} s {side} this machine"
    if abs(skew) > SKEW_FAILED_SECONDS:
        return failed(check, found, "set the clock of this machine (NTP): tokens and locks would seem expired")
    if abs(skew) > SKEW_WARNING_SECONDS:
        return warning(check, found, "set the clock of this machine (NTP)")
    return ok(check, "agrees with this machine")


async def _date_of_answer(namespace: Namespace) -> float | None:
    host, port = administration_address(namespace)
    context = ssl.create_default_context(cafile=namespace.connection_verify or certifi.where())
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=host, limit=MOST_HEADER_BYTES
    )
    try:
        writer.write(f"GET /$Resources/queues HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise OSError("the answer is not HTTP") from error
    finally:
        writer.close()
    for line in head.decode("latin-1").splitlines():
        name, _, value = line.partition(":")
        if name.lower() == "date":
            try:
                return email.utils.parsedate_to_datetime(value.strip()).timestamp()
            except (ValueError, OverflowError):  # something between answers, and not with a date
                return None
    return None
