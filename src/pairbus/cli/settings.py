"""pairbus.toml: options that a team does not want to type each time.

    primary = "env:CONTOSO"          # where the connection string is, never the string itself
    secondary = "secrets/standby"    # a file, relative to this one
    primary-name = "contoso"
    ca-file = "ca.pem"

    [syphon]                         # one table per command, with its options without their dashes
    rate = 200
    [ledger.report]
    plan = "premium"

Rules:
- The command line overrides the environment, the environment overrides this file, and this file overrides the defaults.
- The whole file is checked, whichever command runs: unknown keys and values of the wrong type are refused.
- Paths are relative to the file. A connection string is refused: the file is meant to be shared, keys are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pairbus.cli import output
from pairbus.cli.output import Refusal

SHARED = ("primary", "secondary", "primary-name", "ca-file", "quiet")
_KEY = re.compile(rb"sharedaccess(key|signature)\s*=", re.IGNORECASE)
_NOT_IN_TABLES = ("primary", "secondary", "primary-name", "config", "quiet", "help")

_shared: dict[str, str] = {}


def forget() -> None:
    """Drop the values of an earlier command line."""
    _shared.clear()


def shared(key: str) -> str | None:
    """The value of `primary`, `secondary` or `ca-file` in the file."""
    return _shared.get(key)


def ca_file() -> str | None:
    """The CA certificate to trust, from the environment or the file."""
    return os.environ.get("PAIRBUS_CA_FILE") or shared("ca-file")


def load(path: Path, root: Any) -> dict[str, Any]:
    """Read the file, remember its shared values, and return the defaults of all commands below `root`, by name."""
    from pairbus.toml import convert_toml

    content = _read(path)
    for name, table in content.items():
        if name in root.commands:
            _check_place(path, name, table, root.commands[name])
    values = convert_toml(content, _schema("pairbus", root), where=str(path))
    defaults = _defaults(values, root, path.parent)
    for key in ("primary", "secondary", "ca-file"):
        if key in content:
            _shared[key] = _located(content[key], path.parent, always=key == "ca-file")
    if "primary-name" in content:
        _set_everywhere(defaults, root, "primary_name", content["primary-name"])
    if content.get("quiet") and not os.environ.get("PAIRBUS_QUIET"):
        output.set_quiet(True)
    return defaults


def _read(path: Path) -> dict[str, Any]:
    from pairbus.cli.options import looks_like_connection_string
    from pairbus.toml import read_small_file, read_toml

    raw = read_small_file(path, f"--config '{path}'")
    content = read_toml(raw, where=str(path))
    # Comments count too, and so do misspelt connection strings.
    if _KEY.search(raw) or any(map(looks_like_connection_string, _texts(content))):
        raise Refusal(
            f"{path} contains a connection string: write where it is instead, env:VARIABLE or a file that holds it."
        )
    return content


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _schema(name: str, command: Any) -> Any:
    """A struct with a field for each command below this one, or for each option of this one."""
    from msgspec import UNSET, UnsetType, defstruct

    kinds: dict[str, Any] = {}
    if hasattr(command, "commands"):
        kinds = {key: _schema(key, below) for key, below in command.commands.items()}
        if name == "pairbus":
            kinds |= dict.fromkeys(SHARED, str) | {"quiet": bool}
    else:
        kinds = {key: _type(param) for key, param in _options(name, command).items()}
    names = {key.replace("-", "_"): key for key in kinds}
    fields = [(field, kinds[key] | UnsetType, UNSET) for field, key in names.items()]
    return defstruct(name, fields, rename=names, frozen=True, forbid_unknown_fields=True)


def _options(name: str, command: Any) -> dict[str, Any]:
    """The options that a table may have, by their names without dashes. Only `serve` has a --config of its own."""
    options = {_long(param): param for param in command.params if param.param_type_name == "option"}
    own = ("config",) if name == "serve" else ()
    return {
        key: param for key, param in options.items() if not param.hidden and (key in own or key not in _NOT_IN_TABLES)
    }


def _type(param: Any) -> Any:
    kind = param.type_descriptor
    if getattr(param, "is_flag", False):
        return bool
    if kind.annotation in (int, float):
        return kind.annotation
    return list[str] if kind.is_list else str


def _check_place(path: Path, name: str, table: Any, command: Any) -> None:
    """Refuse options in a table that belong to the top of the file, or to the command line only."""
    if not isinstance(table, dict):
        return
    for key, value in table.items():
        if key in getattr(command, "commands", ()):
            _check_place(path, f"{name}.{key}", value, command.commands[key])
        elif key in _NOT_IN_TABLES and not (key == "config" and name == "serve"):
            remedy = "write it at the top of the file" if key in SHARED else "use it on the command line only"
            raise Refusal(f"{path}: '{name}.{key}' is not an option of one command: {remedy}.")


def _defaults(values: Any, command: Any, folder: Path) -> dict[str, Any]:
    """The values that are set, by the names that the commands use."""
    from msgspec import UNSET, structs

    present = {
        field.encode_name: getattr(values, field.name)
        for field in structs.fields(values)
        if getattr(values, field.name) is not UNSET
    }
    if hasattr(command, "commands"):
        return {
            key: _defaults(value, command.commands[key], folder)
            for key, value in present.items()
            if key in command.commands
        }
    options = {_long(param): param for param in command.params if param.param_type_name == "option"}
    return {
        options[key].name: _located(value, folder, always=True) if options[key].type_descriptor.is_path else value
        for key, value in present.items()
    }


def _located(text: str, folder: Path, *, always: bool) -> str:
    """The path relative to the file's folder; unless `always`, only if something is there."""
    path = folder / text
    return str(path) if always or (not text.startswith("env:") and path.exists()) else text


def _long(param: Any) -> str:
    return str(max(param.opts, key=len)).lstrip("-")


def _set_everywhere(defaults: dict[str, Any], command: Any, name: str, value: str) -> None:
    """Set a default for every command that has this option."""
    for key, below in command.commands.items():
        if hasattr(below, "commands"):
            _set_everywhere(defaults.setdefault(key, {}), below, name, value)
        elif any(param.name == name for param in below.params):
            defaults.setdefault(key, {})[name] = value
