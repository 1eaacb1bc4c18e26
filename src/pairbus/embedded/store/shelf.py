"""Payloads at hand: those not yet on disk, and the most recent of the others up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

DEFAULT_CACHE_BYTES = 32 * 1024 * 1024


class PayloadShelf:
    """Invariant: a payload that is not yet on disk is never let go."""

    def __init__(self, fetch: Callable[[int], bytes], cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._fetch = fetch
        self._cache_bytes = cache_bytes
        self._unwritten: dict[int, bytes] = {}
        self._recent: OrderedDict[int, bytes] = OrderedDict()
        self._recent_bytes = 0

    def put(self, payload_id: int, raw: bytes) -> None:
        self._unwritten[payload_id] = raw

    def get(self, payload_id: int) -> bytes:
        raw = self._unwritten.get(payload_id)
        if raw is None:
            raw = self._recent.get(payload_id)
        if raw is None:
            raw = self._fetch(payload_id)
        return raw

    def written(self, payload_ids: Iterable[int]) -> None:
        """These are on disk now: they may be kept as recent, or let go."""
        for payload_id in payload_ids:
            raw = self._unwritten.pop(payload_id, None)
            if raw is not None and len(raw) <= self._cache_bytes:
                self._recent[payload_id] = raw
                self._recent_bytes += len(raw)
        while self._recent_bytes > self._cache_bytes:
            _, raw = self._recent.popitem(last=False)
            self._recent_bytes -= len(raw)

    def dropped(self, payload_ids: Iterable[int]) -> None:
        for payload_id in payload_ids:
            raw = self._recent.pop(payload_id, None)
            if raw is not None:
                self._recent_bytes -= len(raw)
