"""Exit codes: what each means, and, for each command that can answer no, what its no is."""

from __future__ import annotations

from typing import NamedTuple

DONE = 0
ANSWER_IS_NO = 1
CANNOT_RUN = 2
INTERRUPTED = 130


class Exits(NamedTuple):
    codes: dict[int, str]
    no: dict[str, str]


EXITS = Exits(
    codes={
        DONE: "done, and the answer is yes; for `serve` and `syphon`: stopped as asked (Ctrl-C, SIGTERM)",
        ANSWER_IS_NO: "it ran, and the answer is no, see below",
        CANNOT_RUN: "it could not run: a wrong option, a port in use, a server that is not there",
        INTERRUPTED: "interrupted with Ctrl-C; `drill` also by SIGTERM",
    },
    no={
        "deadletters resubmit": "a message that was named is not among the dead letters",
        "demo": "a message that was accepted was not delivered, or the ledger disagrees with what was counted",
        "doctor": "a check failed",
        "drill": "an expectation does not hold, a step did not come to its end, or something it made is left behind",
        "ledger report": "a message is lost",
    },
)
