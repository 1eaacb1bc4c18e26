"""What a check found."""

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
    """One check: what was found and, unless all is well or the sentence says it already, what to do."""

    check: str
    status: Status
    found: str
    remedy: str | None = None

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
