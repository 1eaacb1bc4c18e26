"""How all commands look: their help, their examples, the options and environment variables that they share.

Rules:
- Every command takes --quiet and --config. `serve` has a --config of its own; there, put the shared one before `serve`.
- Every option has an environment variable: PAIRBUS_, the command, the option, such as PAIRBUS_SYPHON_RATE. Those in
  `VARIABLES` and `ROOT_VARIABLES` mean the same for every command.
- Help names values with words, not with Python types, and ends with examples. A test parses the examples.
- A group without a command prints its help and exits with 2.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from pairbus.cli import output, settings

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "pairbus demo                                  watch two outages, in a minute or two",
        "pairbus serve contoso --data ./contoso        run a Service Bus on this machine",
        "pairbus doctor --primary env:CONTOSO          find out what is wrong, and what to do",
    ),
    "serve": (
        "pairbus serve contoso --data ./contoso",
        "pairbus serve contoso standby --data ./namespaces --port 5672",
        "pairbus serve --data ./namespaces --config entities.json --ready-file ready.json",
    ),
    "fault": (
        "pairbus fault contoso                         list the active faults",
        "pairbus fault contoso --entity orders --mode hang --for 30s",
        "pairbus fault contoso --mode error --condition amqp:internal-error",
        "pairbus fault contoso --clear",
    ),
    "doctor": (
        "pairbus doctor",
        "pairbus doctor --primary env:CONTOSO --secondary env:STANDBY --primary-name contoso",
        "pairbus --config pairbus.toml doctor --json",
    ),
    "drill": (
        "pairbus drill examples/drills/primary-dies.toml",
        "pairbus drill scenario.toml --json --quiet > drill.json",
        "pairbus drill scenario.toml --real --primary env:CONTOSO --secondary env:STANDBY",
    ),
    "syphon": (
        "pairbus syphon --primary env:CONTOSO --secondary env:STANDBY",
        "pairbus syphon --primary contoso --secondary standby --primary-name contoso --once",
        "pairbus syphon --control /run/pairbus/syphon.sock --state",
    ),
    "backlog": ("pairbus backlog list --primary-name contoso --secondary env:STANDBY",),
    "backlog list": (
        "pairbus backlog list --primary-name contoso --secondary env:STANDBY",
        "pairbus backlog list --primary-name contoso --secondary standby --json",
    ),
    "backlog peek": ("pairbus backlog peek --primary-name contoso --secondary env:STANDBY --queue 3 --count 5",),
    "backlog prune": ("pairbus backlog prune --primary-name contoso --secondary env:STANDBY --queues 0-4 --dry-run",),
    "deadletters": ("pairbus deadletters list --primary-name contoso --secondary env:STANDBY",),
    "deadletters list": ("pairbus deadletters list --primary-name contoso --secondary env:STANDBY",),
    "spool": ("pairbus spool /var/lib/shop/spool",),
    "deadletters resubmit": (
        "pairbus deadletters resubmit --primary-name contoso --secondary env:STANDBY --dry-run",
        "pairbus deadletters resubmit --primary-name contoso --secondary env:STANDBY --message-id order-7",
    ),
    "ledger": ("pairbus ledger report ./ledger",),
    "ledger build": ("pairbus ledger build ./ledger --tables ./tables",),
    "ledger report": (
        "pairbus ledger report ./ledger --from 2026-03-01 --to 2026-03-31 --output march.html",
        "pairbus ledger report ./ledger --look-into contoso --secondary contoso-standby",
    ),
    "cost": ("pairbus cost estimate --clients 40 --entities 5 --explain",),
    "cost estimate": (
        "pairbus cost estimate --clients 40 --entities 5 --explain",
        "pairbus cost estimate --outage-hours 2 --rate 50 --message-bytes 2048",
    ),
    "cost forecast": ("pairbus cost forecast fleet.toml",),
    "simulate": ("pairbus simulate fleet.toml --runs 1000",),
    "dashboard": (
        "pairbus dashboard --state-dir /run/user/1000/pairbus-state",
        "pairbus dashboard --allow-control --secondary env:STANDBY --ledger ./ledger",
    ),
    "demo": ("pairbus demo",),
    "completion": (
        "pairbus completion bash > ~/.local/share/bash-completion/completions/pairbus",
        "pairbus completion zsh > ~/.zfunc/_pairbus",
        "pairbus completion fish > ~/.config/fish/completions/pairbus.fish",
    ),
}

VARIABLES = {"primary_name": "PAIRBUS_PRIMARY_NAME", "state_dir": "PAIRBUS_STATE_DIR"}
ROOT_VARIABLES = {"config": "PAIRBUS_CONFIG", "quiet": "PAIRBUS_QUIET"}
NAMESPACES = ("primary", "secondary")
"""Options that name a namespace. Their variables hold connection strings; see `options.namespace`."""

_BETWEEN = re.compile(r"(-?\d+)<=x<=(-?\d+)")
_AT_LEAST = re.compile(r"x>=(-?\d+)")


class HelpRequested(Exception):  # noqa: N818 - an answer, not a fault
    """A group was called without a command; the text is its help."""


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None:
            continue
        name, text = record
        text = _BETWEEN.sub(r"\1 to \2", _AT_LEAST.sub(r"\1 or more", text))
        if isinstance(param, TyperArgument):
            sections["Arguments"].append((param.display_name_raw, text))
        else:
            sections["Options"].append((name, text))
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _format_examples(command: Any, ctx: Any, formatter: Any) -> None:
    lines = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
    if lines:
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"  {line}\n")


class Command(TyperCommand):
    format_options = _format_options
    format_epilog = _format_examples

    def __init__(self, name: str | None, **details: Any) -> None:
        super().__init__(name, **details)
        own = {option for param in self.params for option in param.opts}
        self.params.extend(param for param in common_options() if not own.intersection(param.opts))
        for param in self.params:
            _set_metavar(param)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(_usage(param) for param in self.params if isinstance(param, TyperArgument))]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # for the name of the command in the sentence
            raise

    def invoke(self, ctx: Any) -> Any:
        import rich  # noqa: F401 - many results are tables: without it, refuse before anything is done

        return super().invoke(ctx)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        _set_variables(self, parent, info_name)
        return super().make_context(info_name, args, parent=parent, **extra)


class Group(TyperGroup):
    def __init__(self, **details: Any) -> None:
        super().__init__(**details)
        self.suggest_commands = False  # our own sentence suggests
        for param in self.params:
            _set_metavar(param)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise HelpRequested(ctx.get_help())
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    format_epilog = _format_examples


def use_own_classes(app: typer.Typer) -> None:
    """Make every command below `app` a `Command` and every group a `Group`. Call it before typer builds them."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            use_own_classes(group.typer_instance)


def read_config(ctx: typer.Context, path: Path | None) -> None:
    """Make the values of --config the defaults of this command, or of the commands below it."""
    if path is None or ctx.resilient_parsing:
        return
    defaults: Any = settings.load(path, ctx.find_root().command)
    for name in ctx.command_path.split()[1:]:
        defaults = defaults.get(name, {})
    ctx.default_map = defaults


def read_quiet(ctx: typer.Context, quiet: bool) -> None:
    if quiet and not ctx.resilient_parsing:
        output.set_quiet(True)


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=read_config,
        is_eager=True,
        expose_value=False,
        help="Read options from this pairbus.toml. The command line and the environment override it.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        callback=read_quiet,
        is_eager=True,
        expose_value=False,
        help="Print only results and errors: no remarks, no progress.",
    ),
]

_common: list[Any] = []


def common_options() -> list[Any]:
    """The options that every command takes, built once, by typer like all others."""
    if not _common:
        maker = typer.Typer(add_completion=False)

        @maker.command()
        def common(config: Config = None, quiet: Quiet = False) -> None:
            """Never called: it only declares the options."""

        _common.extend(get_command(maker).params)
    return list(_common)


def variable_of(path: str, param: Any) -> str | None:
    """The environment variable of an option of the command `path`, such as `backlog list`; None if it has none."""
    if not isinstance(param, TyperOption) or param.hidden or param.name in (*NAMESPACES, "help"):
        return None
    option = max(param.opts, key=len).lstrip("-")
    return VARIABLES.get(param.name) or f"PAIRBUS_{path}_{option}".upper().replace("-", "_").replace(" ", "_")


def _set_variables(command: Any, parent: Any, name: str | None) -> None:
    above = parent.command_path.partition(" ")[2] if parent is not None else ""
    path = f"{above} {name}".strip()
    for param in command.params:
        if param not in _common:
            param.envvar = variable_of(path, param)
            param.show_envvar = False  # one rule gives all their names; help would repeat it for every option


def _set_metavar(param: Any) -> None:
    """Name the values of an option with a word instead of its Python type."""
    if param.metavar is not None or getattr(param, "is_flag", False):
        return
    if isinstance(param, TyperArgument):
        param.metavar = param.name.upper().replace("_", "-")
        return
    kind = param.type_descriptor
    if kind.is_choice:
        param.metavar = "|".join(map(str, kind.choices or ()))
    elif kind.annotation in (int, float):
        param.metavar = "NUMBER"
    else:
        param.metavar = "PATH" if kind.is_path else "TEXT"


def _usage(param: Any) -> str:
    name: str = param.display_name_raw
    if param.nargs != 1 and not name.endswith("..."):
        name += "..."
    return name if param.required or name.startswith("[") else f"[{name}]"
