"""What is sent and where it must arrive: decided by the seed alone, before anything is sent.

Each subscription's choice is written twice: as the filter that the namespace evaluates, and as a Python function that
says what the story expects. The two share nothing but the meaning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from azure.servicebus import ServiceBusMessage

ORDERS, PRICES, CARTS = "orders", "prices", "carts"
ENTITIES = (ORDERS, PRICES, CARTS)
REGIONS = ("africa", "america", "asia", "europe")
SESSIONS = ("cart-1", "cart-2", "cart-3", "cart-4")
HIGHEST_AMOUNT = 1_000


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message of the story."""

    message_id: str
    entity: str
    region: str
    amount: int
    session: str | None

    def as_message(self) -> ServiceBusMessage:
        return ServiceBusMessage(
            f"{self.entity}: {self.amount} in {self.region}",
            message_id=self.message_id,
            session_id=self.session,
            application_properties={"region": self.region, "amount": self.amount},
        )


def parcels(seed: int, entity: str, sender: int) -> Iterator[Parcel]:
    """The messages of one sender, without end; the same for the same seed."""
    chance = random.Random(f"{seed} {entity} {sender}")  # noqa: S311 - a story, not a secret
    number = 0
    while True:
        number += 1
        region, amount, session = chance.choice(REGIONS), chance.randint(1, HIGHEST_AMOUNT), chance.choice(SESSIONS)
        yield Parcel(f"{entity}-{sender}-{number}", entity, region, amount, session if entity == CARTS else None)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a receiver reads: a queue, or a subscription with its filter."""

    entity: str
    subscription: str | None = None
    sql_filter: str | None = None
    selects: Callable[[Parcel], bool] = lambda parcel: True
    has_sessions: bool = False

    @property
    def path(self) -> str:
        return self.entity if self.subscription is None else f"{self.entity}/Subscriptions/{self.subscription}"

    @property
    def name(self) -> str:
        return self.entity if self.subscription is None else f"{self.entity}/{self.subscription}"

    def takes(self, parcel: Parcel) -> bool:
        return parcel.entity == self.entity and self.selects(parcel)


DESTINATIONS = (
    Destination(ORDERS),
    Destination(PRICES, "europe", "region = 'europe'", lambda parcel: parcel.region == "europe"),
    Destination(PRICES, "large", "amount >= 600", lambda parcel: parcel.amount >= 600),
    Destination(CARTS, has_sessions=True),
)
