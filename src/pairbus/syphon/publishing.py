"""A syphon as it is published: what it counts, what it says, what it can be asked to do."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pairbus.ledger import CompletedOperation

if TYPE_CHECKING:
    from pairbus.publishing import Publisher
    from pairbus.publishing.records import RequestedAction, SyphonReport
    from pairbus.syphon.service import Syphon

MOST_DESTINATIONS = 20


def publish(syphon: Syphon, folder: Path | str | None, primary: str, secondary: str) -> PublishedSyphon | None:
    """Begin to publish the syphon if a folder is named; nothing is loaded otherwise."""
    if folder is None and not os.environ.get("PAIRBUS_STATE_DIR"):
        return None
    from pairbus.publishing import join

    publisher = join(folder)
    if publisher is None:
        return None
    published = PublishedSyphon(syphon, publisher, primary, secondary)
    publisher.add(published)
    return published


class PublishedSyphon:
    """What the publisher asks a syphon for. `primary` and `secondary` are as in the ledger."""

    def __init__(self, syphon: Syphon, publisher: Publisher, primary: str, secondary: str) -> None:
        self.key = publisher.new_key("syphon")
        self._syphon = syphon
        self._publisher = publisher
        self._primary = primary
        self._secondary = secondary

    def count(self, completed: CompletedOperation) -> None:
        self._publisher.tally.count(self._primary, completed)

    def describe(self) -> SyphonReport:
        from pairbus.publishing.records import Pausing, PumpReport, SyphonReport

        state, now = self._syphon.state(), time.time()
        pumps = [
            PumpReport(
                queue=one.queue,
                state=one.state,
                in_hand=one.in_hand,
                held=one.held,
                restored=one.counts.restored,
                dead_lettered=one.counts.dead_lettered,
                paused=[
                    Pausing(each.destination, now + each.seconds_left, each.failures)
                    for each in one.paused[:MOST_DESTINATIONS]
                ],
            )
            for one in state.queues
        ]
        return SyphonReport(
            key=self.key,
            primary=self._primary,
            secondary=self._secondary,
            primary_name=self._syphon.primary_name,
            state=state.state,
            pumps=pumps,
        )

    def apply(self, action: RequestedAction, entity: str) -> str:
        from pairbus.publishing import RequestRefusedError
        from pairbus.publishing.records import RequestedAction

        if action is RequestedAction.PAUSE:
            self._syphon.pause()
            return "The syphon finishes what is at hand and takes nothing more."
        if action is RequestedAction.RESUME:
            self._syphon.resume()
            return "The syphon goes on."
        raise RequestRefusedError("A syphon can be paused and resumed, nothing else.")

    def close(self) -> None:
        self._publisher.leave(self)
