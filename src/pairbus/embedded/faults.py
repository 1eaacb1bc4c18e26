"""Faults that users switch on to rehearse outages of a namespace or of one of its entities.

Modes
- refuse            new connections to the namespace are cut; for an entity, its links are refused
- drop              the connection is cut when a message arrives, before the message is stored
- hang              links open, but nothing is stored, delivered or answered
- error             everything is refused with `condition`
- throttle          sends above `rate` messages per second are refused as server-busy
- slow              everything is answered `delay_ms` later
- accept-then-fail  messages are stored, but never answered
- idle-detach       the open links on which clients send are detached, as if they had been idle; new links work

Rules
- An entity's own fault takes precedence over the namespace's. A fault covers an entity with its sub-queues,
  subscriptions and management, but not other entities whose names start the same.
- An entity has at most one fault, and so has the namespace: a new one replaces it.
- A fault ends when it is cleared, is replaced or expires. Its listeners are called then.

`FaultSwitchboard` holds the faults of a server. `RemoteSwitchboard` controls them from another process or thread,
through the server's control endpoint on loopback. That needs a connection string with the Manage right.
"""

from __future__ import annotations

import builtins
import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args
from urllib.parse import quote, urlsplit

from pairbus.embedded.clock import Alarm, Clock, SystemClock
from pairbus.embedded.errors import InvalidError
from pairbus.embedded.security import sign
from pairbus.errors import UsageError

FaultMode = Literal["refuse", "drop", "hang", "error", "throttle", "slow", "accept-then-fail", "idle-detach"]
MODES: tuple[str, ...] = get_args(FaultMode)
SERVER_BUSY = "com.microsoft:server-busy"
MAX_FAULTS = 1_000
FAULTS_PATH = "/$pairbus/faults"
TIMEOUT_SECONDS = 10.0
TOKEN_SECONDS = 600


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
            raise InvalidError(f"Fault mode {self.mode!r} is unknown. Use one of {', '.join(MODES)}.")
        if self.entity is not None and not self.entity.strip("/"):
            raise InvalidError("The fault names an empty entity. Name one, or leave it out for the whole namespace.")
        for mode, value, needed in (
            ("error", self.condition, "a condition, for example amqp:internal-error"),
            ("throttle", self.rate, "a rate (messages per second)"),
            ("slow", self.delay_ms, "a delay (delay_ms)"),
        ):
            if (self.mode == mode) != (value is not None):
                raise InvalidError(f"Mode {mode}, and no other, needs {needed}.")
        if self.condition is not None and (not self.condition.isascii() or not self.condition):
            raise InvalidError(f"Condition {self.condition!r} is not an AMQP symbol. Use ASCII text.")
        if self.rate is not None and not self.rate >= 0:
            raise InvalidError(f"The rate is {self.rate!r} messages per second. It must be at least 0.")
        if self.delay_ms is not None and not 0 <= self.delay_ms <= 3_600_000:
            raise InvalidError(f"The delay is {self.delay_ms!r} ms. It must be between 0 and 3600000.")

    def covers(self, path: str) -> bool:
        """Whether the fault covers the entity or sub-entity with this path."""
        if self.entity is None:
            return True
        own, other = self.entity.strip("/").lower(), path.strip("/").lower()
        if not other.startswith(own):
            return False
        rest = other[len(own) :]
        return not rest or rest.startswith(("/$", "/subscriptions/"))

    def to_plain(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


class _Bucket:
    """A token bucket: `rate` messages per second, with bursts of up to one second's worth."""

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
    """The faults of one namespace. Used only on the broker's loop."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._faults: dict[str | None, Fault] = {}
        self._buckets: dict[str | None, _Bucket] = {}
        self._alarms: dict[str | None, Alarm] = {}
        self._listeners: set[Callable[[], None]] = set()

    def set(self, fault: Fault) -> None:
        """Switch a fault on. It replaces the entity's previous fault."""
        key = _key(fault.entity)
        if key not in self._faults and len(self._faults) >= MAX_FAULTS:
            raise InvalidError(f"The limit of {MAX_FAULTS} faults is reached. Clear some first.")
        self._drop(key)
        now_ms = self._clock.now_ms()
        if fault.until_ms is None or fault.until_ms > now_ms:
            self._faults[key] = fault
            if fault.rate is not None:
                self._buckets[key] = _Bucket(fault.rate, now_ms)
            if fault.until_ms is not None:
                self._wake_at(key, fault.until_ms)
        self._notify()

    def clear(self, entity: str | None = None) -> None:
        """Clear the fault of an entity, or all faults."""
        for key in list(self._faults) if entity is None else [_key(entity)]:
            self._drop(key)
        self._notify()

    def list(self) -> builtins.list[Fault]:
        now_ms = self._clock.now_ms()
        return [fault for fault in self._faults.values() if fault.until_ms is None or fault.until_ms > now_ms]

    def fault_of(self, path: str | None) -> Fault | None:
        """The fault that applies to this entity now. For None, the namespace's own."""
        if not self._faults:
            return None
        applies = self._faults.get(None)
        if path is not None:
            own = (fault for fault in self._faults.values() if fault.entity is not None and fault.covers(path))
            applies = next(own, applies)
        if applies is not None and applies.until_ms is not None and applies.until_ms <= self._clock.now_ms():
            return None
        return applies

    def lets_through(self, fault: Fault) -> bool:
        """Whether a throttle admits another message now."""
        bucket = self._buckets.get(_key(fault.entity))
        return bucket is None or bucket.take(self._clock.now_ms())

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever faults change, until `unlisten`."""
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)

    def _wake_at(self, key: str | None, until_ms: int) -> None:
        def wake() -> None:
            if self._clock.now_ms() < until_ms:
                self._wake_at(key, until_ms)
                return
            self._drop(key)
            self._notify()

        self._alarms[key] = self._clock.call_at(until_ms, wake)

    def _drop(self, key: str | None) -> None:
        self._faults.pop(key, None)
        self._buckets.pop(key, None)
        alarm = self._alarms.pop(key, None)
        if alarm is not None:
            alarm.cancel()

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()


def _key(entity: str | None) -> str | None:
    return None if entity is None else entity.strip("/").lower()


# --- from another process ------------------------------------------------------------------------------


class FaultControlError(UsageError):
    """The control endpoint is not reachable or refused the request. The message is one sentence."""


class RemoteSwitchboard:
    """Sets, clears and lists the faults of the server that `connection_string` names."""

    def __init__(self, connection_string: str) -> None:
        parts = dict(part.partition("=")[::2] for part in connection_string.strip().split(";") if part)
        missing = [key for key in ("Endpoint", "SharedAccessKeyName", "SharedAccessKey") if not parts.get(key)]
        endpoint = urlsplit(parts.get("Endpoint", ""))
        if missing or endpoint.hostname is None:
            raise FaultControlError(
                f"The connection string lacks {' and '.join(missing) or 'a host in Endpoint'}. "
                "Use the one that 'pairbus serve' prints."
            )
        self._host = endpoint.hostname
        self._port = endpoint.port or 5672
        self._key_name = parts["SharedAccessKeyName"]
        self._key = parts["SharedAccessKey"]

    def __repr__(self) -> str:
        return f"RemoteSwitchboard({self._host}:{self._port})"

    def set(
        self,
        mode: str,
        *,
        entity: str | None = None,
        condition: str | None = None,
        rate: float | None = None,
        delay_ms: int | None = None,
        for_ms: int | None = None,
    ) -> None:
        fault = {
            "mode": mode,
            "entity": entity,
            "condition": condition,
            "rate": rate,
            "delay_ms": delay_ms,
            "for_ms": for_ms,
        }
        self._request("PUT", FAULTS_PATH, {key: value for key, value in fault.items() if value is not None})

    def clear(self, entity: str | None = None) -> None:
        """Clear the fault of `entity`, or all faults."""
        self._request("DELETE", FAULTS_PATH if entity is None else f"{FAULTS_PATH}?entity={quote(entity, safe='')}")

    def list(self) -> list[dict[str, Any]]:
        faults = self._request("GET", FAULTS_PATH)["faults"]
        return list(faults)

    def _request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        token = sign(f"http://{self._host}:{self._port}/", self._key_name, self._key, int(time.time()) + TOKEN_SECONDS)
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            content = None if body is None else json.dumps(body)
            headers = {"Authorization": token, "Content-Type": "application/json"}
            connection.request(method, path, body=content, headers=headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise FaultControlError(
                f"No pairbus server answers on {self._host}:{self._port} ({error}). Start it with 'pairbus serve'."
            ) from error
        finally:
            connection.close()
        if answer.status == http.client.UNAUTHORIZED:
            raise FaultControlError(
                f"The server on {self._host}:{self._port} refuses the key '{self._key_name}'. "
                "Use a key with the Manage right."
            )
        if answer.status >= http.client.BAD_REQUEST:
            raise FaultControlError(text.strip() or f"The server answered {answer.status} {answer.reason}.")
        return dict(json.loads(text)) if text else {}
