"""PURE. Where a stream is, as it stands in a checkpoint.

    {"v": 1, "entities": {"orders": {"next": 1201, "until": 1700000000000, "parts": ["1001-1100", "1101-1200"]}}}

Rules:
- `parts` are the messages of this batch, one set of sequence numbers for each task: a repeated batch reads exactly
  these messages, in the same partitions, whatever else has come or gone.
- Numbers below `next` are never read again. `until` is the latest enqueued time that was read: a message below `next`
  that is younger belongs to another life of the entity and is never removed.
- An offset without parts has nothing that is still to be removed. So the offset after the last batch differs from the
  last batch's own, and Spark runs one more, empty, batch, whose beginning removes what the last one read.
- `left` are messages of earlier batches that another receiver, perhaps a process of ours that died, still held when
  they were to be removed.
- `missing` counts messages that somebody else took between our reading and our removing them; what is gone when a
  restart removes a batch again is not counted, for the life before may have removed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pairbus.pipeline.servicebus.ranges import Runs

VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream is in one entity."""

    next: int = 0
    until_ms: int = 0
    parts: tuple[Runs, ...] = ()
    left: Runs = Runs()  # noqa: RUF009 - frozen
    missing: int = 0

    @property
    def runs(self) -> Runs:
        """All messages of this batch."""
        return Runs().union(self.parts)

    def to_json(self) -> dict[str, Any]:
        text: dict[str, Any] = {"next": self.next, "until": self.until_ms}
        if self.parts:
            text["parts"] = [str(part) for part in self.parts]
        if self.left.pairs:
            text["left"] = str(self.left)
        if self.missing:
            text["missing"] = self.missing
        return text

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Position:
        parts = tuple(Runs.parse(part) for part in text.get("parts", ()))
        left, missing = Runs.parse(text.get("left", "")), int(text.get("missing", 0))
        return cls(int(text["next"]), int(text["until"]), parts, left, missing)


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a stream is in all its entities."""

    entities: Mapping[str, Position] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"v": VERSION, "entities": {name: one.to_json() for name, one in sorted(self.entities.items())}}

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Offset:
        version = text.get("v")
        if version != VERSION:
            raise ValueError(
                f"The checkpoint's offset has version {version!r}, this connector writes and reads version {VERSION}: "
                "use the connector that wrote it, or start with a new checkpoint."
            )
        return cls({name: Position.from_json(one) for name, one in text["entities"].items()})
