"""Run the official SDK's live tests against embedded namespaces: `make conformance-full`.

A run of the whole suite writes the table of features and results to `docs/conformance.md`. Exit code 0 when every
test passed or is a listed exception that failed; 1 otherwise.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "conformance"))

from livesuite.expectations import Expectations  # noqa: E402 - the path above comes first
from livesuite.fetch import fetch_suite  # noqa: E402
from livesuite.report import summary, write_report  # noqa: E402
from livesuite.run import Outcome, run_suite  # noqa: E402

# Most of the suite's time is spent sleeping, so there are many more processes than cores.
WORKERS = 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", help="node ids of the suite, e.g. test_queues.py; none: all of them")
    parser.add_argument("--representative", action="store_true", help="the short run that `make test` does")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--write", type=Path, help="write the table to this file, also after a part of the suite")
    parser.add_argument("--junit", type=Path, help="keep the JUnit file")
    options = parser.parse_args()

    selection = list(Expectations.read().representative) if options.representative else options.tests
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        junit_file = options.junit or Path(folder) / "results.xml"
        junit_file = junit_file.absolute()
        results = run_suite(fetch_suite(), selection, workers=options.workers, junit_file=junit_file)
    table = options.write or (None if selection else ROOT / "docs" / "conformance.md")
    if table is not None:
        write_report(results, table)
    print(f"conformance: {summary(results)} in {time.monotonic() - started:.0f} s")
    return int(not results or any(result.outcome is Outcome.FAILED for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
