"""The entry point `pairbus`: assembles the commands, and turns errors into a sentence and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

try:
    import typer
except ModuleNotFoundError:
    sys.stderr.write("pairbus: The command line needs packages that are not installed: pip install 'pairbus[cli]'.\n")
    sys.exit(2)
from typer.main import get_command

from pairbus.cli import backlog, cost, dashboard, demo, doctor, drill, fault, ledger, output, serve, settings, syphon
from pairbus.cli.commands import ROOT_VARIABLES, Config, Group, HelpRequested, Quiet, use_own_classes
from pairbus.cli.output import CANNOT_RUN, DONE, INTERRUPTED, describe_usage_error, plain
from pairbus.errors import UsageError

app = typer.Typer(
    name="pairbus",
    cls=Group,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(requested: bool) -> None:
    if requested:
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

    Every option can also come from the environment (PAIRBUS_SYPHON_RATE=200) or from a file (--config pairbus.toml).
    """


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the completion script for a shell.

    Save it where the shell looks for completions. `pairbus --install-completion` does that for your current shell.
    """
    import os
    import subprocess

    # typer writes the script when it is started as a shell would start it.
    environment = {**os.environ, "_PAIRBUS_COMPLETE": f"source_{shell}"}
    command = [sys.executable, "-m", "pairbus.cli"]
    typer.echo(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip())


# In the order in which a newcomer meets them.
COMMANDS: dict[str, Callable[..., Any] | typer.Typer] = {
    "demo": demo.demo,
    "serve": serve.serve,
    "fault": fault.fault,
    "doctor": doctor.doctor,
    "drill": drill.drill,
    "syphon": syphon.syphon,
    "backlog": backlog.backlog,
    "deadletters": backlog.deadletters,
    "spool": backlog.list_spool,
    "dashboard": dashboard.dashboard,
    "ledger": ledger.commands,
    "cost": cost.cost,
    "simulate": cost.simulate,
    "completion": completion,
}
for name, command in COMMANDS.items():
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)


def command_tree() -> Any:
    """All commands, built as `run` uses them."""
    use_own_classes(app)
    root: Any = get_command(app)
    root.commands = {name: root.commands[name] for name in COMMANDS}
    for param in root.params:
        param.envvar = ROOT_VARIABLES.get(param.name)
    return root


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    settings.forget()
    output.set_quiet(False)
    try:
        code = command_tree().main(args=arguments, prog_name="pairbus", standalone_mode=False)
    except HelpRequested as requested:
        sys.stderr.write(f"{requested}\n")
        return CANNOT_RUN
    except UsageError as error:
        return _refuse(str(error))
    except typer.TyperException as error:
        return _refuse(describe_usage_error(error))
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


def _refuse(text: str) -> int:
    sys.stderr.write("\n".join(map(plain, f"pairbus: {text}".splitlines())) + "\n")
    return CANNOT_RUN


def main() -> None:
    sys.exit(run())


if __name__ == "__main__":
    main()
