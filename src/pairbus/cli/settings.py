"""pairbus.toml: options that a team does not want to type each time.

    primary = "env:CONTOSO"          # where a connection string is, never the string itself
    secondary = "secrets/standby"    # a file, found from here
    primary-name = "contoso"
    ca-file = "ca.pem"

    [syphon]                         # a table for each command, its options without their dashes
    rate = 200
    [ledger.report]
    plan = "premium"

Rules:
- What is typed goes before the environment, that before this file, and this file before what is built in.
- A key nobody knows, and a value of the wrong kind, are refused, whichever command is called: a file is right or wrong.
- Paths are found from the folder of the file. A connection string in it is refused: files are shared, keys are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairbus.cli import voice
from pairbus.cli.parsing import holds_key
from pairbus.cli.refusal import Refusal
from pairbus.cli.suggestions import meant

SHARED = ("primary", "secondary", "primary-name", "ca-file", "quiet")
LARGEST_BYTES = 1024 * 1024
_KEY = re.compile(rb"sharedaccess(key|signature)\s*=", re.IGNORECASE)
_NOT_IN_TABLES = ("primary", "secondary", "primary-name", "config", "quiet", "help")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the file says about all commands."""

    file: Path | None = None
    shared: dict[str, str] = field(default_factory=dict)


_current = Settings()


def forget() -> None:
    """Before a command line is read."""
    global _current
    _current = Settings()


def shared(key: str) -> str | None:
    """What the file says about `primary`, `secondary` or `ca-file`."""
    return _current.shared.get(key)


def ca_file() -> str | None:
    """The certificate to trust: by the environment, else by the file."""
    return os.environ.get("PAIRBUS_CA_FILE") or shared("ca-file")


def load(path: Path, root: Any) -> dict[str, Any]:
    """Reads the file, keeps what is shared, and returns the defaults of all commands below `root`, by name."""
    global _current
    content = _read(path)
    folder = path.parent
    found: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    for key, value in content.items():
        if key in SHARED:
            continue
        if key not in root.commands:
            raise Refusal(f"{path}: '{key}' is unknown: {meant(key, [*SHARED, *root.commands])}")
        defaults[key] = _table(path, key, value, root.commands[key])
    for key in ("primary", "secondary", "primary-name", "ca-file"):
        if key in content:
            found[key] = _located(_text(path, key, content[key]), folder, always=key == "ca-file")
    if "primary-name" in found:
        found["primary-name"] = content["primary-name"]
        _spread(defaults, root, "primary_name", found["primary-name"])
    if "quiet" in content:
        quiet = _kind(path, "quiet", content["quiet"], bool, "true or false")
        if quiet and not os.environ.get("PAIRBUS_QUIET"):
            voice.be_quiet(True)
    _current = Settings(path, found)
    return defaults


def _read(path: Path) -> dict[str, Any]:
    from pairbus.toml import read_toml

    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise Refusal(f"--config '{path}' cannot be read: {error.strerror}.") from error
    if len(raw) > LARGEST_BYTES:
        raise Refusal(f"--config '{path}' has more than {LARGEST_BYTES} bytes: that is no file of options.")
    try:
        content = read_toml(raw)
    except ValueError as error:
        raise Refusal(f"{path} is not TOML: {error}.") from error
    # Also in a comment, and also in another spelling: files are shared.
    if _KEY.search(raw) or any(map(holds_key, _texts(content))):
        raise Refusal(
            f"{path} holds a connection string: write where it is instead, env:VARIABLE or the file that holds it."
        )
    return content


def _texts(value: Any) -> Iterator[str]:
    """Every text in the file, whatever it is for."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _table(path: Path, name: str, table: Any, command: Any) -> dict[str, Any]:
    """The defaults of one command, or of the commands of one group."""
    if not isinstance(table, dict):
        raise Refusal(f"{path}: {name} is {table!r}: expected a table, [{name}], with options of that command.")
    below = getattr(command, "commands", None)
    if below is not None:
        defaults = {}
        for key, value in table.items():
            if key not in below:
                raise Refusal(f"{path}: '{name}.{key}' is unknown: {meant(key, below)}")
            defaults[key] = _table(path, f"{name}.{key}", value, below[key])
        return defaults
    options = {_long(param): param for param in command.params if param.param_type_name == "option"}
    known = [key for key in options if not options[key].hidden and (key == "config") <= (name == "serve")]
    values = {}
    for key, value in table.items():
        if key in _NOT_IN_TABLES and not (key == "config" and name == "serve"):
            where = "write it at the top of the file" if key in SHARED else "it has no place in a file"
            raise Refusal(f"{path}: '{name}.{key}' is not an option of one command: {where}.")
        if key not in known:
            raise Refusal(f"{path}: '{name}.{key}' is unknown: {meant(key, set(known) - set(_NOT_IN_TABLES))}")
        values[options[key].name] = _value(path, f"{name}.{key}", value, options[key])
    return values


def _value(path: Path, key: str, value: Any, param: Any) -> Any:
    kind = param.type_descriptor
    if getattr(param, "is_flag", False):
        return _kind(path, key, value, bool, "true or false")
    if kind.annotation is int:
        return _kind(path, key, value, int, "a whole number")
    if kind.annotation is float:
        return _kind(path, key, value, (int, float), "a number")
    if kind.is_list:
        items = _kind(path, key, value, list, 'a list of texts, such as ["one", "two"]')
        return [_text(path, key, item) for item in items]
    text = _text(path, key, value)
    return _located(text, path.parent, always=True) if kind.is_path else text


def _text(path: Path, key: str, value: Any) -> str:
    text: str = _kind(path, key, value, str, "a text in quotes")
    return text


def _kind(path: Path, key: str, value: Any, kinds: Any, expected: str) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise Refusal(f"{path}: {key} is {str(value)[:60]!r}: expected {expected}.")
    return value


def _located(text: str, folder: Path, *, always: bool) -> str:
    """A path, found from the folder of the file; a text that may be one only if something is there."""
    there = folder / text
    return str(there) if always or (not text.startswith("env:") and there.exists()) else text


def _long(param: Any) -> str:
    return str(max(param.opts, key=len)).lstrip("-")


def _spread(defaults: dict[str, Any], command: Any, name: str, value: str) -> None:
    """The same default for every command that has this option."""
    for key, below in command.commands.items():
        if hasattr(below, "commands"):
            _spread(defaults.setdefault(key, {}), below, name, value)
        elif any(param.name == name for param in below.params):
            defaults.setdefault(key, {})[name] = value
