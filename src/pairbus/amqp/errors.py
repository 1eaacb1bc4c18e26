"""What can go wrong for a client of AMQP.

AmqpClientError
├── LinkLostError       the link or its connection ended; what was under way is in doubt
├── RefusedError        this message or settlement was refused; the link goes on
└── TokenRefusedError   a token was not accepted
"""

from __future__ import annotations

from pairbus.amqp.outcomes import AmqpError


class AmqpClientError(Exception):
    """What the peer, or the network, said no with."""

    def __init__(self, error: AmqpError) -> None:
        super().__init__(str(error))
        self.error = error

    @property
    def condition(self) -> str:
        return self.error.condition


class LinkLostError(AmqpClientError):
    """The link or its connection ended; what was under way is in doubt."""


class RefusedError(AmqpClientError):
    """The peer refused this message or this settlement; the link goes on."""


class TokenRefusedError(AmqpClientError):
    """The peer did not take a token; ``status`` is its answer (401, 404)."""

    def __init__(self, status: int, description: str) -> None:
        super().__init__(AmqpError("amqp:unauthorized-access", description))
        self.status = status
