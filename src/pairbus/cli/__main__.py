"""The entry point `pairbus`: assembles the commands, turns what goes wrong into a sentence and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

try:
    import typer
except ModuleNotFoundError:
    sys.stderr.write("pairbus: The command line needs packages that are not installed: pip install 'pairbus[cli]'.\n")
    sys.exit(2)
from typer.main import get_command

from pairbus.cli import (
    backlog,
    completion,
    cost,
    dashboard,
    deadletters,
    demo,
    doctor,
    drill,
    fault,
    ledger,
    serve,
    settings,
    syphon,
    voice,
)
from pairbus.cli.commands import ROOT_VARIABLES, Config, Group, HelpAsked, Quiet, unify
from pairbus.cli.exits import CANNOT_RUN, DONE, INTERRUPTED
from pairbus.cli.plain import plain
from pairbus.cli.refusal import Refusal
from pairbus.cli.sentences import sentence

# In the order in which a newcomer meets them.
JOURNEY = (
    *("demo", "serve", "fault", "doctor", "drill", "syphon", "backlog", "deadletters", "dashboard"),
    *("ledger", "cost", "simulate", "completion"),
)

app = typer.Typer(
    name="pairbus",
    cls=Group,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (demo, serve, fault, doctor, drill, syphon, backlog, deadletters, dashboard, ledger, cost, completion):
    module.register(app)


def show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pairbus {version('pairbus')}")
        raise typer.Exit


@app.callback()
def options(
    config: Config = None,
    quiet: Quiet = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Keeps applications sending when an Azure Service Bus namespace is down.

    Options may also be given by the environment (PAIRBUS_SYPHON_RATE=200) or by a file (--config pairbus.toml).
    """


def command_tree() -> Any:
    """All commands, as `run` uses them."""
    unify(app)
    root: Any = get_command(app)
    root.commands = {name: root.commands[name] for name in JOURNEY if name in root.commands}
    for param in root.params:
        param.envvar = ROOT_VARIABLES.get(param.name)
    return root


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    settings.forget()
    voice.be_quiet(False)
    try:
        code = command_tree().main(args=arguments, prog_name="pairbus", standalone_mode=False)
    except HelpAsked as asked:
        sys.stderr.write(f"{asked}\n")
        return CANNOT_RUN
    except Refusal as refusal:
        return _refuse(str(refusal))
    except typer.TyperException as error:
        return _refuse(sentence(error))
    except ModuleNotFoundError as error:
        package = (error.name or "pairbus").partition(".")[0]
        if package == "pairbus":
            raise
        return _refuse(f"This needs the package '{package}', which is not installed: pip install 'pairbus[all]'.")
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if code == INTERRUPTED:
        sys.stderr.write("Interrupted.\n")
    return code if isinstance(code, int) else DONE


def _refuse(said: str) -> int:
    sys.stderr.write("\n".join(map(plain, f"pairbus: {said}".splitlines())) + "\n")
    return CANNOT_RUN


def main() -> None:
    sys.exit(run())


if __name__ == "__main__":
    main()
