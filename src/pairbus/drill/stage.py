"""Where a drill takes place: two embedded namespaces of its own, or two real ones, where it touches only its own.

Rules for real namespaces:
- Every entity, and the primary's name in the backlog paths, begins with `pairbus-drill-` and a random word.
- What was made is deleted at the end, however the drill ends, backlog queues included. Each deletion is tried by
  itself; what could not be deleted is told by name (LeftBehindError).
- Nothing can be killed; the only fault is the status of an entity that the drill made.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from azure.core.exceptions import AzureError, ResourceNotFoundError

from pairbus.drill.scenario import Break, Entity, NamespaceRole
from pairbus.pairing.options import backlog_path
from pairbus.syphon.namespaces import Namespace

OWN = "pairbus-drill"
SUBSCRIPTION = "drill"
EMBEDDED_PRIMARY = "contoso"
DELETE_SECONDS = 30.0


class LeftBehindError(RuntimeError):
    """Entities that the drill made and could not remove."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"The drill made these and could not delete them, delete them yourself: {', '.join(names)}.")
        self.names = tuple(names)


class Stage(Protocol):
    primary_name: str
    folder: Path
    """A folder of the drill's own, gone at its end."""
    others_live_here: bool
    """Whether the namespaces go on after the drill, so that it must remove what it made."""

    def namespace(self, role: NamespaceRole) -> Namespace: ...

    def path(self, entity: str) -> str:
        """The entity's path in the primary."""

    async def kill(self, role: NamespaceRole) -> None: ...

    async def restart(self, role: NamespaceRole) -> None: ...

    async def fault(self, fault: Break) -> None: ...

    async def clear(self, role: NamespaceRole, entity: str | None) -> None: ...

    async def mend(self) -> None:
        """Everything runs again and no fault is on."""


class EmbeddedStage:
    """Two namespaces in processes of their own, which can be killed."""

    others_live_here = False

    def __init__(self, folder: Path, pair: Any) -> None:
        self.primary_name = EMBEDDED_PRIMARY
        self.folder = folder
        self._embedded = {"primary": pair.primary, "secondary": pair.secondary}

    def namespace(self, role: NamespaceRole) -> Namespace:
        embedded = self._embedded[role]
        return Namespace.parse(embedded.connection_string, connection_verify=embedded.ca_file)

    def path(self, entity: str) -> str:
        return entity

    async def kill(self, role: NamespaceRole) -> None:
        await asyncio.to_thread(self._embedded[role].kill)

    async def restart(self, role: NamespaceRole) -> None:
        await asyncio.to_thread(self._embedded[role].restart)

    async def fault(self, fault: Break) -> None:
        await asyncio.to_thread(
            self._embedded[fault.namespace].fault,
            fault.mode,
            entity=fault.entity,
            condition=fault.condition,
            rate=fault.rate,
            delay=fault.delay,
        )

    async def clear(self, role: NamespaceRole, entity: str | None) -> None:
        if self._embedded[role].running:
            await asyncio.to_thread(self._embedded[role].clear_faults, entity)

    async def mend(self) -> None:
        for embedded in self._embedded.values():
            if embedded.running:
                await asyncio.to_thread(embedded.clear_faults)
            else:
                await asyncio.to_thread(embedded.start)


class RealStage:
    """Two namespaces that others use too. Steps that are not for them were refused before."""

    others_live_here = True

    def __init__(self, folder: Path, primary: Namespace, secondary: Namespace) -> None:
        self.primary_name = f"{OWN}-{secrets.token_hex(4)}"
        self.folder = folder
        self._namespaces = {"primary": primary, "secondary": secondary}

    def namespace(self, role: NamespaceRole) -> Namespace:
        return self._namespaces[role]

    def path(self, entity: str) -> str:
        return f"{self.primary_name}-{entity}"

    async def kill(self, role: NamespaceRole) -> None:
        raise NotImplementedError(f"The {role} is a real namespace and cannot be killed.")

    async def restart(self, role: NamespaceRole) -> None:
        raise NotImplementedError(f"The {role} is a real namespace and cannot be restarted.")

    async def fault(self, fault: Break) -> None:
        raise NotImplementedError(f"The {fault.namespace} is a real namespace and has no such fault.")

    async def clear(self, role: NamespaceRole, entity: str | None) -> None:
        return None

    async def mend(self) -> None:
        return None


@contextlib.asynccontextmanager
async def embedded_stage() -> AsyncIterator[EmbeddedStage]:
    """Two embedded namespaces that run for this drill only."""
    from pairbus.testing.namespace import embedded_pair

    with tempfile.TemporaryDirectory(prefix="pairbus-drill-") as folder:
        running = embedded_pair(Path(folder), process=True)
        pair = await asyncio.to_thread(running.__enter__)
        try:
            yield EmbeddedStage(Path(folder), pair)
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)


@contextlib.asynccontextmanager
async def real_stage(primary: Namespace, secondary: Namespace) -> AsyncIterator[RealStage]:
    """Two namespaces that exist; the drill adds entities of its own to them."""
    with tempfile.TemporaryDirectory(prefix="pairbus-drill-") as folder:
        yield RealStage(Path(folder), primary, secondary)


@contextlib.asynccontextmanager
async def entities_on(stage: Stage, entities: list[Entity], queues: int) -> AsyncIterator[None]:
    """Makes the drill's entities and removes them, and the backlog queues, at the end; LeftBehindError if it cannot."""
    try:
        async with stage.namespace("primary").administration() as admin:
            for entity in entities:
                await _make(admin, stage.path(entity.name), entity)
        yield
    finally:
        if stage.others_live_here and (left := await _remove(stage, entities, queues)):
            raise LeftBehindError(left)


async def _remove(stage: Stage, entities: list[Entity], queues: int) -> list[str]:
    """Deletes everything that may have been made; what could not be deleted, with its namespace."""
    left = []
    async with (
        stage.namespace("primary").administration() as admin,
        stage.namespace("secondary").administration() as other,
    ):
        deletions: list[tuple[NamespaceRole, str, Callable[[str], Coroutine[Any, Any, None]]]] = [
            ("primary", stage.path(entity.name), admin.delete_topic if entity.topic else admin.delete_queue)
            for entity in entities
        ]
        deletions += [
            ("secondary", backlog_path(stage.primary_name, number), other.delete_queue) for number in range(queues)
        ]
        for role, path, delete in deletions:
            try:
                async with asyncio.timeout(DELETE_SECONDS):
                    await delete(path)
            except ResourceNotFoundError:
                continue
            except (AzureError, OSError):  # a time-out is an OSError
                left.append(f"{path} in {stage.namespace(role).host}")
    return left


async def _make(admin: Any, path: str, entity: Entity) -> None:
    if entity.topic:
        await admin.create_topic(path, requires_duplicate_detection=entity.duplicate_detection)
        await admin.create_subscription(path, SUBSCRIPTION)
    else:
        await admin.create_queue(
            path, requires_duplicate_detection=entity.duplicate_detection, requires_session=entity.sessions
        )


async def set_sending(stage: Stage, entity: Entity, enabled: bool) -> None:
    """The status of an entity of our own: what a real namespace can be asked for instead of a fault."""
    path = stage.path(entity.name)
    async with stage.namespace("primary").administration() as admin:
        if entity.topic:
            topic = await admin.get_topic(path)
            topic.status = "Active" if enabled else "SendDisabled"
            await admin.update_topic(topic)
        else:
            queue = await admin.get_queue(path)
            queue.status = "Active" if enabled else "SendDisabled"
            await admin.update_queue(queue)
