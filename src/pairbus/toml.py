"""Reads TOML that people write by hand, and explains mistakes. PURE.

A frozen `msgspec.Struct` with `forbid_unknown_fields=True` describes a file; `convert_toml` turns its content into that
struct. Whatever is wrong becomes a `TomlError`: one sentence with the file, the key, its value and what was expected.

    fleet.toml: outages 2: per_30_days is -1: expected a number from 0 to 10,000.
    fleet.toml: 'clinets' is unknown: did you mean 'clients'?

A number or a list with a limit has two: `ge` or `gt` with `le`, and `min_length` with `max_length`. A type that msgspec
does not know needs a `dec_hook` that raises ValueError("Expected ..."), and a class attribute `expected` with the words
for the sentence. For any other type `Meta(extra={"expected": "..."})` replaces the words. A ValueError of a struct's
`__post_init__` is quoted as it is.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from datetime import date, time
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from pairbus.errors import UsageError

MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 50
MAX_INTEGER = 2**63 - 1  # TOML asks readers to support no more
MAX_SUGGESTED = 20
MAX_SHOWN = 60

_PATH = re.compile(r"(.*) - at `(\$.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_FIELD = re.compile(r"Object (?:contains (unknown)|missing required) field `(.*)`", re.DOTALL)

T = TypeVar("T")


class TomlError(UsageError, ValueError):
    """The file cannot be used; the text is one sentence for its author."""


def read_small_file(path: Path, what: str) -> bytes:
    """The content of a file that the user named; `what` names it in the TomlError, such as "the fleet fleet.toml"."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TomlError(f"Cannot read {what}: {error.strerror}.") from error
    if len(raw) > MAX_FILE_BYTES:
        raise TomlError(f"{what[0].upper()}{what[1:]} has more than {MAX_FILE_BYTES:,} bytes: is it the right file?")
    return raw


def read_toml(raw: bytes | str, *, where: str) -> dict[str, Any]:
    """Parse TOML; `where` names the file in the TomlError."""
    try:
        content = tomllib.loads(raw if isinstance(raw, str) else raw.decode("utf-8"))
        _check_limits(content, 1)
        return content
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problem = str(error)
    except RecursionError:
        problem = "it is nested too deeply"
    except ValueError:  # also from Python, which does not read integers of thousands of digits
        problem = "it has a whole number of more than 64 bits"
    raise TomlError(f"{where} is not TOML: {problem}.")


def _check_limits(value: Any, depth: int) -> None:
    if isinstance(value, dict | list):
        if depth > MAX_DEPTH:
            raise RecursionError
        for item in value.values() if isinstance(value, dict) else value:
            _check_limits(item, depth + 1)
    elif isinstance(value, int) and not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        raise ValueError


def convert_toml(
    content: dict[str, Any],
    kind: type[T],
    *,
    where: str,
    inside: str = "",
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> T:
    """Turn parsed TOML into the struct `kind`; `where` names the file in the TomlError.

    `inside`: the place of the content in the file, such as "plans: standard: ".
    """
    try:
        return msgspec.convert(content, kind, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise TomlError(f"{where}: {_explain(str(error), content, inspect.type_info(kind), inside)}") from error


def suggest(word: str, known: Iterable[str], *, otherwise: str = "known are") -> str:
    """End a sentence about an unknown word: the closest known word, or all of them if they are few."""
    words = sorted(known)
    close = get_close_matches(word.lower(), [candidate.lower() for candidate in words], n=1)
    if close:
        return f"did you mean '{next(candidate for candidate in words if candidate.lower() == close[0])}'?"
    if words and len(words) <= MAX_SUGGESTED:
        return f"{otherwise} {', '.join(words)}."
    return f"there are {len(words)} of them."


def _explain(message: str, value: Any, kind: Any, place: str) -> str:
    """Turn msgspec's message, which ends with the path of the value, into a sentence."""
    found = _PATH.fullmatch(message)
    text, path = (found[1], found[2]) if found else (message, "$")
    key = ""
    for name, index in _STEP.findall(path):
        kind = _chosen(kind, value)
        if name:
            place, key = f"{place}{key}: " if key else place, name
            kind, value = _fields(kind)[name], value.get(name)
        else:
            key = f"{key} {int(index) + 1}"
            kind, value = kind.item_type, value[int(index)]
    chosen = _chosen(kind, value)
    inside = f"{place}{key}: " if key else place
    if field := _FIELD.fullmatch(text):
        fields = _fields(chosen)
        if field[1]:
            return f"{inside}{_show(field[2])} is unknown: {suggest(field[2], fields)}"
        return f"{inside}{field[2]} is missing: expected {_describe(fields[field[2]], f'{inside}{field[2]}')}."
    if text.startswith("Expected `array` of length"):
        return f"{place}{key} has {len(value)} entries: expected {chosen.min_length} to {chosen.max_length}."
    if not text.startswith(("Expected", "Invalid")):  # the words of a __post_init__
        return f"{inside}{text}"
    if isinstance(chosen, inspect.LiteralType) and isinstance(value, str):
        return f"{place}{key} {_show(value)} is unknown: {suggest(value, map(str, chosen.values))}"
    return f"{place}{key} is {_show(value)}: expected {_describe(kind, f'{place}{key}')}."


def _options(kind: Any) -> list[Any]:
    """The types of a union, without None."""
    return [option for option in getattr(kind, "types", (kind,)) if not isinstance(option, inspect.NoneType)]


def _chosen(kind: Any, value: Any) -> Any:
    """The type of a union that `value` was meant for, if that is clear: of tagged structs the one with its tag."""
    if isinstance(kind, inspect.Metadata):
        return _chosen(kind.type, value)
    options = _options(kind)
    if isinstance(value, dict):
        tagged = [option for option in options if isinstance(option, inspect.StructType) and option.tag_field]
        options = [option for option in tagged if option.tag == value.get(option.tag_field)] or options
    elif isinstance(value, list):
        options = [option for option in options if hasattr(option, "item_type")] or options
    return options[0] if len(options) == 1 else kind


def _fields(kind: Any) -> dict[str, Any]:
    """The keys of a table with their types; of a union of tagged structs only the tag."""
    fields = {field.encode_name: field.type for field in getattr(kind, "fields", ())}
    tags = [option for option in _options(kind) if getattr(option, "tag_field", None)]
    return fields | ({tags[0].tag_field: inspect.LiteralType(tuple(option.tag for option in tags))} if tags else {})


def _describe(kind: Any, path: str) -> str:
    """What the value at `path`, such as `ledger: report`, should be, in words."""
    match kind:
        case inspect.Metadata():
            return str((kind.extra or {}).get("expected") or _describe(kind.type, path))
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, kind.values))}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            if kind.gt is not None:
                return f"{noun} above {kind.gt:,}, at most {kind.le:,}"
            return noun if kind.ge is None else f"{noun} from {kind.ge:,} to {kind.le:,}"
        case inspect.StrType():
            return "a text in quotes"
        case inspect.CustomType():
            return str(getattr(kind.cls, "expected", kind.cls.__name__))
        case inspect.ListType() | inspect.VarTupleType():
            if any(isinstance(item, inspect.StructType) for item in _options(kind.item_type)):
                return f"tables: write [[{_key(path)}]] above each of them"
            return 'a list of texts, such as ["one", "two"]'
        case inspect.UnionType():
            return "a table" if _fields(kind) else " or ".join(_describe(option, path) for option in _options(kind))
    return "a table" if path[-1:].isdigit() else f"a table, [{_key(path)}]"


def _key(path: str) -> str:
    """The dotted key of a place such as `plans: standard: operations 2`."""
    return re.sub(r" \d+", "", path).replace(": ", ".")


def _show(value: Any) -> str:
    text = repr(value)
    if isinstance(value, bool):
        text = text.lower()
    elif isinstance(value, date | time):
        text = str(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
