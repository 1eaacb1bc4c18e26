"""Write docs/reference/python.md, the public names and their signatures; `--check` only compares it with the code.

Users build on that page. A change of it changes the version, so a test compares the page with the code.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "python.md"

# Modules whose `__all__` is public, and the public names of modules that also have internal ones.
MODULES = (
    "pairbus",
    "pairbus.aio",
    "pairbus.syphon",
    "pairbus.pipeline",
    "pairbus.ledger",
    "pairbus.costs",
    "pairbus.testing",
)
NAMES = {
    "pairbus.pipeline.session": ("local_session",),
    "pairbus.pipeline.build": ("BuildResult", "build"),
    "pairbus.pipeline.report": ("Report", "Summary", "report", "summarise"),
    "pairbus.pipeline.page": ("html_page",),
    "pairbus.pipeline.spark_syphon": ("SparkSyphonReport",),
    "pairbus.testing.plugin": ("outage", "pairbus_pair", "pairbus_process_pair"),
}

# Classes that users do not construct, and members that only other parts of the package call.
NOT_CONSTRUCTED = frozenset({"PairedServiceBusClient", "PairedServiceBusSender", "InProcessSyphon"})
INTERNAL = frozenset(
    {
        *("check_links", "check_usable", "fault", "is_faulted", "link_settings", "next_backlog_number"),
        *("start", "watched_entities"),
    }
)

OPENING = """\
# Python

Written by `scripts/generate_api_reference.py`; a test fails when it differs from the code. These names are the public
ones: versions follow [semantic versioning](https://semver.org), and what is not here may change at any time. The
Spark source has a [page of its own](connector.md).
"""

# The text of a default that is a function contains its address in memory.
ADDRESS = re.compile(r" = <function \S+ at 0x[0-9a-f]+>")


class Bare(str):
    """An annotation without the quotes of a string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def bare(annotation: Any) -> Any:
    return Bare(annotation) if isinstance(annotation, str) else annotation


def own_signature(value: Any) -> str:
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(annotation=bare(parameter.annotation)) for parameter in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=bare(signature.return_annotation)))
    return ADDRESS.sub(" = ...", text)


def described(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield from described_class(name, value)
    elif callable(value):
        prefix = "async def" if inspect.iscoroutinefunction(value) else "def"
        yield f"{prefix} {name}{own_signature(value)}"
    else:
        # Not the value: a version changes with every release.
        yield f"{name}: {type(value).__name__}"


def described_class(name: str, value: type) -> Iterator[str]:
    if issubclass(value, enum.Enum):
        yield f"class {name}: {', '.join(f'{member.name} = {member.value!r}' for member in value)}"
        return
    if issubclass(value, BaseException):
        yield f"class {name}({', '.join(parent.__name__ for parent in value.__bases__)})"
        return
    internal = INTERNAL if name in NOT_CONSTRUCTED else frozenset()
    constructor = own_signature(value).removesuffix(" -> None")
    yield f"class {name}" if name in NOT_CONSTRUCTED else f"class {name}{constructor}"
    fields = set(getattr(value, "__dataclass_fields__", ())) | set(getattr(value, "__struct_fields__", ()))
    ours = [base for base in reversed(value.__mro__) if base.__module__.startswith("pairbus.")]
    members = {member: attribute for base in ours for member, attribute in vars(base).items()}
    for member, attribute in sorted(members.items()):
        if member.startswith("_") or member in fields or member in internal:
            continue
        kind = type(attribute).__name__
        if isinstance(attribute, property):
            yield f"    {member}: {inspect.signature(attribute.fget).return_annotation if attribute.fget else 'Any'}"
        elif isinstance(attribute, classmethod | staticmethod):
            prefix = "async def" if inspect.iscoroutinefunction(attribute.__func__) else "def"
            yield f"    @{kind} {prefix} {member}{own_signature(attribute.__func__)}"
        elif inspect.isfunction(attribute):
            prefix = "async def" if inspect.iscoroutinefunction(attribute) else "def"
            yield f"    {prefix} {member}{own_signature(attribute)}"


def sections() -> Iterator[tuple[str, list[str]]]:
    wanted = {module: tuple(importlib.import_module(module).__all__) for module in MODULES} | NAMES
    for module, names in wanted.items():
        loaded = importlib.import_module(module)
        yield module, [line for name in sorted(names) for line in described(name, getattr(loaded, name))]


def page() -> str:
    parts = [OPENING]
    for module, lines in sections():
        first = " ".join((importlib.import_module(module).__doc__ or "").strip().split("\n\n")[0].split())
        parts.append(f"\n## `{module}`\n{first}\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return "".join(parts)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            sys.stderr.write("docs/reference/python.md is out of date: run scripts/generate_api_reference.py\n")
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
