"""`$cbs`, `entity/$management` and the transaction coordinator: links on which a client sends requests.

A node has two links: one the client sends requests on, one it receives replies on. A reply goes to the link whose
address the request names. The SDK names none: its reply goes to the node's latest reply link of the same connection.

The coordinator is OASIS AMQP 1.0, part 4: 4.2 declaring and 4.3 discharging a transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pairbus.amqp.codec import decode
from pairbus.amqp.links import IncomingDelivery, Link
from pairbus.amqp.message import Sections, read_facts, value_message
from pairbus.amqp.outcomes import Accepted, AmqpError, Declared, Rejected
from pairbus.amqp.types import AmqpDecodeError, Described, Int, Symbol
from pairbus.embedded.amqp.links import LinkEnd, amqp_error
from pairbus.embedded.amqp.operations import OPERATIONS, ManagementCall
from pairbus.embedded.errors import BrokerError, InvalidError, UnauthorizedError

if TYPE_CHECKING:
    from pairbus.embedded.amqp.connection import ServerConnection

CREDIT = 100
MAX_QUEUED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ManagementRequest:
    """A request to `$cbs` or `$management`: application properties and a body."""

    message_id: Any
    reply_to: str | None
    properties: dict[str, Any] = field(default_factory=dict)
    body: Any = None

    @classmethod
    def read(cls, raw: bytes) -> ManagementRequest:
        """Decode a request. Raises AmqpDecodeError."""
        facts = read_facts(raw)
        properties = {_text(key): value for key, value in facts.application_properties.items()}
        return cls(facts.message_id, facts.reply_to, properties, _body_value(raw))

    def text(self, name: str) -> str:
        value = self.properties.get(name)
        return _text(value) if value is not None else ""

    def reply(self, properties: dict[str, Any], body: Any) -> bytes:
        """Encode a reply: properties with the correlation id, application properties, a value."""
        return value_message([None, None, None, None, None, self.message_id], properties, body)


def _body_value(raw: bytes) -> Any:
    """The value in a message's body, whatever kind of body it is. The keys of a map become strings."""
    body = Sections.split(raw).body
    if not body:
        return None
    section, end = decode(body)
    if not isinstance(section, Described) or end != len(body):
        raise AmqpDecodeError("the body of a request must be a single section")
    value = section.value
    return {_text(key): item for key, item in value.items()} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class ReplyLink(LinkEnd):
    """The link on which a node's replies leave."""

    def __init__(self, connection: ServerConnection, link: Link, node: str) -> None:
        super().__init__(connection, link, node)
        self._sent = 0
        self.address = link.remote_target.address

    def open(self) -> None:
        self._link.accept()
        self._connection.reply_links.append(self)

    def closed(self) -> None:
        if self in self._connection.reply_links:
            self._connection.reply_links.remove(self)

    def send(self, raw: bytes) -> None:
        if self._link.queued_bytes > MAX_QUEUED_BYTES:
            description = "The client does not read its replies. Grant credit on the reply link and read them."
            self._connection.protocol.close(AmqpError("amqp:resource-limit-exceeded", description))
            return
        self._sent += 1
        self._link.send(self._sent.to_bytes(8, "big"), raw, settled=True)


class RequestLink(LinkEnd, ABC):
    """Receives requests. A request is settled when it is decoded, and answered on the node's reply link."""

    def open(self) -> None:
        self._link.accept()
        self._link.grant(CREDIT)

    def received(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        self._link.grant(1)
        try:
            request = ManagementRequest.read(raw)
        except AmqpDecodeError as error:
            delivery.settle(Rejected(AmqpError("amqp:decode-error", str(error))))
            return
        delivery.settle()
        self._handle(request)

    def too_large(self, delivery: IncomingDelivery, size: int) -> None:
        self._link.grant(1)
        error = AmqpError("amqp:link:message-size-exceeded", f"The request has {size} bytes. Send a smaller one.")
        delivery.settle(Rejected(error))

    @abstractmethod
    def _handle(self, request: ManagementRequest) -> None: ...


class CbsLink(RequestLink):
    """Accepts tokens (claims-based security)."""

    def _handle(self, request: ManagementRequest) -> None:
        status, description = self._put_token(request)
        properties = {"status-code": Int(status), "status-description": description}
        self._connection.reply("$cbs", request.reply_to, request.reply(properties, None))

    def _put_token(self, request: ManagementRequest) -> tuple[int, str]:
        operation = request.text("operation")
        if operation.lower() != "put-token":
            return 400, f"Operation '{operation[:64]}' is unknown. Use put-token."
        token = request.body.decode("utf-8", "replace") if isinstance(request.body, bytes) else request.body
        if not isinstance(token, str):
            return 400, "The body of put-token must be a token as a string."
        try:
            self._connection.put_token(token, request.text("name"))
        except UnauthorizedError as error:
            return 401, error.description
        except BrokerError as error:
            return error.http_status, error.description
        return 202, "Accepted"


class ManagementLink(RequestLink):
    """Receives requests about one entity."""

    def __init__(self, connection: ServerConnection, link: Link, node: str, entity: str) -> None:
        super().__init__(connection, link, entity)
        self._node = node

    def _handle(self, request: ManagementRequest) -> None:
        fault = self._connection.faults.fault_of(self.path)
        execute = partial(self._execute, request)
        if fault is None or not self._is_held(fault, request, execute, partial(self._fail, request, 500)):
            execute()

    def _execute(self, request: ManagementRequest) -> None:
        call = ManagementCall(
            self._connection.broker,
            self.path,
            request.body if isinstance(request.body, dict) else {},
            lambda body, status=200: self._reply(request, status, "OK", body, None),
            lambda error: self._fail(request, error.http_status, amqp_error(error)),
        )
        name = request.text("operation")
        operation = OPERATIONS.get(name.removeprefix("com.microsoft:").lower())
        try:
            if operation is None:
                raise InvalidError(f"Operation '{name[:64]}' is unknown.")
            right, execute = operation
            self._connection.require(self._node, right)
            execute(call)
        except BrokerError as error:
            call.refuse(error)

    def _reply(
        self,
        request: ManagementRequest,
        status: int,
        description: str,
        body: dict[str, object] | None,
        condition: str | None,
    ) -> None:
        properties: dict[str, Any] = {"statusCode": Int(status), "statusDescription": description}
        if condition is not None:
            properties["errorCondition"] = Symbol(condition)
        self._connection.reply(self._node, request.reply_to, request.reply(properties, body or {}))

    def _fail(self, request: ManagementRequest, status: int, error: AmqpError) -> None:
        self._reply(request, status, error.description, None, error.condition)

    def faults_changed(self) -> None:
        for request in self._take_hung():
            self._fail(request, 408, AmqpError("com.microsoft:timeout", "The entity did not answer in time."))


class CoordinatorLink(LinkEnd):
    """Declares and discharges transactions. When it closes, open transactions are rolled back."""

    def __init__(self, connection: ServerConnection, link: Link) -> None:
        super().__init__(connection, link)
        self._open: set[bytes] = set()

    def open(self) -> None:
        self._link.accept()
        self._link.grant(CREDIT)

    def received(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        self._link.grant(1)
        try:
            self._execute(delivery, raw)
        except AmqpDecodeError as error:
            delivery.settle(Rejected(AmqpError("amqp:decode-error", str(error))))
        except BrokerError as error:
            delivery.settle(Rejected(amqp_error(error)))

    def _execute(self, delivery: IncomingDelivery, raw: bytes) -> None:
        section = decode(Sections.split(raw).body)[0]
        command = section.value if isinstance(section, Described) else None
        descriptor = command.descriptor if isinstance(command, Described) else None
        fields = command.value if isinstance(command, Described) and isinstance(command.value, list) else []
        broker = self._connection.broker
        if descriptor in (0x31, "amqp:declare:list"):
            txn = broker.begin_transaction()
            self._open.add(txn)
            delivery.settle(Declared(txn))
        elif descriptor in (0x32, "amqp:discharge:list") and fields and isinstance(fields[0], bytes):
            txn = fields[0]
            self._open.discard(txn)

            def discharged(error: BrokerError | None) -> None:
                delivery.settle(Accepted() if error is None else Rejected(amqp_error(error)))

            broker.discharge(txn, len(fields) > 1 and fields[1] is True, discharged)
        else:
            raise AmqpDecodeError("a transaction coordinator accepts only declare and discharge")

    def closed(self) -> None:
        for txn in self._open:
            self._connection.broker.discharge(txn, True, lambda _error: None)
        self._open.clear()
