"""Fuzz everything that reads bytes of others: `make fuzz`, or `make fuzz ARGS='--seconds 3600 sql'`.

Prints the figures of each target. A new input that breaks a bound is printed and ends the run with an error: fix the
cause, and add the input to `tests/corpus`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from tests.support.fuzzing import TARGETS, attack_server, fuzz


def until(deadline: float) -> Callable[[int], bool]:
    return lambda inputs: time.monotonic() >= deadline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join([*TARGETS, 'server'])}; default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    targets = given.targets or [*TARGETS, "server"]
    print(f"seed {given.seed}")
    for target in targets:
        deadline = time.monotonic() + given.seconds / len(targets)
        if target == "server":
            print(
                f"server: {attack_server(given.seed, until(deadline)):,} connections, the client was served throughout"
            )
        else:
            print(f"{target}: {fuzz(target, given.seed, until(deadline))}", flush=True)


if __name__ == "__main__":
    main()
