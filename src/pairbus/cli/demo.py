"""`pairbus demo`: two outages on two embedded namespaces, from beginning to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.output import Refusal, is_quiet


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Send a quarter of the messages.")] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of the messages; the same number sends the same messages.")
    ] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the namespaces, the ledger and the tables beside the report.")
    ] = False,
) -> int:
    """Watch two outages on two local namespaces.

    The primary is killed while a fleet sends to a queue, a topic and a queue with sessions; then the topic fails alone.
    Messages sent meanwhile wait in the backlog, a Spark syphon carries them home, and every message is counted.
    Writes demo-output/report.html. Exits with 1 if an accepted message was not delivered.
    """
    from pairbus.demo import story
    from pairbus.pipeline.java import find_java

    find_java()  # before the demo, not at its end
    output = Path(story.OUTPUT)
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"Cannot create the folder {output.absolute()}: {error.strerror}; run the demo in another folder."
        ) from error
    return story.run(story.script(fast=fast, seed=seed), keep=keep, quiet=is_quiet(), output=output)
