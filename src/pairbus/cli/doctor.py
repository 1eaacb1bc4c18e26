"""`pairbus doctor`: what could keep a pairing from working, one line for each check, with what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.ends import Primary, PrimaryName, Secondary
from pairbus.cli.plain import plain
from pairbus.cli.refusal import Refusal

if TYPE_CHECKING:
    from pairbus.doctor import Finding
    from pairbus.syphon import Namespace


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    primary: Primary = None,
    secondary: Secondary = None,
    primary_name: PrimaryName = None,
    entity: Annotated[
        str | None, typer.Option(help="A queue or topic of the primary to try Send on, for a key without Manage.")
    ] = None,
    queues: Annotated[str, typer.Option(help="The backlog queues in use, such as 0-9 or 0,2,5-7.")] = "0-9",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port that local namespaces should find free.")
    ] = 5672,
    as_json: Annotated[bool, typer.Option("--json", help="All findings as JSON.")] = False,
) -> int:
    """Look for what could keep a pairing from working.

    Python, packages, Java, the port of local namespaces; then address, certificate, clock and rights of both
    namespaces, and the backlog queues. One line each, with what to do. It changes nothing.
    Exits with 1 if a check failed.
    """
    import asyncio
    import json
    from dataclasses import asdict

    from pairbus.cli.exits import ANSWER_IS_NO, DONE
    from pairbus.cli.namespaces import numbers
    from pairbus.cli.voice import is_quiet
    from pairbus.doctor import Status, examine

    wanted = numbers("--queues", queues)
    first, known_as = _given("primary", primary)
    second, _ = _given("secondary", secondary)
    name = _name(first, primary_name or known_as)

    async def look() -> list[Finding]:
        findings = []
        async for finding in examine(first, second, primary_name=name, entity=entity, queues=wanted, port=port):
            findings.append(finding)
            if not as_json and (not is_quiet() or finding.status is Status.FAILED):
                typer.echo(f"{finding.status.value:<8} {finding.check:<22} {plain(str(finding))}")
        return findings

    try:
        findings = asyncio.run(look())
    except ValueError as error:
        raise Refusal(str(error)) from error
    healthy = not any(finding.status is Status.FAILED for finding in findings)
    if as_json:
        typer.echo(json.dumps({"healthy": healthy, "findings": [asdict(finding) for finding in findings]}))
    return DONE if healthy else ANSWER_IS_NO


def _given(role: str, given: str | None) -> tuple[Namespace | Finding | None, str | None]:
    """The namespace, or the finding that what was given is none; and the name of one that is known but not running."""
    from pairbus.cli.namespaces import NotRunning, is_named, namespace
    from pairbus.doctor import Finding, Status

    variable = f"PAIRBUS_{role.upper()}"
    if not is_named(given, variable):
        return None, None
    try:
        return namespace(f"--{role}", given, variable), None
    except NotRunning as error:
        remedy = f"start it with `{error.start}`"
        if error.name is not None:
            remedy += ", or give env:VARIABLE, a file or a host name"
        return Finding(f"{role} address", Status.FAILED, f"{error.given} is not running", remedy), error.name
    except Refusal as error:
        return Finding(f"{role} address", Status.FAILED, str(error)), None


def _name(primary: Namespace | Finding | None, given: str | None) -> str | None:
    """The name in the backlog paths, as the syphon would choose it; None if it cannot be known."""
    from pairbus.cli.syphon_foreground import name_of_primary
    from pairbus.doctor import Finding

    if primary is None or isinstance(primary, Finding):
        return given
    try:
        return name_of_primary(primary, given)
    except Refusal:
        if given is not None:
            raise
        return None
