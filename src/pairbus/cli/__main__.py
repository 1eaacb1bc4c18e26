"""The entry point `pairbus`: assembles the commands, turns what goes wrong into a sentence and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from pairbus.cli import backlog, cost, deadletters, demo, fault, ledger, serve, syphon
from pairbus.cli.refusal import Refusal

DONE, CANNOT_RUN, INTERRUPTED = 0, 2, 130

app = typer.Typer(
    name="pairbus",
    help="Keeps applications sending when an Azure Service Bus namespace is down.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (serve, fault, syphon, backlog, deadletters, ledger, cost, demo):
    module.register(app)


def show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pairbus {version('pairbus')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    try:
        code = app(args=arguments, prog_name="pairbus", standalone_mode=False)
    except Refusal as refusal:
        return _refuse(str(refusal))
    except typer.TyperException as error:
        return _refuse(f"{_sentence(error)} See 'pairbus --help'.")
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if code == INTERRUPTED:
        sys.stderr.write("Interrupted.\n")
    return code if isinstance(code, int) else DONE


def _sentence(error: typer.TyperException) -> str:
    """What typer found wrong, with the value that was given."""
    sentence = error.format_message().rstrip(".").replace("Value error, ", "")
    cause = error.__cause__
    given = f"'{cause.errors()[0]['input']}'" if cause is not None and hasattr(cause, "errors") else ""
    if given not in sentence:
        sentence += f"; it was {given}"
    return sentence if sentence.endswith("?") else f"{sentence}."


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"pairbus: {sentence}\n")
    return CANNOT_RUN


def main() -> None:
    sys.exit(run())


if __name__ == "__main__":
    main()
