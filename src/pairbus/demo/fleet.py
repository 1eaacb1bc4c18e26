"""What the applications of the demo send, and where it must arrive.

- The seed alone decides what is sent.
- Each subscription's filter exists twice: as SQL for the namespace, and as a Python function for the count. The two
  share nothing but their meaning.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from azure.servicebus import ServiceBusMessage

from pairbus.drill.scenario import DrillEntity
from pairbus.drill.senders import SESSIONS

ORDERS, PRICES, CARTS = "orders", "prices", "carts"
# Duplicate detection: a send that was in doubt and went to the backlog arrives once.
ENTITIES = (
    DrillEntity(queue=ORDERS, duplicate_detection=True),
    DrillEntity(topic=PRICES, duplicate_detection=True),
    DrillEntity(queue=CARTS, duplicate_detection=True, sessions=True),
)
REGIONS = ("africa", "america", "asia", "europe")
MAX_AMOUNT = 1_000


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message of the demo."""

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


def parcel(seed: int, entity: DrillEntity, number: int) -> Parcel:
    """The message with this number for an entity; the same for the same seed."""
    name = f"{entity.name}-{number}"
    chance = random.Random(f"{seed} {name}")  # noqa: S311 - a demo, not a secret
    region, amount, session = chance.choice(REGIONS), chance.randint(1, MAX_AMOUNT), chance.choice(SESSIONS)
    return Parcel(name, entity.name, region, amount, session if entity.sessions else None)


@dataclass(frozen=True, slots=True)
class DemoDestination:
    """A queue, or a subscription with its filter."""

    entity: str
    subscription: str | None = None
    sql_filter: str = ""
    selects: Callable[[Parcel], bool] = lambda parcel: True

    @property
    def name(self) -> str:
        return self.entity if self.subscription is None else f"{self.entity}/{self.subscription}"

    def takes(self, parcel: Parcel) -> bool:
        return parcel.entity == self.entity and self.selects(parcel)


DESTINATIONS = (
    DemoDestination(ORDERS),
    DemoDestination(PRICES, "europe", "region = 'europe'", lambda parcel: parcel.region == "europe"),
    DemoDestination(PRICES, "large", "amount >= 600", lambda parcel: parcel.amount >= 600),
    DemoDestination(CARTS),
)
