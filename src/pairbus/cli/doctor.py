"""`pairbus doctor`: one line for each check of a pairing, with what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.options import (
    NotRunning,
    Primary,
    PrimaryName,
    Secondary,
    find_primary_name,
    is_named,
    namespace,
    parse_queues,
)
from pairbus.cli.output import ANSWER_IS_NO, DONE, Refusal, is_quiet, plain, print_json

if TYPE_CHECKING:
    from pairbus.doctor import Finding
    from pairbus.syphon import Namespace


def doctor(
    primary: Primary = None,
    secondary: Secondary = None,
    primary_name: PrimaryName = None,
    entity: Annotated[
        str | None,
        typer.Option(help="A queue or topic of the primary to test Send on, if the key lacks Manage."),
    ] = None,
    queues: Annotated[str, typer.Option(help="The backlog queues in use, such as 0-9 or 0,2,5-7.")] = "0-9",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Check whether a local namespace could use this port.")
    ] = 5672,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
) -> int:
    """Find out what could keep a pairing from working.

    Checks Python, packages, Java and the port for local namespaces; then the address, certificate, clock and rights of
    both namespaces, and the backlog queues. Prints one line for each check, with what to do. Changes nothing.
    Exits with 1 if a check failed.
    """
    import asyncio

    from pairbus.doctor import Status
    from pairbus.doctor.examination import examine

    numbers = parse_queues(queues)
    first, known_name = _namespace("primary", primary)
    second, _ = _namespace("secondary", secondary)
    name = _primary_name(first, primary_name or known_name)

    async def run() -> list[Finding]:
        findings = []
        async for finding in examine(first, second, primary_name=name, entity=entity, queues=numbers, port=port):
            findings.append(finding)
            if not as_json and (not is_quiet() or finding.status is Status.FAILED):
                typer.echo(f"{finding.status.value:<8} {finding.check:<22} {plain(str(finding))}")
        return findings

    try:
        findings = asyncio.run(run())
    except ValueError as error:
        raise Refusal(str(error)) from error
    healthy = not any(finding.status is Status.FAILED for finding in findings)
    if as_json:
        print_json({"healthy": healthy, "findings": findings})
    return DONE if healthy else ANSWER_IS_NO


def _namespace(role: str, value: str | None) -> tuple[Namespace | Finding | None, str | None]:
    """The namespace, or a finding that says why there is none; and the name of one that is not running, if known."""
    from pairbus.doctor import Finding, Status

    variable = f"PAIRBUS_{role.upper()}"
    if not is_named(value, variable):
        return None, None
    try:
        return namespace(f"--{role}", value, variable), None
    except NotRunning as error:
        remedy = f"start it with `{error.start}`"
        if error.name is not None:
            remedy += ", or use env:VARIABLE, a file or a host name"
        return Finding(f"{role} address", Status.FAILED, f"{error.value} is not running", remedy), error.name
    except Refusal as error:
        return Finding(f"{role} address", Status.FAILED, str(error)), None


def _primary_name(primary: Namespace | Finding | None, name: str | None) -> str | None:
    """The name in the backlog paths, chosen as the syphon would; None if it is unknown."""
    from pairbus.doctor import Finding

    if primary is None or isinstance(primary, Finding):
        return name
    try:
        return find_primary_name(primary, name)
    except Refusal:
        if name is not None:
            raise
        return None
