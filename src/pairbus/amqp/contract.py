"""What an engine needs from the one who owns it, and how much it lets a peer take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pairbus.amqp.links import Incoming, Link, Outgoing
from pairbus.amqp.outcomes import AmqpError, State


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one peer may take. Sizes are bytes, times seconds."""

    max_frame: int = 65_536
    max_sessions: int = 256
    max_links: int = 2_048
    max_message: int = 1_100_000
    max_unfinished: int = 32 << 20
    write_buffer: int = 1 << 20
    session_window: int = 8 << 20
    idle_timeout: float = 240.0
    open_timeout: float = 30.0


class EngineOwner(Protocol):
    """What the engine tells. A link that the peer opened must be opened or refused, now or later."""

    def connection_opened(self) -> None: ...
    def link_opened(self, link: Link) -> None: ...
    def link_closed(self, link: Link, error: AmqpError | None) -> None: ...
    def message_received(self, link: Link, delivery: Incoming, raw: bytes, message_format: int) -> None: ...
    def message_too_large(self, link: Link, delivery: Incoming, size: int) -> None: ...
    def delivery_updated(self, link: Link, delivery: Outgoing) -> None: ...
    def outcome_confirmed(self, link: Link, delivery: Incoming, state: State | None) -> None: ...
    def credit_changed(self, link: Link) -> None: ...
    def writing_paused(self, paused: bool) -> None: ...
    def connection_lost(self, error: AmqpError | None) -> None: ...
