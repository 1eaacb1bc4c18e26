"""Asking processes to do something, through their state folders, and waiting for what they say.

A request that a process did not take in time is taken back: then it is certain that nothing was done.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairbus.dashboard.reading import Process, look
from pairbus.dashboard.view import key
from pairbus.publishing.folder import put_request, read_state, take_back
from pairbus.publishing.records import STATE_VERSION, Action, Request

ANSWER_SECONDS = 10.0
_PAUSE_SECONDS = 0.1


class UnknownTargetError(Exception):
    """Nobody who publishes here is meant; the text says so."""


@dataclass(frozen=True, slots=True)
class Addressee:
    process: Process
    source: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user wants: an entity in all clients of a pair (`primary`: its key), or one syphon of one process."""

    action: Action
    primary: str = ""
    entity: str = ""
    process: str = ""
    key: str = ""


def addressees(state_folder: Path, wish: Wish) -> list[Addressee]:
    """The paired clients (for an entity) or the syphon that the wish is for."""
    living = [process for process in look(state_folder).processes if process.alive]
    if wish.action in (Action.PAUSE, Action.RESUME):
        found = [
            Addressee(process, syphon.key)
            for process in living
            for syphon in process.state.syphons
            if (process.name, syphon.key) == (wish.process, wish.key)
        ]
        what = "There is no such syphon here any more."
    else:
        found = [
            Addressee(process, pair.key)
            for process in living
            for pair in process.state.pairs
            if key(pair.primary) == wish.primary and wish.entity in {entity.name for entity in pair.entities}
        ]
        what = f"No paired client here sends to {wish.entity!r} of {wish.primary!r}."
    if not found:
        raise UnknownTargetError(what)
    return found


async def ask(state_folder: Path, wish: Wish) -> list[dict[str, Any]]:
    """What each addressee answered."""
    found = await asyncio.to_thread(addressees, state_folder, wish)
    return await asyncio.gather(*(_ask_one(state_folder, one, wish) for one in found))


async def _ask_one(state_folder: Path, one: Addressee, wish: Wish) -> dict[str, Any]:
    request = Request(
        v=STATE_VERSION,
        id=secrets.token_hex(8),
        at=time.time(),
        action=wish.action,
        source=one.source,
        entity=wish.entity,
    )
    told = {"program": one.process.state.program, "pid": one.process.state.pid}
    try:
        path = await asyncio.to_thread(put_request, state_folder, one.process.name, request)
    except OSError:
        return {**told, "done": False, "text": "The process is gone."}
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        state = await asyncio.to_thread(read_state, state_folder / one.process.name)
        answer = next((each for each in state.answers if each.request == request.id), None) if state else None
        if answer is not None:
            return {**told, "done": answer.done, "text": answer.text}
        await asyncio.sleep(_PAUSE_SECONDS)
    if await asyncio.to_thread(take_back, path):
        text = "The process did not take the request; it was taken back and nothing was done."
    else:
        text = "The process took the request and has not answered yet."
    return {**told, "done": False, "text": text}
