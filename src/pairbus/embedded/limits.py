"""The limits of an embedded namespace: the service's own, unless its owner sets others."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
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
