"""`pairbus demo`: the whole story on two embedded namespaces."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo() -> int:
    """Survive an outage on two local namespaces.

    The primary is killed while messages are sent; they wait in the backlog, come home, and are counted. Exits with
    1 if a message that was accepted was not delivered.
    """
    from pairbus.demo import story

    return story.tell()
