"""`$cbs`, `entity/$management` and the transaction coordinator: links on which a client asks, and is told.

A node of requests has two links: one the client sends on, one it gets replies on. A reply goes to the link whose
address the request names; the SDK names none, and gets it on the node's latest reply link of the same connection.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pairbus.amqp.codec import decode
from pairbus.amqp.links import IncomingDelivery, Link
from pairbus.amqp.message import Sections
from pairbus.amqp.outcomes import Accepted, AmqpError, Declared, Rejected
from pairbus.amqp.types import AmqpDecodeError, Described
from pairbus.embedded.amqp.ends import QuietEnd, amqp_error
from pairbus.embedded.amqp.operations import OPERATIONS, Operation
from pairbus.embedded.amqp.requests import Request, cbs_reply, management_reply
from pairbus.embedded.errors import BrokerError, InvalidError, UnauthorizedError
from pairbus.embedded.faults import Fault

if TYPE_CHECKING:
    from pairbus.embedded.amqp.connection import ServerConnection

CREDIT = 100
MAX_QUEUED_BYTES = 16 << 20
MAX_HUNG = 10 * CREDIT


class ReplyLink(QuietEnd):
    """The link on which a node's replies leave."""

    def __init__(self, connection: ServerConnection, link: Link, node: str) -> None:
        self.path = node
        self._connection = connection
        self._link = link
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
            self._connection.protocol.close(
                AmqpError(
                    "amqp:resource-limit-exceeded", "Replies are not taken: give their link credit and read them."
                )
            )
            return
        self._sent += 1
        self._link.send(self._sent.to_bytes(8, "big"), raw, settled=True)


class RequestLink(QuietEnd, ABC):
    """Takes requests; each is settled when it is read, and answered on the node's reply link."""

    def __init__(self, connection: ServerConnection, link: Link) -> None:
        self._connection = connection
        self._link = link

    def open(self) -> None:
        self._link.accept()
        self._link.grant(CREDIT)

    def received(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        self._link.grant(1)
        try:
            request = Request.read(raw)
        except AmqpDecodeError as error:
            delivery.settle(Rejected(AmqpError("amqp:decode-error", str(error))))
            return
        delivery.settle()
        self._asked(request)

    @abstractmethod
    def _asked(self, request: Request) -> None: ...


class CbsLink(RequestLink):
    """Takes tokens."""

    def _asked(self, request: Request) -> None:
        status, description = self._put_token(request)
        self._connection.reply("$cbs", request.reply_to, cbs_reply(request, status, description))

    def _put_token(self, request: Request) -> tuple[int, str]:
        if request.text("operation").lower() != "put-token":
            return 400, f"Operation '{request.text('operation')[:64]}' is unknown; expected put-token."
        token = request.body.decode("utf-8", "replace") if isinstance(request.body, bytes) else request.body
        if not isinstance(token, str):
            return 400, "The body of put-token must be a token as text."
        try:
            self._connection.put_token(token, request.text("name"))
        except UnauthorizedError as error:
            return 401, error.description
        except BrokerError as error:
            return error.http_status, error.description
        return 202, "Accepted"


class ManagementLink(RequestLink):
    """Takes requests about one entity."""

    def __init__(self, connection: ServerConnection, link: Link, node: str, entity: str) -> None:
        super().__init__(connection, link)
        self.path = entity
        self._node = node
        self._hung: list[Request] = []

    def _asked(self, request: Request) -> None:
        fault = self._connection.faults.fault_of(self.path)
        if fault is None or not self._faulty(fault, request):
            self._carry_out(request)

    def received_too_much(self, delivery: IncomingDelivery, size: int) -> None:
        self._link.grant(1)
        delivery.settle(
            Rejected(AmqpError("amqp:link:message-size-exceeded", f"A request of {size} bytes is too large."))
        )

    def _carry_out(self, request: Request) -> None:
        operation = Operation(
            self._connection.broker,
            self.path,
            request.body if isinstance(request.body, dict) else {},
            lambda body, status=200: self._reply(request, status, "OK", body, None),
            lambda error: self._reply(request, error.http_status, error.description, None, error.condition),
        )
        name = request.text("operation")
        known = OPERATIONS.get(name.removeprefix("com.microsoft:").lower())
        try:
            if known is None:
                raise InvalidError(f"Operation '{name[:64]}' is unknown.")
            right, carry_out = known
            self._connection.require(self._node, right)
            carry_out(operation)
        except BrokerError as error:
            operation.refuse(error)

    def _reply(
        self, request: Request, status: int, description: str, body: dict[str, object] | None, condition: str | None
    ) -> None:
        raw = management_reply(request, status, description, body, condition)
        self._connection.reply(self._node, request.reply_to, raw)

    def _faulty(self, fault: Fault, request: Request) -> bool:
        match fault.mode:
            case "refuse" | "drop":
                self._connection.abort()
            case "hang" if len(self._hung) < MAX_HUNG:
                self._hung.append(request)
            case "hang":
                self._connection.abort()
            case "error":
                self._reply(request, 500, "A fault was switched on.", None, fault.condition)
            case "slow":
                asyncio.get_running_loop().call_later((fault.delay_ms or 0) / 1000, self._carry_out, request)
            case _:
                return False
        return True

    def faults_changed(self) -> None:
        fault = self._connection.faults.fault_of(self.path)
        if fault is not None and fault.mode == "hang":
            return
        hung, self._hung = self._hung, []
        for request in hung:
            self._reply(request, 408, "The entity did not answer in time.", None, "com.microsoft:timeout")


class CoordinatorLink(QuietEnd):
    """Declares and discharges transactions. Those still open when it goes are rolled back."""

    def __init__(self, connection: ServerConnection, link: Link) -> None:
        self._connection = connection
        self._link = link
        self._open: set[bytes] = set()

    def open(self) -> None:
        self._link.accept()
        self._link.grant(CREDIT)

    def received(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        self._link.grant(1)
        broker = self._connection.broker
        try:
            asked = decode(Sections.split(raw).body)[0]
            command = asked.value if isinstance(asked, Described) else None
            if not isinstance(command, Described):
                raise AmqpDecodeError("a coordinator takes declare and discharge only")
            fields = command.value if isinstance(command.value, list) else []
            if command.descriptor in (0x31, "amqp:declare:list"):
                txn = broker.begin_transaction()
                self._open.add(txn)
                delivery.settle(Declared(txn))
            elif command.descriptor in (0x32, "amqp:discharge:list") and fields and isinstance(fields[0], bytes):
                txn = fields[0]
                self._open.discard(txn)

                def discharged(error: BrokerError | None) -> None:
                    delivery.settle(Accepted() if error is None else Rejected(amqp_error(error)))

                broker.discharge(txn, len(fields) > 1 and fields[1] is True, discharged)
            else:
                raise AmqpDecodeError("a coordinator takes declare and discharge only")
        except AmqpDecodeError as error:
            delivery.settle(Rejected(AmqpError("amqp:decode-error", str(error))))
        except BrokerError as error:
            delivery.settle(Rejected(amqp_error(error)))

    def closed(self) -> None:
        for txn in self._open:
            self._connection.broker.discharge(txn, True, _ignore)
        self._open.clear()


def _ignore(_error: BrokerError | None) -> None:
    return
