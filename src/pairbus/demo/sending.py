"""The sending applications of the demo: a fleet of senders that knows nothing of outages.

How far they may go is the story's to say (`allow`); how long a send takes, and where the message goes, is not theirs to
know. So the same seed sends the same messages, whatever happens meanwhile.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from azure.servicebus.exceptions import ServiceBusError

from pairbus import PairbusError, PairedServiceBusClient, PairedServiceBusSender
from pairbus.demo.parcels import ENTITIES, PRICES, Parcel, parcels


class Fleet:
    """Senders on threads of their own, `senders` for each entity, on one paired client."""

    def __init__(self, paired: PairedServiceBusClient, seed: int, senders: int, pause_seconds: float) -> None:
        self._paired = paired
        self._seed = seed
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._turn = threading.Condition()
        self._allowed = 0
        self._done = {(entity, number): 0 for entity in ENTITIES for number in range(1, senders + 1)}
        self._accepted: list[Parcel] = []
        self._refused: list[Parcel] = []
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=key, name=f"sender {key[1]} of {key[0]}") for key in self._done
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        with self._turn:
            self._turn.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def size(self) -> int:
        return len(self._threads)

    def allow(self, more: int) -> None:
        """Every sender may send so many more."""
        with self._turn:
            self._allowed += more
            self._turn.notify_all()

    @property
    def left(self) -> int:
        """How many of those that are allowed have not been sent yet."""
        with self._turn:
            if self._failure is not None:
                raise self._failure
            return sum(self._allowed - done for done in self._done.values())

    @property
    def accepted(self) -> list[Parcel]:
        """What a send returned for: these must arrive."""
        with self._turn:
            return list(self._accepted)

    @property
    def refused(self) -> list[Parcel]:
        """What a send raised for: the sender knows, and may try again. None is expected."""
        with self._turn:
            return list(self._refused)

    def planned(self) -> Iterator[Parcel]:
        """All that the fleet was allowed to send."""
        for entity, number in self._done:
            yield from itertools.islice(parcels(self._seed, entity, number), self._allowed)

    def _run(self, entity: str, number: int) -> None:
        try:
            with ExitStack() as stack:
                sender = stack.enter_context(self._open(entity))
                for parcel in parcels(self._seed, entity, number):
                    if not self._may_go_on(entity, number):
                        return
                    self._send(sender, parcel, (entity, number))
                    self._stop.wait(self._pause_seconds)
        except BaseException as error:  # whatever it is, the story must hear of it and not wait for this sender
            with self._turn:
                self._failure = error

    def _open(self, entity: str) -> PairedServiceBusSender:
        return self._paired.get_topic_sender(entity) if entity == PRICES else self._paired.get_queue_sender(entity)

    def _may_go_on(self, entity: str, number: int) -> bool:
        with self._turn:
            self._turn.wait_for(lambda: self._stop.is_set() or self._done[entity, number] < self._allowed)
            return not self._stop.is_set()

    def _send(self, sender: PairedServiceBusSender, parcel: Parcel, key: tuple[str, int]) -> None:
        taken = self._accepted
        try:
            sender.send_messages(parcel.as_message())
        except (PairbusError, ServiceBusError):
            taken = self._refused
        with self._turn:
            taken.append(parcel)
            self._done[key] += 1
