"""PURE. What the planner tells the pump to do."""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.syphon.deliveries import DeadLetter, Delivery, Item


@dataclass(frozen=True, slots=True)
class Send:
    """Send these messages to the destination, as one."""

    destination: str
    items: tuple[Item, ...]
    raws: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    deliveries: tuple[Delivery, ...]
    carried: tuple[Item, ...] = ()
    """The messages these deliveries brought home."""
    part_of: str | None = None
    """These are the parts of this message: they leave the queue together or not at all."""


@dataclass(frozen=True, slots=True)
class Release:
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class Bury:
    """Dead-letter in the backlog queue."""

    letters: tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True)
class Peek:
    """Look at the messages from this number on."""

    gap: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Seek:
    """Look for parts of this message around this number, whoever has them.

    `until_ms`: look at everything that the queue stored up to this time, because they are about to be given up.
    """

    part_of: str
    around: int
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask whether the primary answers at all."""


Action = Send | Complete | Release | Bury | Peek | Seek | Probe
