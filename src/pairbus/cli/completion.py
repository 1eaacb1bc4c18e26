"""`pairbus completion`: what a shell has to read so that it completes commands, options and choices."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    app.command("completion")(completion)


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the completion script of a shell.

    The shell reads it when it starts; `pairbus --install-completion` puts it where the present shell looks.
    """
    import os
    import subprocess
    import sys

    # The script is typer's: asked for as a shell would, so that it fits the program that answers it.
    environment = {**os.environ, "_PAIRBUS_COMPLETE": f"source_{shell.value}"}
    command = [sys.executable, "-m", "pairbus.cli"]
    typer.echo(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip())
