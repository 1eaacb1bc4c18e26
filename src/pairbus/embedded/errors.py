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
    max_properties_bytes: int = 64 * 1024
    max_id_length: int = 128
    max_subscriptions_per_topic: int = 2_000
    max_entities: int = 10_000
    max_connections: int = 2_000
    max_transaction_operations: int = 100
    max_transactions: int = 1_000
    forward_hops: int = 4


class BrokerError(Exception):
    """The namespace refuses an operation."""

    condition: ClassVar[str] = "amqp:internal-error"
    http_status: ClassVar[int] = 500

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class EntityNotFoundError(BrokerError):
    condition = "amqp:not-found"
    http_status = 404


class EntityExistsError(BrokerError):
    condition = "amqp:entity-already-exists"
    http_status = 409


class EntityDisabledError(BrokerError):
    condition = "com.microsoft:entity-disabled"
    http_status = 403


class QuotaExceededError(BrokerError):
    condition = "amqp:resource-limit-exceeded"
    http_status = 403


class MessageTooLargeError(BrokerError):
    condition = "amqp:link:message-size-exceeded"
    http_status = 400


class MessageLockLostError(BrokerError):
    condition = "com.microsoft:message-lock-lost"
    http_status = 410


class MessageNotFoundError(BrokerError):
    condition = "com.microsoft:message-not-found"
    http_status = 404


class SessionLockLostError(BrokerError):
    condition = "com.microsoft:session-lock-lost"
    http_status = 410


class SessionCannotBeLockedError(BrokerError):
    condition = "com.microsoft:session-cannot-be-locked"
    http_status = 410


class TimeoutExpiredError(BrokerError):
    condition = "com.microsoft:timeout"
    http_status = 408


class NotAllowedError(BrokerError):
    condition = "amqp:not-allowed"
    http_status = 400


class InvalidError(BrokerError):
    condition = "com.microsoft:argument-error"
    http_status = 400


class PreconditionFailedError(BrokerError):
    condition = "amqp:precondition-failed"
    http_status = 412


class TransactionUnknownError(BrokerError):
    condition = "amqp:transaction:unknown-id"
    http_status = 400


class StoreFailedError(BrokerError):
    condition = "amqp:internal-error"
    http_status = 500


class UnauthorizedError(BrokerError):
    condition = "amqp:unauthorized-access"
    http_status = 401
