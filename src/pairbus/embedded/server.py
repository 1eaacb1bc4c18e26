"""An embedded namespace as a whole: data folder, broker, faults, tokens and administration behind one port.

Invariants
- A data folder belongs to one server at a time, guarded by a lock that ends with the process.
- Only the owner can access folder and files (0700, 0600), except the public `ca.pem`.
- Nothing is accepted before `start` returns. After `stop`, everything acknowledged is on disk.
- A server that cannot start raises `ServerStartError` with one sentence.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import resource
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pairbus.embedded.clock import Clock, SystemClock
from pairbus.embedded.entities.descriptions import MANAGE, RIGHTS, AuthorizationRule
from pairbus.embedded.errors import BrokerError, Limits
from pairbus.errors import UsageError
from pairbus.loopback import is_loopback
from pairbus.private import open_private, private_folder

if TYPE_CHECKING:
    from pairbus.embedded.administration.endpoint import AdministrationEndpoint
    from pairbus.embedded.admission import Admission
    from pairbus.embedded.broker import Broker
    from pairbus.embedded.config import NamespaceConfig
    from pairbus.embedded.faults import FaultSwitchboard
    from pairbus.embedded.listener import Listener
    from pairbus.embedded.security import Authority
    from pairbus.embedded.store import Store
    from pairbus.ledger import LedgerWriter

T = TypeVar("T")

ROOT_KEY_NAME = "RootManageSharedAccessKey"
LOCK_FILE = "lock"
_OWN_FILES = ("namespace.db*", LOCK_FILE, "*.pem", "server.json")
OTHER_FILES = 256

_NAMESPACE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_log = logging.getLogger(__name__)


class ServerStartError(UsageError):
    """The reason why the server does not start, in one sentence for its user."""


class EmbeddedServer:
    """A namespace called `name` with its state in the folder `data`.

    If `ledger` is a folder, every operation is recorded there.
    """

    def __init__(
        self,
        name: str,
        data: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        config: Path | None = None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        ledger: Path | None = None,
    ) -> None:
        self.name = name
        self.data = data
        self.host = host
        self._requested_port = port
        self._config = config
        self._clock = clock or SystemClock()
        self._limits = limits or Limits()
        self._ledger_folder = ledger
        self._ledger: LedgerWriter | None = None
        self._lock: int | None = None
        self._broker: Broker | None = None
        self._faults: FaultSwitchboard | None = None
        self._endpoint: AdministrationEndpoint | None = None
        self._listener: Listener | None = None

    def __repr__(self) -> str:
        state = "stopped" if self._listener is None else f"on port {self.port}"
        return f"<EmbeddedServer {self.name} {state}>"

    @property
    def port(self) -> int:
        return _started(self._listener).port

    @property
    def broker(self) -> "Broker":
        return _started(self._broker)

    @property
    def faults(self) -> "FaultSwitchboard":
        return _started(self._faults)

    @property
    def ca_file(self) -> Path:
        return self.data.absolute() / "ca.pem"

    @property
    def connection_string(self) -> str:
        """The connection string for clients. It contains a key: never log it."""
        rule = _root_rule(self.broker)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            f"Endpoint=sb://{host}:{self.port};SharedAccessKeyName={rule.key_name};"
            f"SharedAccessKey={rule.primary_key};UseDevelopmentEmulator=true"
        )

    @property
    def connection_count(self) -> int:
        return _started(self._listener).connection_count

    async def start(self) -> None:
        """Accept connections, or raise ServerStartError and leave nothing behind."""
        _require_name(self.name)
        _require_loopback(self.host)
        config = self._read_config()
        connections = allowed_connections(self._limits.max_connections)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self.stop)
            if self.data.exists():
                # Lock first: if another server runs here, the error names its process, not its port.
                self._lock = _lock_folder(self.data)
            bound = self._bind()
            undo.callback(bound.close)
            if self._lock is None:
                self._lock = _lock_folder(self.data)
            await self._open()
            await self._apply(config)
            self._listen(bound, connections)
            undo.pop_all()
        _log.info("Namespace '%s' accepts connections on port %s.", self.name, self.port)

    async def stop(self) -> None:
        """Stop in order: refuse new connections, close the open ones, write to disk, release the folder."""
        listener, self._listener = self._listener, None
        endpoint, self._endpoint = self._endpoint, None
        broker, self._broker = self._broker, None
        ledger, self._ledger = self._ledger, None
        lock, self._lock = self._lock, None
        # Each step runs even if another fails: the folder must not stay locked.
        async with contextlib.AsyncExitStack() as steps:
            if lock is not None:
                steps.callback(os.close, lock)
            if ledger is not None:
                steps.push_async_callback(asyncio.to_thread, ledger.close)
            if broker is not None:
                steps.push_async_callback(broker.close)
            if listener is not None:
                steps.push_async_callback(listener.close)
                steps.callback(_close_amqp_connections, listener)
            if endpoint is not None:
                steps.push_async_callback(endpoint.close)
            if listener is not None:
                steps.push_async_callback(listener.stop_accepting)

    def _read_config(self) -> "NamespaceConfig | None":
        if self._config is None:
            return None
        from pairbus.embedded.config import ConfigError, read_config

        try:
            return read_config(self._config).namespace(self.name)
        except ConfigError as error:
            raise ServerStartError(str(error)) from None

    async def _open(self) -> None:
        # Imported here, so that importing this module stays cheap.
        from pairbus.embedded.faults import FaultSwitchboard
        from pairbus.embedded.security import generate_key
        from pairbus.embedded.store import SchemaError, Store

        try:
            store = Store(self.data)
            self._broker = self._make_broker(store)
        except SchemaError as error:
            raise ServerStartError(str(error)) from None
        except (sqlite3.Error, OSError) as error:
            raise ServerStartError(f"Cannot use the data folder {self.data}: {error}.") from error
        self._faults = FaultSwitchboard(self._clock)
        if not any(MANAGE in rule.rights for rule in self._broker.authorization_rules()):
            now_ms = self._clock.now_ms()
            root = AuthorizationRule(ROOT_KEY_NAME, RIGHTS, generate_key(), generate_key(), now_ms, now_ms)
            await self._broker.set_authorization_rules((*self._broker.authorization_rules(), root))

    def _make_broker(self, store: "Store") -> "Broker":
        if self._ledger_folder is None:
            from pairbus.embedded.broker import Broker

            return Broker(store, self._clock, self._limits)
        from pairbus.embedded.recording import RecordingBroker
        from pairbus.ledger import LedgerWriter, Role

        try:
            self._ledger = LedgerWriter(self._ledger_folder, role=Role.NAMESPACE)
        except OSError as error:
            store.close()
            raise ServerStartError(str(error)) from error
        return RecordingBroker(store, self._clock, self._limits, self.name, self._ledger)

    async def _apply(self, config: "NamespaceConfig | None") -> None:
        if config is None:
            return
        from pairbus.embedded.config import apply_config

        try:
            await apply_config(config, self.broker, self._limits)
        except BrokerError as error:
            raise ServerStartError(f"{self._config}: {error.description}") from None

    def _bind(self) -> socket.socket:
        from pairbus.embedded.listener import bind

        with self._translating_port_errors():
            return bind(self.host, self._requested_port)

    @contextlib.contextmanager
    def _translating_port_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ServerStartError(
                f"Cannot use port {self._requested_port} of {self.host} ({reason}). Choose another with --port."
            ) from error

    def _listen(self, bound: socket.socket, connections: int) -> None:
        from pairbus.embedded.admission import Admission
        from pairbus.embedded.amqp.connection import amqp_protocol_factory
        from pairbus.embedded.listener import Listener
        from pairbus.embedded.security import Authority, ensure_certificate

        authority = Authority(self.broker)
        admission = Admission(connections, self._limits.unproven_seconds)
        amqp = amqp_protocol_factory(self.broker, self.faults, authority, self._limits, admission=admission)
        try:
            tls = ensure_certificate(self.data).context()
        except OSError as error:
            raise ServerStartError(f"Cannot write a certificate to the data folder {self.data}: {error}.") from error

        def http() -> asyncio.Protocol:
            # Made for the first HTTP connection: loading its libraries would double the start-up time.
            if self._endpoint is None:
                self._endpoint = self._make_endpoint(authority, amqp, admission)
            return self._endpoint.protocol()

        listener = Listener(amqp=amqp, http=http, tls=tls, admission=admission)
        with self._translating_port_errors():
            listener.start(bound)
        self._listener = listener
        if self._ledger is not None:
            self._ledger.address = f"{self.host}:{self.port}"

    def _make_endpoint(
        self, authority: "Authority", amqp: Callable[[], asyncio.Protocol], admission: "Admission"
    ) -> "AdministrationEndpoint":
        from pairbus.embedded.administration.control import Control
        from pairbus.embedded.administration.endpoint import AdministrationEndpoint
        from pairbus.embedded.administration.operations import Operations

        created_ms = _root_rule(self.broker).created_ms
        operations = Operations(self.broker, authority, self._limits, self.name, created_ms)
        control = Control(self.broker, self.faults, authority, self._clock, self.name, admission)
        return AdministrationEndpoint(
            operations, control, authority, self.faults, self._clock, self.name, amqp, admission
        )


def _started(part: T | None) -> T:
    if part is None:
        raise RuntimeError("The server is not running. Call start() first.")
    return part


def _close_amqp_connections(listener: "Listener") -> None:
    """Close AMQP connections as the protocol provides: clients learn that the server stopped on purpose."""
    from pairbus.amqp.outcomes import AmqpError
    from pairbus.amqp.protocol import AmqpProtocol

    for transport in listener.transports():
        protocol = transport.get_protocol()
        if isinstance(protocol, AmqpProtocol):
            protocol.close(AmqpError("amqp:connection:forced", "The namespace is being stopped."))


def _require_name(name: str) -> None:
    if _NAMESPACE_NAME.fullmatch(name) is None:
        raise ServerStartError(
            f"'{name[:64]}' is not a valid namespace name. Use 1 to 63 letters, digits and . _ -,"
            " and start and end with a letter or digit."
        )


def _require_loopback(host: str) -> None:
    if not is_loopback(host):
        raise ServerStartError(f"'{host[:64]}' is not a loopback address. This server accepts only local connections.")


def allowed_connections(wanted: int) -> int:
    """Raise the limit of open files, as far as the system allows; returns how many connections it leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        soft = needed
    if soft == resource.RLIM_INFINITY or soft >= wanted + OTHER_FILES:
        return wanted
    allowed = min(wanted, max(soft - OTHER_FILES, soft // 2))
    _log.warning("At most %s connections, not %s: the system allows %s open files (ulimit -n).", allowed, wanted, soft)
    return allowed


def _lock_folder(folder: Path) -> int:
    """Create the folder if it is missing, and lock it until the returned descriptor is closed."""
    try:
        private_folder(folder, files=_OWN_FILES)
        lock = open_private(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ServerStartError(f"Cannot use the data folder {folder}: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(lock, 20).decode("ascii", "replace").strip()
        os.close(lock)
        raise ServerStartError(
            f"The data folder {folder} is in use by another server (process {holder or 'unknown'}). Stop it,"
            " or choose another folder."
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock


def _root_rule(broker: "Broker") -> AuthorizationRule:
    """The rule for the connection string: the default one or, if that is removed, another with the Manage right."""
    managing = [rule for rule in broker.authorization_rules() if MANAGE in rule.rights]
    return next((rule for rule in managing if rule.key_name == ROOT_KEY_NAME), managing[0])
