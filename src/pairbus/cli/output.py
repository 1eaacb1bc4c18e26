"""Everything that commands print: results, remarks, refusals, tables, logs, and what the exit codes mean.

Results go to standard output and are never silenced. Remarks go to standard error; --quiet silences them.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from pairbus.errors import UsageError

DONE = 0
ANSWER_IS_NO = 1
CANNOT_RUN = 2
INTERRUPTED = 130


EXIT_CODES = {
    DONE: "success, and the answer is yes; `serve` and `syphon`: stopped by Ctrl-C or SIGTERM",
    ANSWER_IS_NO: "the command ran, and the answer is no; see below",
    CANNOT_RUN: "the command could not run: a wrong option, a port in use, a server that does not answer",
    INTERRUPTED: "interrupted by Ctrl-C; `drill` also by SIGTERM",
}
ANSWERS = {
    "deadletters resubmit": "a message given with --message-id is not among the dead letters",
    "demo": "an accepted message was not delivered, or the ledger disagrees with the count",
    "doctor": "a check failed",
    "drill": "an expectation does not hold, a step failed, or the drill could not delete what it created",
    "ledger report": "a message is lost",
}
"""The meaning of ANSWER_IS_NO, for each command that uses it."""


class Refusal(UsageError):  # noqa: N818 - an answer to the user, not a fault
    """The command cannot run with these options."""


# --- remarks ------------------------------------------------------------------------------------------------

_quiet = False


def set_quiet(quiet: bool) -> None:
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    return _quiet


def remark(sentence: str) -> None:
    """Print a line that is not part of the result."""
    if not _quiet:
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()


def shows_progress() -> bool:
    """Whether a moving progress bar makes sense: stderr is a terminal, and the user did not ask for quiet."""
    return not _quiet and sys.stderr.isatty()


# --- results ------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Escape everything unprintable, so that ids and errors written by others cannot control the terminal."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text)


def counted(number: int, noun: str) -> str:
    """`1 day`, `2 days`, `1,000 records`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def print_json(value: Any) -> None:
    """Print dataclasses, structs and plain values."""
    import msgspec

    typer.echo(json.dumps(msgspec.to_builtins(value)))


def print_rows(rows: Sequence[Any], *, as_json: bool) -> None:
    """Print dataclasses of one type, one per row."""
    values = [asdict(row) for row in rows]
    if as_json:
        print_json(values)
        return
    if not values:
        remark("Nothing found.")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*(name.removesuffix("_ms").replace("_", " ") for name in values[0]))
    for row in values:
        # As Text, not as rich's markup: the sender of a message chose its id.
        table.add_row(*(Text(plain(_cell(name, value))) for name, value in row.items()))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 240).print(table)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_ms"):
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="seconds")
    if isinstance(value, dict):
        return ", ".join(f"{key}: {count}" for key, count in value.items())
    if isinstance(value, bool):
        return "yes" if value else ""
    return str(value)


# --- refusals -----------------------------------------------------------------------------------------------

MAX_SHOWN = 80
_EXPECTED = {int: "a whole number", float: "a number", bool: "true or false"}
_NO_COMMAND = re.compile(r"No such command '(.*)'\.?", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments?\S* \((.*)\)", re.DOTALL)
_NO_VALUE = re.compile(r"Option '(.*)' requires (?:an argument|\d+ arguments)")


def describe_usage_error(error: typer.TyperException) -> str:
    """Say in one sentence what is wrong with a command line, and where to read on.

    Typer's error classes are not public, so this recognizes them by their attributes and messages.
    """
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "pairbus"
    return f"{_what_is_wrong(error, context, path)} See '{path} --help'."


def _what_is_wrong(error: typer.TyperException, context: Any, path: str) -> str:
    from pairbus.toml import suggest

    message = error.format_message().strip()
    param: Any = getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        typed = str(getattr(error, "option_name", ""))
        params = [] if context is None else context.command.get_params(context)
        options = [option for param in params for option in param.opts if option.startswith("--")]
        return f"{typed} is not an option of '{path}': {suggest(typed, options)}"
    if (found := _NO_COMMAND.fullmatch(message)) is not None:
        return f"'{_shorten(found[1])}' is not a command of '{path}': {suggest(found[1], context.command.commands)}"
    if (found := _EXTRA.fullmatch(message)) is not None:
        return f"'{path}' takes no argument '{_shorten(found[1])}': leave it out, or put a value with spaces in quotes."
    if (found := _NO_VALUE.match(message)) is not None:
        return f"{found[1]} needs a value: write {found[1]} VALUE."
    if message == "Missing command.":
        return f"'{path}' needs a command: {', '.join(context.command.commands)}."
    if param is not None and message.startswith("Missing "):
        return f"'{path}' needs {_name(param)}: {_first_sentence(param.help)}"
    if param is not None:
        return _bad_value(error, param)
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _bad_value(error: typer.TyperException, param: Any) -> str:
    from pairbus.toml import suggest

    cause: Any = error.__cause__
    details = cause.errors()[0] if cause is not None and hasattr(cause, "errors") else {}
    value = _shorten(str(details.get("input", "")))
    kind, name = param.type_descriptor, _name(param)
    if kind.is_choice:
        choices = [str(choice) for choice in kind.choices or ()]
        return f"{name} '{value}' is unknown: {suggest(value, choices, otherwise='use one of')}"
    if kind.annotation in _EXPECTED:
        expected = _EXPECTED[kind.annotation]
        if str(details.get("type", "")).endswith(("_parsing", "_type", "_from_float")):
            return f"{name} '{value}' is not {expected}: write digits only."
        return f"{name} {value} is out of range: use {expected}{_range(param)}."
    text = str(getattr(error, "message", error)).removeprefix("Value error, ").rstrip(".")
    return f"{name} '{value}' is invalid: {text}." if value else f"{name}: {text}."


def _range(param: Any) -> str:
    low, high = getattr(param, "min", None), getattr(param, "max", None)
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    return f" of {low:g} or more" if low is not None else f" of {high:g} or less" if high is not None else ""


def _name(param: Any) -> str:
    return str(max(param.opts, key=len)) if param.param_type_name == "option" else str(param.display_name_raw)


def _first_sentence(text: str | None) -> str:
    first = re.split(r"(?<=[.;])\s", text or "add it.")[0].rstrip(".;")
    return f"{first[0].lower()}{first[1:]}." if not first[:2].isupper() else f"{first}."


def _shorten(text: str) -> str:
    shown = "".join(sign if sign.isprintable() else "?" for sign in text)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 1]}…"


# --- logs ---------------------------------------------------------------------------------------------------

LOG_LEVELS = ("debug", "info", "warning", "error")
LogLevel = Annotated[
    str, typer.Option(metavar="LEVEL", help=f"Log this level and above to stderr: {', '.join(LOG_LEVELS)}.")
]
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValueFormatter(logging.Formatter):
    """One line per event, with the caller's `extra` as keys of its own:

    time=2025-01-01T12:00:00.123Z level=warning logger=pairbus.embedded event="the store is slow" took_ms=412
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        fields.update((key, value) for key, value in vars(record).items() if key not in _STANDARD_FIELDS)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_quoted(str(value))}" for key, value in fields.items())


def _quoted(text: str) -> str:
    is_plain = text and text.isprintable() and not any(sign in text for sign in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def configure_logs(level: str) -> None:
    """Log to standard error from `level` on."""
    if level.lower() not in LOG_LEVELS:
        raise Refusal(f"--log-level '{level}' is unknown: use one of {', '.join(LOG_LEVELS)}.")
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[output], force=True)
