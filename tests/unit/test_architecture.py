"""The import rules of docs/ARCHITECTURE.md, read from the sources themselves.

Every import counts, wherever it stands: at the top, inside a function, or under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import pairbus

PACKAGE = Path(pairbus.__file__).parent
ARCHITECTURE = Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md"

IMPURE_LIBRARIES = frozenset({"asyncio", "socket", "threading", "time", "random", "azure", "pyspark"})

# Who may import a library that most of the package must not know.
RESERVED = {
    "azure": (
        "pairbus.__init__",
        "pairbus.aio",
        "pairbus.pairing",
        "pairbus.syphon",
        "pairbus.pipeline",
        "pairbus.cli",
        "pairbus.testing",
        "pairbus.demo",
        "pairbus.doctor",
        "pairbus.drill",
    ),
    "pyspark": ("pairbus.pipeline",),
    "proton": ("pairbus.amqp",),
    "cproton": ("pairbus.amqp",),
    "sqlite3": ("pairbus.embedded", "pairbus.spool"),
    "typer": ("pairbus.cli",),
}


def module_name(path: Path) -> str:
    return ".".join(["pairbus", *path.relative_to(PACKAGE).with_suffix("").parts])


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def resolve(name: str) -> str | None:
    """The source module that `import name` reads, None for what is not ours."""
    while name.startswith("pairbus"):
        for candidate in (name, f"{name}.__init__"):
            if candidate in SOURCES:
                return candidate
        name = name.rpartition(".")[0]
    return None


def imports_of_source(source: str, module: str) -> Iterator[str]:
    """Full dotted names that the source of `module` imports."""
    package = module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            anchor = node.module or ""
            if node.level:
                parts = package.split(".")
                stem = ".".join(parts[: len(parts) - node.level + 1])
                anchor = f"{stem}.{anchor}" if anchor else stem
            yield from (f"{anchor}.{alias.name}" for alias in node.names)


@cache
def imports_of(module: str) -> tuple[str, ...]:
    return tuple(imports_of_source(SOURCES[module].read_text(encoding="utf-8"), module))


def belongs(module: str, owners: tuple[str, ...]) -> bool:
    return any(module == owner or module.startswith(f"{owner}.") for owner in owners)


def library(name: str) -> str:
    return name.partition(".")[0]


def way_to_impure(module: str, seen: set[str]) -> list[str]:
    """The chain of imports from `module` to an impure library; empty when there is none."""
    seen.add(module)
    for name in imports_of(module):
        if library(name) in IMPURE_LIBRARIES:
            return [module, name]
        target = resolve(name)
        # Parent packages are not followed: `import pairbus.failover.states` is about the states.
        if target is None or target in seen:
            continue
        chain = way_to_impure(target, seen)
        if chain:
            return [module, *chain]
    return []


def claims_to_be_pure(module: str) -> bool:
    """Whether the first line of the module's docstring, or of a package's around it, says PURE."""
    while module != "pairbus":
        source = SOURCES.get(module) or SOURCES.get(f"{module}.__init__")
        docstring = source and ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
        if docstring and re.search(r"\bPURE\b", docstring.partition("\n")[0]):
            return True
        module = module.rpartition(".")[0]
    return False


PURE = [module for module in SOURCES if claims_to_be_pure(module)]


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_reach_nothing_impure(module: str) -> None:
    assert not way_to_impure(module, set()), "a PURE module must not reach a clock, a thread, a socket or the SDK"


def test_the_architecture_page_names_pure_modules_that_say_so() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \| PURE\.", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert named
    for name in named:
        module = f"pairbus.{name.removesuffix('.py').strip('/').replace('/', '.')}"
        assert resolve(module) in (module, f"{module}.__init__"), f"{name} does not exist"
        assert claims_to_be_pure(module), f"{name} must say PURE in the first line of its docstring"


@pytest.mark.parametrize(("walk", "most"), [("Send", 10), ("Home", 15), ("Answer", 12)])
def test_a_walk_is_short_and_its_files_exist(walk: str, most: int) -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8").partition(f"### {walk}\n")[2].partition("\n#")[0]
    files = re.findall(r"^\d+\. `([^`]+)`", text, re.MULTILINE)
    assert 1 < len(files) <= most
    assert len(set(files)) == len(files)
    assert [name for name in files if not (PACKAGE / name).is_file()] == []


def test_no_two_public_classes_share_a_name() -> None:
    """Except the sync twins, which are generated."""
    modules: dict[str, list[str]] = {}
    for module, path in SOURCES.items():
        if not module.startswith("pairbus.pairing._sync."):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    modules.setdefault(node.name, []).append(module)
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}


@pytest.mark.parametrize("reserved", sorted(RESERVED))
def test_reserved_libraries_stay_with_their_owners(reserved: str) -> None:
    strangers = sorted(
        module
        for module in SOURCES
        if not belongs(module, RESERVED[reserved]) and any(library(name) == reserved for name in imports_of(module))
    )
    assert not strangers, f"{reserved} is imported outside of {', '.join(RESERVED[reserved])}"


def test_nothing_in_the_product_imports_the_tests() -> None:
    guilty = [module for module in SOURCES if any(library(name) == "tests" for name in imports_of(module))]
    assert not guilty


def test_imports_are_seen_wherever_they_stand() -> None:
    source = """
import time as clock
from . import sibling
from ..amqp import types
def late():
    from azure.servicebus import ServiceBusClient
if TYPE_CHECKING:
    import pyspark.sql
"""
    assert set(imports_of_source(source, "pairbus.failover.states")) == {
        "time",
        "pairbus.failover.sibling",
        "pairbus.amqp.types",
        "azure.servicebus.ServiceBusClient",
        "pyspark.sql",
    }


def test_an_application_that_only_sends_loads_only_the_sdk_and_msgspec() -> None:
    heavy = {
        "proton",
        "aiohttp",
        "pyspark",
        "pyarrow",
        "pandas",
        "typer",
        "rich",
        "cryptography",
        "lark",
    }
    code = f"import sys, pairbus; print(*sorted({heavy!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


# Which extras a package may rely on, besides the base dependencies. Several tuples: each of them must be enough.
EXTRAS: dict[str, tuple[tuple[str, ...], ...]] = {
    "pairbus.amqp": (("syphon",), ("embedded",)),
    "pairbus.cli": (("cli", "identity"),),
    "pairbus.dashboard": (("dashboard",),),
    "pairbus.demo": (("embedded", "cli"),),
    "pairbus.doctor": (("cli",),),
    "pairbus.embedded": (("embedded",),),
    "pairbus.pairing": (("metrics",),),
    "pairbus.pipeline": (("spark", "java"),),
    "pairbus.syphon": (("syphon",),),
    "pyspark_pairbus": (("spark",),),
}
USERS_OWN = {"pairbus.testing": {"pytest"}}
"""Distributions that the user brings: pytest loads our plugin."""
DISTRIBUTIONS = {"cproton": "python-qpid-proton", "proton": "python-qpid-proton", "opentelemetry": "opentelemetry-api"}
PROJECT = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def distribution(name: str) -> str:
    """The distribution of an import, by the convention that most follow: azure.core is in azure-core."""
    top = library(name)
    return DISTRIBUTIONS.get(top) or "-".join(name.split(".")[: 2 if top == "azure" else 1]).replace("_", "-")


def declared(extras: tuple[str, ...]) -> set[str]:
    """The distributions of the base and of these extras, including the extras that they name."""
    names = set()
    for requirement in [*PROJECT["dependencies"], *(each for extra in extras for each in optional(extra))]:
        names.add(re.split(r"[^A-Za-z0-9-]", requirement)[0])
    return names


def optional(extra: str) -> Iterator[str]:
    for requirement in PROJECT["optional-dependencies"][extra]:
        nested = re.fullmatch(r"pairbus\[(.+)\]", requirement)
        if nested:
            for name in nested[1].split(","):
                yield from optional(name)
        else:
            yield requirement


def undeclared(package: str, imports: Iterable[str], extras: tuple[str, ...]) -> set[str]:
    ours = {"pairbus", "pyspark_pairbus"} | sys.stdlib_module_names
    needed = {distribution(name) for name in imports if library(name) not in ours}
    return needed - declared(extras) - USERS_OWN.get(package, set())


def test_every_imported_distribution_is_declared_for_its_extra() -> None:
    imports: dict[str, set[str]] = defaultdict(set)
    for module in SOURCES:
        imports[".".join(module.split(".")[:2])].update(imports_of(module))
    spark = PACKAGE.parent / "pyspark_pairbus" / "__init__.py"
    imports["pyspark_pairbus"].update(imports_of_source(spark.read_text(encoding="utf-8"), "pyspark_pairbus.__init__"))
    assert set(EXTRAS) <= set(imports), "EXTRAS names a package that does not exist"
    missing = {
        (package, extras): names
        for package in imports
        for extras in EXTRAS.get(package, ((),))
        if (names := undeclared(package, imports[package], extras))
    }
    assert not missing, "declare these distributions in pyproject.toml"


def test_an_undeclared_distribution_is_found() -> None:
    assert undeclared("pairbus.syphon", ["os.path", "pairbus.amqp", "aiohttp.web", "requests"], ("syphon",)) == {
        "requests"
    }
    assert undeclared("pairbus.ledger", ["azure.core.exceptions", "azure.identity"], ()) == {"azure-identity"}
