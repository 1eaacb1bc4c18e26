"""`pairbus demo`: the whole story on two embedded namespaces."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo() -> int:
    """Show an outage survived: two local namespaces, a kill, a backlog, the way home, and the count.

    Exits with 1 if a message that was accepted was not delivered.
    """
    from pairbus.demo import story

    return story.tell()
