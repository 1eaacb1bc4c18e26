"""The representative part of the official SDK's live tests passes, and the lists about the suite are exact."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from livesuite.expectations import Expectations  # noqa: E402 - the path above comes first
from livesuite.fetch import Pin, fetch_suite  # noqa: E402
from livesuite.run import Outcome, collect_suite, run_suite  # noqa: E402


def test_the_suite_is_the_one_of_the_locked_sdk() -> None:
    pin = Pin.read()
    lock = (ROOT / "requirements" / "lock.txt").read_text()
    assert f"azure-servicebus=={pin.version} " in lock
    assert pin.sha256 in lock


def test_every_listed_test_exists_and_is_listed_once() -> None:
    expectations = Expectations.read()
    existing = set(collect_suite(fetch_suite()))
    existing |= {node.partition("[")[0] for node in existing}
    existing |= {node.partition("::")[0] for node in existing}
    for listed in (tuple(expectations.exceptions), expectations.slow, expectations.representative):
        assert set(listed) <= existing
        assert len(set(listed)) == len(listed)
    assert not set(expectations.exceptions) & set(expectations.representative)


@pytest.mark.parametrize(
    ("body", "outcome"), [("assert False", Outcome.EXCEPTED), ("pass", Outcome.FAILED)], ids=["fails", "would pass"]
)
def test_a_listed_exception_must_fail(tmp_path: Path, body: str, outcome: Outcome) -> None:
    listed = "unittests/test_pyamqp_decode.py::test_pyamqp_copies_are_byte_identical"
    assert listed in Expectations.read().exceptions
    file, _, name = listed.partition("::")
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(f"def {name}():\n    {body}\n\ndef test_other():\n    pass\n")
    results = run_suite(tmp_path, [], workers=0, junit_file=tmp_path / "results.xml")
    assert {result.name: result.outcome for result in results} == {name: outcome, "test_other": Outcome.PASSED}


@pytest.mark.timeout(1800)
def test_the_representative_part_passes() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "conformance.py"), "--representative", "--workers", "4"]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
