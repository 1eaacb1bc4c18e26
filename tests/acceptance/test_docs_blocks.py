"""Every block of code in the README and the documentation is run, or parsed by what would run it.

- `python`: executed, page by page in the order of the page, in an empty folder, on a pair of embedded namespaces
  (`pair`). What a reader would have at hand stands in a comment before the block (`<!-- setup`), what must hold
  afterwards in one behind it (`<!-- check`). Pages that name `spark` share a process with a session.
- `console`: `pairbus fault` is executed; every other `pairbus` command is parsed by the command line itself; `make`
  must name a target, and `pip install` extras that exist.
- `toml` and `json`: parsed. What they mean is tested beside what reads them.
- No language, or `text`: not code. Nothing in it may look like a command.

A block that cannot be run says so in a comment before it (`<!-- not run: why -->`); NOT_RUN is the list of all of them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from pairbus.cli.__main__ import command_tree, run
from pairbus.testing import EmbeddedPair, wait_until

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NOT_CODE = ("", "text", "mermaid")

NOT_RUN = {
    ("docs/moving-from-dotnet.md", "csharp", "the other language"),
    (
        "docs/spark.md",
        "sh",
        "for a cluster; tests/integration/pipeline/test_spark_syphon_cluster.py does the same on one",
    ),
}
# Pages that are done as a whole, as a reader would, by a test of their own.
DONE_ELSEWHERE = {"docs/tutorial.md": "tests/acceptance/test_pairing_tutorial.py"}

PART = re.compile(
    r"^<!-- (?P<hidden>setup|check)\n(?P<code>.*?)^-->$"
    r"|^<!-- not run: (?P<reason>.+?) -->$"
    r"|^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    not_run: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> Iterator[Block]:
    content, page = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
    reason: str | None = None
    for found in PART.finditer(content):
        line = content.count("\n", 0, found.start()) + 2
        if found["reason"] is not None:
            reason = found["reason"]
        elif found["hidden"] is not None:
            yield Block(page, line, "python", found["code"])
        else:
            indent = found["indent"]
            text = "".join(one.removeprefix(indent) for one in found["text"].splitlines(keepends=True))
            yield Block(page, line, found["language"], text, reason)
            reason = None


BLOCKS = {str(path.relative_to(ROOT)): list(blocks(path)) for path in PAGES}
ALL = [block for page in BLOCKS.values() for block in page]


def to_run(page: str) -> list[Block]:
    """What is executed or parsed of a page."""
    if page in DONE_ELSEWHERE:
        return []
    return [block for block in BLOCKS[page] if block.language in ("python", "console") and block.not_run is None]


def names_spark(page: str) -> bool:
    return any(re.search(r"\bspark\b[,.)]", block.text) for block in to_run(page) if block.language == "python")


RUN = [page for page in BLOCKS if to_run(page)]


def test_what_is_not_run_is_a_short_list() -> None:
    assert {(block.page, block.language, block.not_run) for block in ALL if block.not_run is not None} == NOT_RUN
    for elsewhere in DONE_ELSEWHERE.values():
        assert (ROOT / elsewhere).exists()


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    kinds = {"python", "console", "toml", "json", *NOT_CODE}
    assert [block.place for block in ALL if block.not_run is None and block.language not in kinds] == []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The servers that readers of the pages have started, which `pairbus fault` finds by their names."""
    folder = tmp_path_factory.mktemp("served")
    serve = [sys.executable, "-m", "pairbus.cli", "serve", "contoso", "contoso-standby", "--port", "0"]
    ready = folder / "ready.json"
    with subprocess.Popen(
        [*serve, "--data", str(folder / "data"), "--ready-file", str(ready)], stdout=subprocess.DEVNULL
    ) as server:
        try:
            wait_until(lambda: ready.exists() or server.poll() is not None, what="the servers")
            yield
        finally:
            server.terminate()


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_are_right(page: str) -> None:
    for block in to_run(page):
        for command in commands(block) if block.language == "console" else ():
            check_command(command, block)


@pytest.mark.parametrize("page", [page for page in RUN if not names_spark(page)])
def test_the_programs_of_a_page_run(
    page: str, pairbus_pair: EmbeddedPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "__page__", "pair": pairbus_pair}
    for block in to_run(page):
        if block.language == "python":
            exec(compile(at_its_line(block), ROOT / page, "exec"), names)


def at_its_line(block: Block) -> str:
    """With blank lines before it, so that a failure names the line of the page."""
    return "\n" * (block.line - 1) + block.text


WITH_SPARK = """
import json, os
from pathlib import Path
from pairbus.pipeline.session import local_session
from pairbus.pipeline.small_tables import SMALL_TABLES
from pairbus.testing import embedded_pair

with embedded_pair(Path("data").absolute()) as pair:
    # Before Spark starts: its workers inherit them.
    os.environ["CONTOSO"], os.environ["STANDBY"] = pair.primary.connection_string, pair.secondary.connection_string
    spark = local_session("documentation", cores=2, settings=SMALL_TABLES)
    for page, programs in json.loads(Path("pages.json").read_text()).items():
        folder = Path("pages", page).absolute()
        folder.mkdir(parents=True)
        before = os.getcwd()
        os.chdir(folder)
        names = {"__name__": "__page__", "pair": pair, "spark": spark}
        for program in programs:
            exec(compile(program, page, "exec"), names)
        os.chdir(before)
        for namespace in (pair.primary, pair.secondary):
            with namespace.admin() as admin:
                for queue in admin.list_queues():
                    admin.delete_queue(queue.name)
        print("done:", page, flush=True)
    spark.stop()
"""


def test_the_programs_with_spark_run(tmp_path: Path) -> None:
    pages = {
        page: [at_its_line(block) for block in to_run(page) if block.language == "python"]
        for page in RUN
        if names_spark(page)
    }
    (tmp_path / "pages.json").write_text(json.dumps(pages))
    command = [sys.executable, "-c", WITH_SPARK]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # hidden set-up uses tests.support
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"done: (\S+)", done.stdout) == list(pages)


def commands(block: Block) -> list[list[str]]:
    joined = block.text.replace("\\\n", " ")
    found = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    assert found, f"{block.place}: a console block without a command"
    return [shlex.split(command) for command in found]


def check_command(command: list[str], block: Block) -> None:
    match command:
        case ["pairbus", "fault", *arguments]:
            assert run(["fault", *arguments]) == 0, f"{block.place}: {command}"
        case ["pairbus", *arguments]:
            parse(arguments, block)
        case ["make", target]:
            assert target in targets(), f"{block.place}: make {target}"
        case [".", activate]:
            assert activate == ".venv/bin/activate", f"{block.place}: {command}"
        case ["pip", "install", requirement]:
            check_requirement(requirement, block)
        case _:
            pytest.fail(f"{block.place}: nobody knows how to check {shlex.join(command)!r}")


def parse(arguments: list[str], block: Block) -> None:
    """As the command line would, up to the moment when it would begin."""
    command, name, context = command_tree(), "pairbus", None
    try:
        while True:
            context = command.make_context(name, list(arguments), parent=context)
            if not hasattr(command, "resolve_command"):
                return
            name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
    except typer.Exit:
        return  # --version, --help
    except typer.TyperException as error:
        pytest.fail(f"{block.place}: {error.format_message()}")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_requirement(requirement: str, block: Block) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.fullmatch(r"(\w+|\.)(?:\[([\w,]+)\])?", requirement)
    assert found is not None and found[1] in (project["name"], "."), f"{block.place}: {requirement}"
    assert set((found[2] or "all").split(",")) <= set(project["optional-dependencies"]), f"{block.place}: {requirement}"


@pytest.mark.parametrize("block", [one for one in ALL if one.language == "toml"], ids=lambda block: block.place)
def test_toml_can_be_read(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", [one for one in ALL if one.language == "json"], ids=lambda block: block.place)
def test_json_can_be_read(block: Block) -> None:
    for line in block.text.splitlines() if re.search(r"\}\n\{", block.text) else [block.text]:
        assert json.loads(line)


def test_what_is_no_code_does_not_look_like_it() -> None:
    for block in ALL:
        if block.language in NOT_CODE:
            assert not re.search(r"^\s*(\$ |import |from \w+ import )", block.text, re.MULTILINE), block.place
