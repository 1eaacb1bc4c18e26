"""Faults on purpose, so that users can rehearse: what a namespace or one of its entities does wrong, and until when.

Modes
- refuse            connections of the whole namespace are cut as they come; for an entity, its links are refused
- drop              the connection is cut when a message arrives, before it is stored
- hang              links open, then nothing is answered: messages are neither stored nor delivered, requests not
                    replied to
- error             everything is refused with `condition`
- throttle          above `rate` messages a second, sends are refused as server-busy
- slow              everything is answered `delay_ms` later
- accept-then-fail  messages are stored, and never answered

Rules
- An entity's own fault goes before the namespace's. A fault covers an entity with its sub-queues, subscriptions and
  management, not other entities whose names begin the same.
- One fault per entity, and one for the namespace: setting another replaces it.
- A fault ends when it is cleared, replaced, or its time is over; those who wait because of it are then told.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from pairbus.embedded.clock import Alarm, Clock, SystemClock
from pairbus.embedded.errors import InvalidError

FaultMode = Literal["refuse", "drop", "hang", "error", "throttle", "slow", "accept-then-fail"]
MODES: tuple[str, ...] = get_args(FaultMode)
SERVER_BUSY = "com.microsoft:server-busy"
MAX_FAULTS = 1_000


@dataclass(frozen=True, slots=True)
class Fault:
    mode: FaultMode
    entity: str | None = None
    condition: str | None = None
    rate: float | None = None
    delay_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidError(f"Fault mode {self.mode!r} is unknown; expected one of {', '.join(MODES)}.")
        if self.entity is not None and not self.entity.strip("/"):
            raise InvalidError("The entity of a fault is empty; name one, or leave it out for the whole namespace.")
        if (self.mode == "error") != (self.condition is not None):
            raise InvalidError("A condition (for example amqp:internal-error) goes with mode error, and only with it.")
        if self.condition is not None and (not self.condition.isascii() or not self.condition):
            raise InvalidError(f"Condition {self.condition!r} is not an AMQP symbol: it must be ASCII text.")
        if (self.mode == "throttle") != (self.rate is not None):
            raise InvalidError("A rate (messages a second) goes with mode throttle, and only with it.")
        if self.rate is not None and not self.rate >= 0:
            raise InvalidError(f"Rate {self.rate!r} must be 0 or more messages a second.")
        if (self.mode == "slow") != (self.delay_ms is not None):
            raise InvalidError("A delay (delay_ms) goes with mode slow, and only with it.")
        if self.delay_ms is not None and not 0 <= self.delay_ms <= 3_600_000:
            raise InvalidError(f"Delay {self.delay_ms!r} must be 0 to 3600000 milliseconds.")

    def covers(self, path: str) -> bool:
        """Whether this fault is about the entity with this path, or about something that belongs to it."""
        if self.entity is None:
            return True
        own, asked = self.entity.strip("/").lower(), path.strip("/").lower()
        if not asked.startswith(own):
            return False
        rest = asked[len(own) :]
        return not rest or rest.startswith(("/$", "/subscriptions/"))

    def to_plain(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


class _Bucket:
    """Lets `rate` a second through, evenly, with a burst of one second's worth."""

    __slots__ = ("_at_ms", "_left", "_rate")

    def __init__(self, rate: float, now_ms: int) -> None:
        self._rate = rate
        self._left = max(rate, 1.0) if rate else 0.0
        self._at_ms = now_ms

    def take(self, now_ms: int) -> bool:
        self._left = min(self._left + (now_ms - self._at_ms) * self._rate / 1000, max(self._rate, 1.0))
        self._at_ms = now_ms
        if self._left < 1 or not self._rate:
            return False
        self._left -= 1
        return True


class FaultSwitchboard:
    """The faults of one namespace. Lives on the broker's loop, like everything that asks it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._faults: dict[str | None, Fault] = {}
        self._buckets: dict[str | None, _Bucket] = {}
        self._alarms: dict[str | None, Alarm] = {}
        self._listeners: set[Callable[[], None]] = set()

    def set(self, fault: Fault) -> None:
        """Switch a fault on, in place of the one its entity had."""
        key = _key(fault.entity)
        if key not in self._faults and len(self._faults) >= MAX_FAULTS:
            raise InvalidError(f"There are {MAX_FAULTS} faults already; clear some.")
        self._drop(key)
        now_ms = self._clock.now_ms()
        if fault.until_ms is None or fault.until_ms > now_ms:
            self._faults[key] = fault
            if fault.rate is not None:
                self._buckets[key] = _Bucket(fault.rate, now_ms)
            if fault.until_ms is not None:
                self._wake_at(key, fault.until_ms)
        self._tell()

    def clear(self, entity: str | None = None) -> None:
        """End the fault of an entity; without one, end all of them."""
        for key in list(self._faults) if entity is None else [_key(entity)]:
            self._drop(key)
        self._tell()

    def list(self) -> builtins.list[Fault]:
        now_ms = self._clock.now_ms()
        return [fault for fault in self._faults.values() if fault.until_ms is None or fault.until_ms > now_ms]

    def fault_of(self, path: str | None) -> Fault | None:
        """The fault that holds for this entity now; for None, the namespace's own."""
        if not self._faults:
            return None
        found = None
        for key, fault in self._faults.items():
            if key is None:
                found = found or fault
            elif path is not None and fault.covers(path):
                found = fault
                break
        if found is not None and found.until_ms is not None and found.until_ms <= self._clock.now_ms():
            return None
        return found

    def lets_through(self, fault: Fault) -> bool:
        """Whether a throttle lets one more message through now."""
        bucket = self._buckets.get(_key(fault.entity))
        return bucket is None or bucket.take(self._clock.now_ms())

    def listen(self, listener: Callable[[], None]) -> None:
        """Be told whenever faults change; until `unlisten`."""
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)

    def _wake_at(self, key: str | None, until_ms: int) -> None:
        def wake() -> None:
            if self._clock.now_ms() < until_ms:
                self._wake_at(key, until_ms)
                return
            self._drop(key)
            self._tell()

        self._alarms[key] = self._clock.call_at(until_ms, wake)

    def _drop(self, key: str | None) -> None:
        self._faults.pop(key, None)
        self._buckets.pop(key, None)
        alarm = self._alarms.pop(key, None)
        if alarm is not None:
            alarm.cancel()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()


def _key(entity: str | None) -> str | None:
    return None if entity is None else entity.strip("/").lower()
