"""The namespace on disk: one SQLite database in WAL mode, with one writer thread and group commit.

`Store` opens, migrates, loads and writes the database. `Store.commit` writes one group of changes in one transaction
and returns once it is on disk (`synchronous=FULL`). The loop's thread reads payloads through its own connection.

`GroupCommit` collects changes into groups. An *effect* (an acknowledgement, a delivery) runs only after the decisions
made before it are on disk; with nothing to write it runs at once. While one group is being written the next one fills
up, so a busy server syncs once for many sends. Effects run in order, also those that other effects add.

When the disk refuses a group, the group is kept and retried every second. Until then nothing is acknowledged, and
`failing` is set so that new work can be refused instead of piling up. A group with a row that SQLite can never store
(text that is not Unicode, say) is not retried: its other rows are written, and everything in it is answered with an
error, because nobody knows whose row it was. Values are checked where they arrive, so this should not happen.
"""

import asyncio
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from pairbus.embedded.entities.descriptions import authorization_rules_from_json
from pairbus.embedded.entities.entity import EntityTimes
from pairbus.embedded.entities.message import Changes, QueueEntry, State
from pairbus.embedded.entities.namespace import NamespaceState
from pairbus.embedded.entities.paths import QUEUE_IDS_PER_ENTITY, SubQueue, queue_id_of
from pairbus.embedded.errors import StoreFailedError

FILE_NAME = "namespace.db"
DEFAULT_CACHE_BYTES = 32 * 1024 * 1024
RETRY_SECONDS = 1.0
UNSTORABLE = (
    UnicodeError,
    OverflowError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
)
"""Errors about a value. They come back however often the same row is written."""

log = logging.getLogger(__name__)


class SchemaError(Exception):
    """A newer program wrote the data folder."""


class PayloadCache:
    """Payloads in memory: all that are not yet on disk, and the most recent others up to `cache_bytes`."""

    def __init__(self, fetch: Callable[[int], bytes], cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._fetch = fetch
        self._cache_bytes = cache_bytes
        self._unwritten: dict[int, bytes] = {}
        self._recent: OrderedDict[int, bytes] = OrderedDict()
        self._recent_bytes = 0

    def put(self, payload_id: int, raw: bytes) -> None:
        self._unwritten[payload_id] = raw

    def get(self, payload_id: int) -> bytes:
        raw = self._unwritten.get(payload_id)
        if raw is None:
            raw = self._recent.get(payload_id)
        if raw is None:
            raw = self._fetch(payload_id)
        return raw

    def mark_written(self, payload_ids: Iterable[int]) -> None:
        """These payloads are on disk: they may be evicted from now on."""
        for payload_id in payload_ids:
            raw = self._unwritten.pop(payload_id, None)
            if raw is not None and len(raw) <= self._cache_bytes:
                self._recent[payload_id] = raw
                self._recent_bytes += len(raw)
        while self._recent_bytes > self._cache_bytes:
            _, raw = self._recent.popitem(last=False)
            self._recent_bytes -= len(raw)

    def discard(self, payload_ids: Iterable[int]) -> None:
        for payload_id in payload_ids:
            raw = self._recent.pop(payload_id, None)
            if raw is not None:
                self._recent_bytes -= len(raw)


def _migrations() -> list[str]:
    """The migrations in order: number n takes a database from version n-1 to n."""
    folder = resources.files("pairbus.embedded") / "schema"
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".sql")), key=lambda item: item.name)
    return [item.read_text(encoding="utf-8") for item in files]


class Store:
    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        # SQLite gives the files it creates next to this one the same mode.
        self.path.touch(mode=0o600)
        self._writer = self._connect()
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = FULL")
        self._migrate()
        self._reader = self._connect()
        self.cache = PayloadCache(self._fetch)

    def _connect(self) -> sqlite3.Connection:
        # Only one thread at a time uses a connection, but not always the thread that opened it.
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA cache_size = -8000")
        return connection

    def _migrate(self) -> None:
        migrations = _migrations()
        (version,) = self._writer.execute("PRAGMA user_version").fetchone()
        if version > len(migrations):
            raise SchemaError(
                f"{self.path} has schema version {version}, but this program knows versions up to {len(migrations)}. "
                "Use the newer pairbus that wrote it, or another data folder."
            )
        for number, migration in enumerate(migrations[version:], start=version + 1):
            self._writer.executescript(f"BEGIN;\n{migration}\nPRAGMA user_version = {number};\nCOMMIT;")

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    # -- reading

    def _fetch(self, payload_id: int) -> bytes:
        row = self._reader.execute("SELECT raw FROM payload WHERE id = ?", (payload_id,)).fetchone()
        raw: bytes = row[0]
        return raw

    def load(self, namespace: NamespaceState) -> None:
        """Load the whole database into an empty namespace."""
        registry = namespace.registry
        read = self._reader.execute
        rows = read(
            "SELECT id, kind, path, description, created_ms, updated_ms, accessed_ms FROM entity "
            "ORDER BY CASE kind WHEN 'queue' THEN 0 WHEN 'topic' THEN 0 WHEN 'subscription' THEN 1 ELSE 2 END, id"
        )
        for entity_id, kind, path, description, created_ms, updated_ms, accessed_ms in rows:
            registry.load(entity_id, kind, path, description, EntityTimes(created_ms, updated_ms, accessed_ms))
        for queue_id, next_sequence in read("SELECT queue_id, next FROM sequence"):
            registry.queue_by_id(queue_id).next_sequence = next_sequence
        shared = dict(read("SELECT payload_id, count(*) FROM entry GROUP BY payload_id HAVING count(*) > 1"))
        (last_payload,) = read("SELECT coalesce(max(id), 0) FROM payload").fetchone()
        namespace.payloads.load_shares(shared, last_payload + 1)
        for queue_id, session_id, state, updated_ms in read(
            "SELECT queue_id, session_id, state, updated_ms FROM session"
        ):
            session = registry.queue_by_id(queue_id).session(session_id)
            session.state, session.updated_ms = state, updated_ms
        self._load_entries(namespace)
        for entity_id, message_id, at_ms in read("SELECT entity_id, message_id, at_ms FROM seen ORDER BY at_ms"):
            registry.by_id[entity_id].seen.load(message_id, at_ms)
        row = read("SELECT value FROM setting WHERE name = 'authorization_rules'").fetchone()
        if row is not None:
            registry.authorization_rules = authorization_rules_from_json(row[0])

    def _load_entries(self, namespace: NamespaceState) -> None:
        counted: set[int] = set()
        states = {state.value: state for state in State}
        queue, loading = None, -1
        for row in self._reader.execute(
            "SELECT queue_id, sequence_number, payload_id, size, state, enqueued_ms, expires_ms, delivery_count, "
            "session_id, scheduled_ms, origin FROM entry ORDER BY queue_id, sequence_number"
        ):
            queue_id, number, payload_id, size, state, *others = row
            entry = QueueEntry(number, payload_id, size, states[state], *others)
            if queue is None or queue_id != loading:
                queue, loading = namespace.registry.queue_by_id(queue_id), queue_id
            queue.load(entry)
            namespace.count_loaded(queue_id, entry, counted)

    # -- writing, in the writer thread

    def commit(self, changes: Changes, *, skip_unstorable: bool = False) -> None:
        """Write one group in one transaction; it is on disk when this returns."""
        writer = self._writer
        writer.execute("BEGIN IMMEDIATE")
        try:
            self._write(self._write_storable if skip_unstorable else writer.executemany, changes)
            writer.execute("COMMIT")
        except BaseException:
            # After some failures, such as a full disk, SQLite has already rolled back.
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            raise

    def _write_storable(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        for row in rows:
            try:
                self._writer.execute(statement, row)
            except UNSTORABLE as error:
                log.error("skipped a row that cannot be stored (%s): %s", statement, error)

    def _write(self, many: Callable[[str, Iterable[tuple[Any, ...]]], object], changes: Changes) -> None:
        for row in changes.entities:
            if isinstance(row, int):
                many("DELETE FROM entity WHERE id = ?", [(row,)])
            else:
                many(
                    "INSERT INTO entity VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                    "description = excluded.description, updated_ms = excluded.updated_ms, "
                    "accessed_ms = excluded.accessed_ms",
                    [row],
                )
        # Rows of stateless sessions would pile up for as long as the queue lives.
        stateful = [(*key, *value) for key, value in changes.sessions.items() if value[0] is not None]
        stateless = [key for key, value in changes.sessions.items() if value[0] is None]
        payload_drops = [(payload_id,) for payload_id in changes.payload_drops]
        statements: tuple[tuple[str, Collection[tuple[Any, ...]]], ...] = (
            ("INSERT INTO payload VALUES (?, ?)", changes.payloads),
            ("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", changes.entries),
            ("INSERT OR REPLACE INTO sequence VALUES (?, ?)", changes.sequences.items()),
            ("INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?)", stateful),
            ("DELETE FROM session WHERE queue_id = ? AND session_id = ?", stateless),
            ("DELETE FROM seen WHERE entity_id = ? AND at_ms <= ?", changes.seen_drops),
            ("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", changes.seen),
            ("INSERT OR REPLACE INTO setting VALUES (?, ?)", changes.settings.items()),
            ("DELETE FROM entry WHERE queue_id = ? AND sequence_number = ?", changes.entry_drops),
            ("DELETE FROM payload WHERE id = ?", payload_drops),
        )
        for statement, rows in statements:
            if rows:
                many(statement, rows)
        deleted = [row for row in changes.entities if isinstance(row, int)]
        if deleted:
            first_ids = [queue_id_of(entity_id, SubQueue.MAIN) for entity_id in deleted]
            ranges = [(first_id, first_id + QUEUE_IDS_PER_ENTITY - 1) for first_id in first_ids]
            many("DELETE FROM seen WHERE entity_id = ?", [(entity_id,) for entity_id in deleted])
            many("DELETE FROM sequence WHERE queue_id BETWEEN ? AND ?", ranges)
            many("DELETE FROM session WHERE queue_id BETWEEN ? AND ?", ranges)

    def write_access_times(self, times: list[tuple[int, int]]) -> None:
        self._writer.execute("BEGIN IMMEDIATE")
        self._writer.executemany("UPDATE entity SET accessed_ms = ? WHERE id = ?", times)
        self._writer.execute("COMMIT")


Effect = Callable[[], None]


class GroupCommit:
    def __init__(self, namespace: NamespaceState, store: Store) -> None:
        self._namespace = namespace
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pairbus-store")
        self._effects: list[Effect] = []
        self._group: tuple[Changes, list[Effect]] | None = None
        self._flush_due = False
        self._running = False
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self.failing = False
        self.refusal: StoreFailedError | None = None
        """Set while the effects of a group run of which a row could not be stored."""

    def after(self, effect: Effect) -> None:
        """Run the effect once everything decided so far is on disk, or is known to be impossible to store."""
        if self._group is None and not self._effects and not self._running and not self._namespace.has_changes:
            self._run([effect])
            return
        self._effects.append(effect)
        self.soon()

    def soon(self) -> None:
        """Start writing the pending changes in the next turn of the loop."""
        if not self._flush_due and self._group is None and not self._closed:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._group is not None or self._closed:
            return
        effects, self._effects = self._effects, []
        if not self._namespace.has_changes:
            self._run(effects)
            return
        self._group = (self._namespace.take_changes(), effects)
        self._write()

    def _write(self) -> None:
        self._retry = None
        if self._group is not None:
            future = self._writer.submit(self._store.commit, self._group[0], skip_unstorable=self.refusal is not None)
            future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._written, done))

    def _written(self, done: "Future[None]") -> None:
        assert self._group is not None
        changes, effects = self._group
        error = done.exception()
        if isinstance(error, UNSTORABLE) and self.refusal is None:
            self.refusal = StoreFailedError(f"The namespace cannot store this, or what arrived with it: {error}.")
            self._write()
            return
        if error is not None:
            # Keep the group whatever the error is: without it its senders would wait forever.
            if not self.failing:
                log.error(
                    "cannot write to %s (%s): nothing is acknowledged until a retry succeeds", self._store.path, error
                )
            self.failing = True
            self._retry = self._loop.call_later(RETRY_SECONDS, self._write)
            if self._drained is not None:
                _resolve(self._drained)
            return
        self.failing = False
        self._group = None
        self._store.cache.mark_written(payload_id for payload_id, _ in changes.payloads)
        self._store.cache.discard(changes.payload_drops)
        self._run(effects)
        self.refusal = None
        if self._effects or self._namespace.has_changes:
            self._flush()

    def _run(self, effects: list[Effect]) -> None:
        self._running = True
        for effect in effects:
            try:
                effect()
            except Exception:
                # A failure on one connection must not keep the others from their answers.
                log.exception("an effect failed")
        self._running = False

    async def drain(self) -> None:
        """Wait until everything decided so far is on disk and its effects have run, or until the disk refuses."""
        while not self.failing and (self._group is not None or self._effects or self._namespace.has_changes):
            self._drained = self._loop.create_future()
            self.after(partial(_resolve, self._drained))
            await self._drained

    async def close(self) -> None:
        await self.drain()
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        await asyncio.to_thread(self._writer.shutdown)


def _resolve(written: "asyncio.Future[None]") -> None:
    if not written.done():
        written.set_result(None)
