"""All checks, in the order in which they build on each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from azure.core.exceptions import AzureError

from pairbus.doctor import Finding, Status, checks, failed, ok, skipped, warning
from pairbus.doctor.checks import LISTEN, MANAGE, SEND, Rights, first_line
from pairbus.pairing.options import backlog_path, differences
from pairbus.syphon.backlog import count_waiting
from pairbus.syphon.namespaces import Namespace, NamespaceError

DEFAULT_QUEUES = range(10)
DEFAULT_PORT = 5672
REQUEST_SECONDS = 60.0
NOT_REACHED = "needs an address that answers and a trusted certificate"


async def examine(
    primary: Namespace | Finding | None,
    secondary: Namespace | Finding | None,
    *,
    primary_name: str | None = None,
    entity: str | None = None,
    queues: Collection[int] = DEFAULT_QUEUES,
    port: int = DEFAULT_PORT,
) -> AsyncIterator[Finding]:
    """Yield each finding as soon as it is known.

    A namespace that is None is skipped. A Finding instead of a namespace says why the user's value names none; it
    replaces the check of the address. Without `primary_name`, which names them, the backlog queues are skipped.
    """
    yield checks.check_python()
    yield checks.check_packages()
    yield checks.check_java()
    yield checks.check_port(port)
    for role, namespace, needs in (
        ("primary", primary, ("primary rights",)),
        ("secondary", secondary, ("secondary rights", "backlog queues")),
    ):
        if namespace is None:
            yield skipped(role, "not named", f"name it with --{role} or PAIRBUS_{role.upper()}")
            continue
        reached = True
        async for finding in _examine_connection(role, namespace):
            reached = reached and finding.status is not Status.FAILED
            yield finding
        if not reached or isinstance(namespace, Finding):
            for check in needs:
                yield skipped(check, NOT_REACHED)
        elif role == "primary":
            rights = await _find_rights(namespace, entity)
            yield _judge_rights("primary rights", rights, needed=(SEND,), option="--entity")
        else:
            async for finding in _examine_secondary(namespace, primary_name, queues):
                yield finding


async def _examine_secondary(secondary: Namespace, name: str | None, queues: Collection[int]) -> AsyncIterator[Finding]:
    entity = None if name is None else backlog_path(name, min(queues))
    rights = await _find_rights(secondary, entity)
    yield _judge_rights("secondary rights", rights, needed=(MANAGE, SEND, LISTEN), option="--primary-name")
    if name is None:
        yield skipped("backlog queues", "the primary's name is unknown", "set it with --primary-name")
    elif MANAGE not in rights.has:
        yield skipped("backlog queues", "needs a credential with Manage")
    else:
        yield await check_backlog(secondary, name, queues)


async def _examine_connection(role: str, namespace: Namespace | Finding) -> AsyncIterator[Finding]:
    """Check address, certificate and clock; after a failure the rest is skipped."""
    address = namespace if isinstance(namespace, Finding) else await checks.check_address(role, namespace)
    yield address
    if address.status is Status.FAILED or isinstance(namespace, Finding):
        yield skipped(f"{role} certificate", "needs an address that answers")
        yield skipped(f"{role} clock", "needs an address that answers")
        return
    certificate = await checks.check_certificate(role, namespace)
    yield certificate
    if certificate.status is Status.FAILED:
        yield skipped(f"{role} clock", "needs a trusted certificate")
    else:
        yield await checks.check_clock(role, namespace)


async def _find_rights(namespace: Namespace, entity: str | None) -> Rights:
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await checks.find_rights(namespace, entity)
    except TimeoutError:
        return Rights(trouble=f"no answer within {REQUEST_SECONDS:.0f} s")


def _judge_rights(check: str, rights: Rights, *, needed: tuple[str, ...], option: str) -> Finding:
    has = ", ".join(right for right in (MANAGE, SEND, LISTEN) if right in rights.has) or "none"
    lacking = " and ".join(right for right in needed if right in rights.lacks)
    if rights.trouble is not None:
        return failed(check, f"cannot be tested ({rights.trouble})", "check whether a fault is active, then try again")
    if not rights.has and {SEND, LISTEN} <= rights.lacks:
        reason = f" ({rights.refusal})" if rights.refusal else ""
        return failed(check, f"the credential is refused{reason}", "copy the connection string again, or renew the key")
    if lacking:
        remedy = f"use a credential with {lacking}"
        if MANAGE in lacking:
            remedy += ": pairing looks for its backlog queues and creates missing ones"
        return failed(check, f"has {has}, lacks {lacking}", remedy)
    if rights.is_missing:
        return failed(check, f"'{rights.entity}' does not exist", f"create it, or name another one with {option}")
    if not set(needed) <= rights.has:
        return skipped(
            check, "no Manage, and no entity to test the other rights on", f"name a queue or topic with {option}"
        )
    return ok(check, f"has {has}")


async def check_backlog(secondary: Namespace, name: str, queues: Collection[int]) -> Finding:
    """Check that the backlog queues exist, are active, and have the settings of pairing."""
    check = "backlog queues"
    missing = {backlog_path(name, number).lower(): backlog_path(name, number) for number in sorted(queues)}
    different: list[str] = []
    inactive: list[str] = []
    present: list[str] = []
    try:
        async with asyncio.timeout(REQUEST_SECONDS), secondary.administration() as admin:
            async for queue in admin.list_queues():
                if missing.pop(queue.name.lower(), None) is None:
                    continue
                if str(queue.status) != "Active":
                    inactive.append(f"{queue.name} ({queue.status})")
                if differences(queue):
                    different.append(queue.name)
                present.append(queue.name)
            depths = await count_waiting(secondary, present)
    except (AzureError, OSError, NamespaceError) as error:
        return failed(check, f"cannot be listed ({first_line(error)})", "try again; the namespace may be busy")
    if inactive:
        return failed(check, f"not active: {', '.join(inactive)}", "set their status to Active")
    if len(missing) == len(queues):
        return warning(check, "none exists yet", "the first pairing creates them; or correct --primary-name")
    if missing:
        return failed(
            check,
            f"missing: {', '.join(missing.values())}",
            "pair the namespaces again, which creates them, or correct --queues",
        )
    if different:
        return warning(
            check, f"other settings than pairing's: {', '.join(different)}", "docs/guarantees.md says which and why"
        )
    waiting = sum(depth.waiting for depth in depths.values())
    return ok(check, f"all {len(queues)} exist, {waiting} messages waiting")
