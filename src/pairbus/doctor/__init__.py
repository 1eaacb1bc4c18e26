"""What could keep a pairing from working, looked into one by one: this machine, then each namespace.

`examine` yields a `Finding` for each check as soon as it is known. Looking changes nothing: no message is sent or
received, no queue is made. A check whose ground is missing is skipped and says what it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.doctor.findings import Finding, Status

if TYPE_CHECKING:
    from pairbus.doctor.examination import examine as examine

__all__ = ["Finding", "Status", "examine"]


def __getattr__(name: str) -> object:
    # Loaded when asked for: a finding is a value and needs no SDK.
    if name != "examine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pairbus.doctor.examination import examine

    return examine
