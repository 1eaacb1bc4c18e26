"""Where a drill takes place: on two embedded namespaces of its own, or on two real ones.

Rules for real namespaces:
- Every entity, and the primary's name in the backlog paths, begins with `pairbus-drill-` and a random word.
- The drill deletes everything it created, backlog queues included, however it ends. One failed deletion does not stop
  the others; LeftBehindError names what is left.
- Nothing can be killed. The only fault is to change the status of an entity that the drill created.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from azure.core.exceptions import AzureError, ResourceNotFoundError

from pairbus.drill.scenario import DrillEntity, FaultAction, NamespaceRole
from pairbus.pairing.options import backlog_path
from pairbus.syphon.namespaces import Namespace

PREFIX = "pairbus-drill"
SUBSCRIPTION = "drill"
EMBEDDED_PRIMARY = "contoso"
DELETE_SECONDS = 30.0

T = TypeVar("T")


class LeftBehindError(RuntimeError):
    """The drill could not delete entities that it created."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"The drill could not delete what it created; delete it yourself: {', '.join(names)}.")
        self.names = tuple(names)


async def on_thread(work: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Run blocking work on a thread. A cancellation takes effect when it is done: nothing may stay half started."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments, **options))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


class Stage(Protocol):
    primary_name: str
    folder: Path
    """A folder for the drill, deleted at its end."""
    outlives_drill: bool
    """Whether the namespaces exist after the drill, so that it must delete what it created."""

    def namespace(self, role: NamespaceRole) -> Namespace: ...

    def path(self, entity: str) -> str:
        """The path of an entity in the primary."""

    async def kill(self, role: NamespaceRole) -> None: ...

    async def restart(self, role: NamespaceRole) -> None: ...

    async def fault(self, fault: FaultAction) -> None: ...

    async def clear(self, role: NamespaceRole, entity: str | None) -> None: ...

    async def repair(self) -> None:
        """Start everything that was killed, and clear all faults."""


class EmbeddedStage:
    """Two embedded namespaces in processes of their own, which can be killed."""

    outlives_drill = False

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
        await on_thread(self._embedded[role].kill)

    async def restart(self, role: NamespaceRole) -> None:
        await on_thread(self._embedded[role].restart)

    async def fault(self, fault: FaultAction) -> None:
        await on_thread(
            self._embedded[fault.namespace].fault,
            fault.mode,
            entity=fault.entity,
            condition=fault.condition,
            rate=fault.rate,
            delay=fault.delay,
        )

    async def clear(self, role: NamespaceRole, entity: str | None) -> None:
        if self._embedded[role].running:
            await on_thread(self._embedded[role].clear_faults, entity)

    async def repair(self) -> None:
        for embedded in self._embedded.values():
            await on_thread(embedded.clear_faults if embedded.running else embedded.start)


class RealStage:
    """Two namespaces that others use too. The command refuses scenarios with steps that they cannot do."""

    outlives_drill = True

    def __init__(self, folder: Path, primary: Namespace, secondary: Namespace) -> None:
        self.primary_name = f"{PREFIX}-{secrets.token_hex(4)}"
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

    async def fault(self, fault: FaultAction) -> None:
        raise NotImplementedError(f"The {fault.namespace} is a real namespace and has no fault '{fault.mode}'.")

    async def clear(self, role: NamespaceRole, entity: str | None) -> None:
        return None

    async def repair(self) -> None:
        return None


@contextlib.asynccontextmanager
async def embedded_stage(folder: Path | None = None) -> AsyncIterator[EmbeddedStage]:
    """Start two embedded namespaces, in a temporary folder if none is given."""
    from pairbus.testing.namespace import embedded_pair

    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-drill-")))
        running = embedded_pair(folder, process=True)
        try:
            yield EmbeddedStage(folder, await on_thread(running.__enter__))
        finally:
            await on_thread(running.__exit__, None, None, None)


@contextlib.asynccontextmanager
async def real_stage(primary: Namespace, secondary: Namespace) -> AsyncIterator[RealStage]:
    """Use two existing namespaces; the drill adds entities of its own to them."""
    with tempfile.TemporaryDirectory(prefix="pairbus-drill-") as folder:
        yield RealStage(Path(folder), primary, secondary)


@contextlib.asynccontextmanager
async def entities_on(stage: Stage, entities: list[DrillEntity], queues: int) -> AsyncIterator[None]:
    """Create the drill's entities; delete them and the backlog queues at the end, or raise LeftBehindError."""
    try:
        async with stage.namespace("primary").administration() as admin:
            for entity in entities:
                await _create(admin, stage.path(entity.name), entity)
        yield
    finally:
        if stage.outlives_drill and (left := await _delete_all(stage, entities, queues)):
            raise LeftBehindError(left)


async def _delete_all(stage: Stage, entities: list[DrillEntity], queues: int) -> list[str]:
    """Delete everything the drill may have created; return what could not be deleted, with its namespace."""
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
            except (AzureError, OSError):  # a timeout is an OSError
                left.append(f"{path} in {stage.namespace(role).host}")
    return left


async def _create(admin: Any, path: str, entity: DrillEntity) -> None:
    if entity.topic:
        await admin.create_topic(path, requires_duplicate_detection=entity.duplicate_detection)
        await admin.create_subscription(path, SUBSCRIPTION)
    else:
        await admin.create_queue(
            path, requires_duplicate_detection=entity.duplicate_detection, requires_session=entity.sessions
        )


async def set_sending(stage: Stage, entity: DrillEntity, enabled: bool) -> None:
    """Enable or disable sends to an entity of the drill: the fault that works on real namespaces."""
    path = stage.path(entity.name)
    async with stage.namespace("primary").administration() as admin:
        properties: Any = await (admin.get_topic(path) if entity.topic else admin.get_queue(path))
        properties.status = "Active" if enabled else "SendDisabled"
        await (admin.update_topic(properties) if entity.topic else admin.update_queue(properties))
