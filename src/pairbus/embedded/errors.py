"""The limits of an embedded namespace, and the errors it answers with.

Every refusal is a `BrokerError`: an AMQP condition, a sentence for people, and the HTTP status that the administration
endpoint uses for it. The AMQP layer and the administration endpoint only translate these errors.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the service, unless the namespace's owner sets others."""

    max_message_bytes: int = 256 * 1024
    max_batch_bytes: int = 256 * 1024
    max_batch_messages: int = 4_500
    max_properties_bytes: int = 64 * 1024
    max_id_length: int = 128
    max_subscriptions_per_topic: int = 2_000
    max_entities: int = 10_000
    max_connections: int = 2_000
    unproven_seconds: float = 60.0
    max_transaction_operations: int = 100
    max_transactions: int = 1_000
    forward_hops: int = 4
    link_idle_ms: int | None = None
    """After this time without a message, a link on which a client sends is detached: 600,000 in the service."""

    @property
    def max_message_kilobytes(self) -> int:
        return max(1, self.max_message_bytes // 1024)


class BrokerError(Exception):
    """The namespace refuses an operation."""

    condition: ClassVar[str] = "amqp:internal-error"
    http_status: ClassVar[int] = 500

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class EntityNotFoundError(BrokerError):
    condition, http_status = "amqp:not-found", 404


class EntityExistsError(BrokerError):
    condition, http_status = "amqp:entity-already-exists", 409


class EntityDisabledError(BrokerError):
    condition, http_status = "com.microsoft:entity-disabled", 403


class QuotaExceededError(BrokerError):
    condition, http_status = "amqp:resource-limit-exceeded", 403


class MessageTooLargeError(BrokerError):
    condition, http_status = "amqp:link:message-size-exceeded", 400


class MessageLockLostError(BrokerError):
    condition, http_status = "com.microsoft:message-lock-lost", 410


class MessageNotFoundError(BrokerError):
    condition, http_status = "com.microsoft:message-not-found", 404


class SessionLockLostError(BrokerError):
    condition, http_status = "com.microsoft:session-lock-lost", 410


class SessionCannotBeLockedError(BrokerError):
    condition, http_status = "com.microsoft:session-cannot-be-locked", 410


class TimeoutExpiredError(BrokerError):
    condition, http_status = "com.microsoft:timeout", 408


class NotAllowedError(BrokerError):
    condition, http_status = "amqp:not-allowed", 400


class InvalidError(BrokerError):
    condition, http_status = "com.microsoft:argument-error", 400


class PreconditionFailedError(BrokerError):
    condition, http_status = "amqp:precondition-failed", 412


class TransactionUnknownError(BrokerError):
    condition, http_status = "amqp:transaction:unknown-id", 400


class StoreFailedError(BrokerError):
    condition, http_status = "amqp:internal-error", 500


class UnauthorizedError(BrokerError):
    condition, http_status = "amqp:unauthorized-access", 401
