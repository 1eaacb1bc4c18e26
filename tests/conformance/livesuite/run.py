"""Run the suite in pytest processes of its own and read back what happened, test by test."""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from livesuite.fetch import HERE


class Outcome(StrEnum):
    """How a test of the suite ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    EXCEPTED = "excepted"


@dataclass(frozen=True, slots=True)
class Result:
    """One test of the suite: ``file`` is relative to the suite, ``detail`` says why it did not pass."""

    file: str
    name: str
    outcome: Outcome
    seconds: float
    detail: str = ""

    @property
    def is_aio(self) -> bool:
        return "async" in self.file or "async" in self.name


class SuiteBrokenError(RuntimeError):
    """pytest could not run the suite at all."""


def run_suite(suite: Path, selection: Sequence[str], *, workers: int, junit_file: Path) -> list[Result]:
    """Run the named tests (node ids relative to the suite; all if empty) in ``workers`` processes."""
    command = [*_pytest(suite), f"--junitxml={junit_file}", "-n", str(workers), "--maxschedchunk=1", "-q"]
    command += [str(suite / node) for node in selection] or [str(suite)]
    # Whatever the servers and certificates of the run leave behind goes with this folder.
    with tempfile.TemporaryDirectory(prefix="pairbus-conformance-") as folder:
        environment = _environment() | {"TMPDIR": folder}
        outcome = subprocess.run(command, env=environment, check=False)
    if outcome.returncode not in (0, 1):
        raise SuiteBrokenError(f"pytest could not run the suite and ended with {outcome.returncode}; see above.")
    return read_results(junit_file)


def collect_suite(suite: Path) -> list[str]:
    """The node ids of all tests in the suite, relative to it."""
    command = [*_pytest(suite), "--collect-only", "-q", str(suite)]
    outcome = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    if outcome.returncode:
        raise SuiteBrokenError(f"The suite could not be collected: {outcome.stdout}{outcome.stderr}")
    return [line for line in outcome.stdout.splitlines() if "::" in line]


def read_results(junit_file: Path) -> list[Result]:
    """The results in a JUnit file."""
    return [_result(case) for case in ET.parse(junit_file).iter("testcase")]


def _pytest(suite: Path) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-c", str(HERE / "suite.ini"), "-p", "livesuite.plugin"]
    return [*command, "--rootdir", str(suite)]


def _environment() -> dict[str, str]:
    """The surrounding run's settings of pytest must not reach the suite's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return kept | {"PYTHONPATH": os.pathsep.join([str(HERE), kept.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


def _result(case: ET.Element) -> Result:
    outcome, detail = Outcome.PASSED, ""
    for trouble in case:
        if trouble.tag in ("failure", "error"):
            outcome, detail = Outcome.FAILED, trouble.get("message", "") + "\n" + (trouble.text or "")
        elif trouble.tag == "skipped":
            expected = trouble.get("type") == "pytest.xfail"
            outcome = Outcome.EXCEPTED if expected else Outcome.SKIPPED
            detail = trouble.get("message", "")
    # The file attribute names where a decorated test's wrapper stands; the class name is that of the test itself.
    *folders, last = case.get("classname", "").split(".")
    name = case.get("name", "")
    if folders and not last.startswith("test_"):
        name = f"{last}::{name}"
        *folders, last = folders
    file = "/".join([*folders, last]) + ".py"
    return Result(file, name, outcome, float(case.get("time", "0")), detail)
