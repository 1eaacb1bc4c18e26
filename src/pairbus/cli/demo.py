"""`pairbus demo`: the whole story on two embedded namespaces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli import voice
from pairbus.cli.refusal import Refusal


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="A quarter of the messages.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Decides what is sent: the same for the same number.")] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the namespaces, the ledger and the tables beside the report.")
    ] = False,
) -> int:
    """Survive two outages on two local namespaces.

    The primary is killed while a fleet sends to a queue, a topic and a queue with sessions; then one of them fails
    alone. What was sent meanwhile waits in the backlog, a Spark syphon carries it home, and every message is counted.
    Writes demo-output/report.html here. Exits with 1 if a message that was accepted was not delivered.
    """
    from pairbus.demo import story
    from pairbus.pipeline.java import JavaMissingError, find_java

    try:
        find_java()  # before the story, not at its end
    except JavaMissingError as error:
        raise Refusal(str(error)) from error
    output = Path(story.OUTPUT)
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise Refusal(f"The folder {output.absolute()} cannot be made: {error.strerror}; run it elsewhere.") from error
    try:
        return story.tell(story.script(fast=fast, seed=seed), keep=keep, quiet=voice.is_quiet(), output=output)
    except story.SparkLateError as error:
        raise Refusal(str(error)) from error
