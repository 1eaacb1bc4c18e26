"""What all commands share, so that none is the odd one out: their help, their common options, their variables.

Rules:
- Every command takes --quiet and --config; `serve`, whose --config is another file, takes the latter before its name.
- Every option can be given by the environment: PAIRBUS_, the command, the option, such as PAIRBUS_SYPHON_RATE.
  `VARIABLES` and `ROOT_VARIABLES` mean the same for every command.
- Help shows words for values, never the types of the program, and ends with examples that the tests read.
- A group without its command shows its help and is wrong input: exit code 2.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from pairbus.cli import settings, voice
from pairbus.cli.examples import EXAMPLES

_BETWEEN = re.compile(r"(-?\d+)<=x<=(-?\d+)")
_AT_LEAST = re.compile(r"x>=(-?\d+)")

VARIABLES = {"primary_name": "PAIRBUS_PRIMARY_NAME", "state_dir": "PAIRBUS_STATE_DIR"}
ROOT_VARIABLES = {"config": "PAIRBUS_CONFIG", "quiet": "PAIRBUS_QUIET"}
NAMESPACES = ("primary", "secondary")
"""Options that name a namespace. Their variables hold connection strings, see `namespaces`."""


class HelpAsked(Exception):  # noqa: N818 - an answer, not a fault
    """A group was called without a command; the text is its help."""


class Command(TyperCommand):
    def __init__(self, name: str | None, **details: Any) -> None:
        super().__init__(name, **details)
        own = {option for param in self.params for option in param.opts}
        self.params.extend(param for param in common_options() if not own.intersection(param.opts))
        for param in self.params:
            _name_values(param)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(_usage(param) for param in self.params if isinstance(param, TyperArgument))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_options(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _format_examples(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # so that the sentence names the command
            raise

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        _name_variables(self, parent, info_name)
        return super().make_context(info_name, args, parent=parent, **extra)


class Group(TyperGroup):
    def __init__(self, **details: Any) -> None:
        super().__init__(**details)
        self.suggest_commands = False  # what was meant is said in our own sentence
        for param in self.params:
            _name_values(param)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise HelpAsked(ctx.get_help())
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _format_examples(ctx, formatter)


def unify(app: typer.Typer) -> None:
    """Makes every command of the application one of ours, before it is built."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            unify(group.typer_instance)


def read_config(ctx: typer.Context, path: Path | None) -> None:
    """The --config option: its values become defaults, of this command or of the one that follows."""
    if path is None or ctx.resilient_parsing:
        return
    root = ctx.find_root()
    defaults: Any = settings.load(path, root.command)
    for name in ctx.command_path.split()[1:]:
        defaults = defaults.get(name, {})
    ctx.default_map = defaults


def be_quiet(ctx: typer.Context, quiet: bool) -> None:
    if quiet and not ctx.resilient_parsing:
        voice.be_quiet(True)


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=read_config,
        is_eager=True,
        expose_value=False,
        help="Options from this pairbus.toml; what is typed, and the environment, go before it.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        callback=be_quiet,
        is_eager=True,
        expose_value=False,
        help="Only results and errors: no remarks, no progress.",
    ),
]

_common: list[Any] = []


def common_options() -> list[Any]:
    """The options that every command takes, made once, by typer like all others."""
    if not _common:
        maker = typer.Typer(add_completion=False)

        @maker.command()
        def common(config: Config = None, quiet: Quiet = False) -> None:
            """Never called: only its options are wanted."""

        _common.extend(get_command(maker).params)
    return list(_common)


def variable_of(path: str, param: Any) -> str | None:
    """The environment variable of an option of the command `path`, such as `backlog list`; None if it has none."""
    if not isinstance(param, TyperOption) or param.hidden or param.name in (*NAMESPACES, "help"):
        return None
    option = max(param.opts, key=len).lstrip("-")
    return VARIABLES.get(param.name) or f"PAIRBUS_{path}_{option}".upper().replace("-", "_").replace(" ", "_")


def _name_variables(command: Any, parent: Any, name: str | None) -> None:
    above = parent.command_path.partition(" ")[2] if parent is not None else ""
    path = f"{above} {name}".strip()
    for param in command.params:
        if param not in _common:
            param.envvar = variable_of(path, param)
            param.show_envvar = False  # one rule names them all; help would say little else


def _name_values(param: Any) -> None:
    """Words for the values of an option, in place of the program's types."""
    if param.metavar is not None or getattr(param, "is_flag", False):
        return
    if isinstance(param, TyperArgument):
        param.metavar = param.name.upper().replace("_", "-")
        return
    kind = param.type_descriptor
    if kind.is_choice:
        param.metavar = "|".join(str(getattr(choice, "value", choice)) for choice in kind.choices or ())
    elif kind.annotation in (int, float):
        param.metavar = "NUMBER"
    else:
        param.metavar = "PATH" if kind.is_path else "TEXT"


def _usage(param: Any) -> str:
    name: str = param.display_name_raw
    if param.nargs != 1 and not name.endswith("..."):
        name += "..."
    return name if param.required or name.startswith("[") else f"[{name}]"


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    records: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None:
            continue
        name, text = record
        text = _BETWEEN.sub(r"\1 to \2", _AT_LEAST.sub(r"\1 or more", text))
        if isinstance(param, TyperArgument):
            records["Arguments"].append((param.display_name_raw, text))
        else:
            records["Options"].append((name, text))
    for title, rows in records.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _format_examples(ctx: Any, formatter: Any) -> None:
    lines = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
    if lines:
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"  {line}\n")
