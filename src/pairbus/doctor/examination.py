"""All checks, in the order in which they build on each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from azure.core.exceptions import AzureError

from pairbus.doctor import machine
from pairbus.doctor.findings import Finding, Status, failed, ok, skipped, warning
from pairbus.doctor.permissions import LISTEN, MANAGE, SEND, Rights, find_rights, first_line
from pairbus.doctor.reaching import check_address, check_certificate, check_clock
from pairbus.pairing.options import backlog_path, differences
from pairbus.syphon.backlog import count_waiting
from pairbus.syphon.namespaces import Namespace, NamespaceError

DEFAULT_QUEUES = range(10)
DEFAULT_PORT = 5672
ASK_SECONDS = 60.0
NOT_REACHED = "needs an address that answers and a certificate that is trusted"


async def examine(
    primary: Namespace | Finding | None,
    secondary: Namespace | Finding | None,
    *,
    primary_name: str | None = None,
    entity: str | None = None,
    queues: Collection[int] = DEFAULT_QUEUES,
    port: int = DEFAULT_PORT,
) -> AsyncIterator[Finding]:
    """Each finding as soon as it is known.

    A namespace that is None is not looked into; one that could not be told from what the user gave is the finding
    that says so, which takes the place of its address. Backlog queues are not looked into without
    `primary_name`, which names them.
    """
    yield machine.check_python()
    yield machine.check_packages()
    yield machine.check_java()
    yield machine.check_port(port)
    async for finding in _examine_primary(primary, entity):
        yield finding
    async for finding in _examine_secondary(secondary, primary_name, queues):
        yield finding


async def _examine_primary(primary: Namespace | Finding | None, entity: str | None) -> AsyncIterator[Finding]:
    if primary is None:
        yield skipped("primary", "not given", "name it with --primary or PAIRBUS_PRIMARY")
        return
    reached = True
    async for finding in _examine_way("primary", primary):
        reached = reached and finding.status is not Status.FAILED
        yield finding
    if not reached or isinstance(primary, Finding):
        yield skipped("primary rights", NOT_REACHED)
        return
    rights = await _rights(primary, entity)
    yield _judge_rights("primary rights", rights, needed=(SEND,), name_entity="--entity")


async def _examine_secondary(
    secondary: Namespace | Finding | None, name: str | None, queues: Collection[int]
) -> AsyncIterator[Finding]:
    if secondary is None:
        yield skipped("secondary", "not given", "name it with --secondary or PAIRBUS_SECONDARY")
        return
    reached = True
    async for finding in _examine_way("secondary", secondary):
        reached = reached and finding.status is not Status.FAILED
        yield finding
    if not reached or isinstance(secondary, Finding):
        yield skipped("secondary rights", NOT_REACHED)
        yield skipped("backlog queues", NOT_REACHED)
        return
    entity = None if name is None else backlog_path(name, min(queues))
    rights = await _rights(secondary, entity)
    yield _judge_rights("secondary rights", rights, needed=(MANAGE, SEND, LISTEN), name_entity="--primary-name")
    if name is None:
        yield skipped("backlog queues", "the primary's name is not known", "name it with --primary-name")
    elif MANAGE not in rights.has:
        yield skipped("backlog queues", "needs a credential with Manage")
    else:
        yield await check_backlog(secondary, name, queues)


async def _examine_way(role: str, namespace: Namespace | Finding) -> AsyncIterator[Finding]:
    """Address, certificate, clock; those after one that failed are skipped."""
    address = namespace if isinstance(namespace, Finding) else await check_address(role, namespace)
    yield address
    if address.status is Status.FAILED or isinstance(namespace, Finding):
        yield skipped(f"{role} certificate", "needs an address that answers")
        yield skipped(f"{role} clock", "needs an address that answers")
        return
    certificate = await check_certificate(role, namespace)
    yield certificate
    if certificate.status is Status.FAILED:
        yield skipped(f"{role} clock", "needs a certificate that is trusted")
    else:
        yield await check_clock(role, namespace)


async def _rights(namespace: Namespace, entity: str | None) -> Rights:
    try:
        async with asyncio.timeout(ASK_SECONDS):
            return await find_rights(namespace, entity)
    except TimeoutError:
        return Rights(trouble=f"no answer within {ASK_SECONDS:.0f} s")


def _judge_rights(check: str, rights: Rights, *, needed: tuple[str, ...], name_entity: str) -> Finding:
    has = ", ".join(right for right in (MANAGE, SEND, LISTEN) if right in rights.has) or "none"
    lacking = [right for right in needed if right in rights.lacks]
    if rights.trouble is not None:
        return failed(check, f"could not be tried ({rights.trouble})", "look whether a fault is on, then try again")
    if not rights.has and {SEND, LISTEN} <= rights.lacks:
        said = f" ({rights.said})" if rights.said else ""
        return failed(check, f"the credential is refused{said}", "copy the connection string anew, or renew the key")
    if lacking:
        remedy = f"use a credential with {' and '.join(lacking)}"
        if MANAGE in lacking:
            remedy += ": pairing looks for its backlog queues and makes those that are missing"
        return failed(check, f"has {has}, lacks {' and '.join(lacking)}", remedy)
    if rights.missing:
        return failed(check, f"'{rights.entity}' does not exist", f"make it, or name another one with {name_entity}")
    if not set(needed) <= rights.has:
        return skipped(
            check, "no Manage, and no entity to try the others on", f"name a queue or topic with {name_entity}"
        )
    return ok(check, f"has {has}")


async def check_backlog(secondary: Namespace, name: str, queues: Collection[int]) -> Finding:
    """Whether the backlog queues are there, as pairing makes them, and take messages."""
    check = "backlog queues"
    wanted = {backlog_path(name, number).lower(): backlog_path(name, number) for number in sorted(queues)}
    unlike: list[str] = []
    stopped: list[str] = []
    present: list[str] = []
    try:
        async with asyncio.timeout(ASK_SECONDS), secondary.administration() as admin:
            async for queue in admin.list_queues():
                if wanted.pop(queue.name.lower(), None) is None:
                    continue
                if str(queue.status) != "Active":
                    stopped.append(f"{queue.name} ({queue.status})")
                if differences(queue):
                    unlike.append(queue.name)
                present.append(queue.name)
            depths = await count_waiting(secondary, present)
    except (AzureError, OSError, NamespaceError) as error:
        return failed(check, f"could not be listed ({first_line(error)})", "try again; the namespace may be busy")
    if stopped:
        return failed(check, f"not active: {', '.join(stopped)}", "set their status to Active")
    if len(wanted) == len(queues):
        return warning(check, "none exists yet", "the first pairing makes them, or name the right --primary-name")
    if wanted:
        missing = ", ".join(wanted.values())
        return failed(check, f"missing: {missing}", "pair the namespaces again, which makes them, or give --queues")
    if unlike:
        return warning(
            check, f"other settings than pairing's: {', '.join(unlike)}", "docs/guarantees.md tells which and why"
        )
    return ok(check, f"all {len(queues)} are there, {sum(depth.waiting for depth in depths.values())} messages wait")
