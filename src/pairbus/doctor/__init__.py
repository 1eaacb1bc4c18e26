"""Checks what could keep a pairing from working: this machine first, then each namespace.

`examination.examine` yields a `Finding` for each check as soon as it is known. It changes nothing: it sends and
receives no message and creates no queue. A check that depends on a failed one is skipped, and says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and what to do about it."""

    check: str
    status: Status
    found: str
    remedy: str | None = None
    """None if nothing is to be done, or if `found` says it."""

    def __str__(self) -> str:
        return self.found if self.remedy is None else f"{self.found}: {self.remedy}"


def ok(check: str, found: str) -> Finding:
    return Finding(check, Status.OK, found)


def warning(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, Status.WARNING, found, remedy)


def failed(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, Status.FAILED, found, remedy)


def skipped(check: str, found: str, remedy: str | None = None) -> Finding:
    return Finding(check, Status.SKIPPED, found, remedy)
