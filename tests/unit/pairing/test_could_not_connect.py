"""Which errors say that a namespace cannot be reached at all, and not just one of its entities."""

from __future__ import annotations

import socket

import pytest
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError, ServiceBusError

from pairbus.pairing import sdk


def caused_by(cause: BaseException) -> ServiceBusConnectionError:
    """As the SDK nests them: the socket's error is the cause of the protocol's, which is the inner one."""
    protocol = RuntimeError("Failed to initiate the connection")
    protocol.__cause__ = cause
    return ServiceBusConnectionError(error=protocol)


@pytest.mark.parametrize("error", [ConnectionRefusedError(), ConnectionResetError(), socket.gaierror()])
def test_no_connection_came_about(error: OSError) -> None:
    assert sdk.could_not_connect(caused_by(error))
    assert sdk.could_not_connect(error)


@pytest.mark.parametrize(
    "error",
    [
        ServiceBusConnectionError(),
        ServiceBusConnectionError(error=RuntimeError("Can not read frame")),
        caused_by(TimeoutError()),
        TimeoutError(),
        OperationTimeoutError(error=ConnectionResetError()),
        ServiceBusError("The entity cannot be reached.", error=ConnectionResetError()),
    ],
)
def test_it_may_be_one_entitys_trouble(error: BaseException) -> None:
    assert not sdk.could_not_connect(error)


def test_an_error_that_the_application_handles_meanwhile_says_nothing() -> None:
    broken = ServiceBusConnectionError()
    broken.__context__ = ConnectionRefusedError()
    assert not sdk.could_not_connect(broken)
