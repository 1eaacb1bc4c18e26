"""What was wrong with a command line, as one sentence: what was given, what was expected, what to do.

Typer's errors are told apart by what they carry, because their classes are not part of its interface.
"""

from __future__ import annotations

import re
from typing import Any

import typer

from pairbus.cli.suggestions import meant

_EXPECTED = {int: "a whole number", float: "a number", bool: "true or false"}
_QUOTED = re.compile(r"No such command '(.*)'\.?", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments?\S* \((.*)\)", re.DOTALL)
_NO_VALUE = re.compile(r"Option '(.*)' requires (?:an argument|\d+ arguments)")
LONGEST_SHOWN = 80


def sentence(error: typer.TyperException) -> str:
    """One sentence, and where to read on."""
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "pairbus"
    return f"{_what(error, context, path)} See '{path} --help'."


def _what(error: typer.TyperException, context: Any, path: str) -> str:
    message = error.format_message().strip()
    param: Any = getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        return _no_such_option(str(getattr(error, "option_name", "")), context, path)
    if (found := _QUOTED.fullmatch(message)) is not None:
        return f"'{_short(found[1])}' is not a command of '{path}': {meant(found[1], context.command.commands)}"
    if (found := _EXTRA.fullmatch(message)) is not None:
        return f"'{path}' does not know what to do with '{_short(found[1])}': leave it out, or put it in quotes."
    if (found := _NO_VALUE.match(message)) is not None:
        return f"{found[1]} needs a value: write it behind, as in {found[1]} VALUE."
    if message == "Missing command.":
        return f"'{path}' needs a command: {', '.join(context.command.commands)}."
    if param is not None and message.startswith("Missing "):
        return f"'{path}' needs {_name(param)}: {_first_sentence(param.help)}"
    if param is not None:
        return _bad_value(error, param)
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _no_such_option(given: str, context: Any, path: str) -> str:
    known = [] if context is None else [one for param in context.command.get_params(context) for one in param.opts]
    return f"{given} is not an option of '{path}': {meant(given, [one for one in known if one.startswith('--')])}"


def _bad_value(error: typer.TyperException, param: Any) -> str:
    cause: Any = error.__cause__
    details = cause.errors()[0] if cause is not None and hasattr(cause, "errors") else {}
    given = _short(str(details.get("input", "")))
    kind = param.type_descriptor
    low, high = getattr(param, "min", None), getattr(param, "max", None)
    name = _name(param)
    if kind.is_choice:
        choices = [str(one.value) for one in kind.choices or ()]
        return f"{name} '{given}' is unknown: {meant(given, choices, otherwise='use one of')}"
    if kind.annotation in _EXPECTED:
        expected = _EXPECTED[kind.annotation]
        if str(details.get("type", "")).endswith(("_parsing", "_type", "_from_float")):
            return f"{name} '{given}' is not {expected}: write digits only."
        return f"{name} {given} is out of range: give {expected}{_range(low, high)}."
    text = str(getattr(error, "message", error)).removeprefix("Value error, ").rstrip(".")
    return f"{name} '{given}' cannot be used: {text}." if given else f"{name}: {text}."


def _range(low: Any, high: Any) -> str:
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    return f" of {low:g} or more" if low is not None else f" of {high:g} or less" if high is not None else ""


def _name(param: Any) -> str:
    return str(max(param.opts, key=len)) if param.param_type_name == "option" else str(param.display_name_raw)


def _first_sentence(text: str | None) -> str:
    first = re.split(r"(?<=[.;])\s", text or "give it.")[0].rstrip(".;")
    return f"{first[0].lower()}{first[1:]}." if not first[:2].isupper() else f"{first}."


def _short(text: str) -> str:
    plain = "".join(sign if sign.isprintable() else "?" for sign in text)
    return plain if len(plain) <= LONGEST_SHOWN else f"{plain[: LONGEST_SHOWN - 1]}…"
