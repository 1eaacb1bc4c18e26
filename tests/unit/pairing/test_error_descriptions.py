"""What the SDK's errors say about an entity, wrapped as the SDK wraps them."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus._pyamqp.error import AuthenticationException, ErrorCondition, TokenAuthFailure
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from pairbus.failover.classification import Verdict, verdict
from pairbus.pairing import sdk

ENDPOINTS = [None, "https://private.contoso.example"]
"""With an endpoint of its own, the SDK calls a refused token a broken connection."""


def judged(error: Exception, endpoint: str | None = None) -> Verdict:
    wrapped: Any = cast(Any, PyamqpTransport).create_servicebus_exception(
        logging.getLogger("sdk"), error, custom_endpoint_address=endpoint
    )
    return verdict(sdk.describe(wrapped))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, Verdict.DOES_NOT_COUNT), (404, Verdict.DOES_NOT_COUNT), (500, Verdict.COUNTS), (503, Verdict.COUNTS)],
)
def test_a_token_that_cannot_be_checked_is_an_outage_but_a_refused_one_is_not(
    status: int, expected: Verdict, endpoint: str | None
) -> None:
    refusal = cast(Any, TokenAuthFailure)(status, b"The service says no.")
    assert judged(refusal, endpoint) is expected


def test_a_credential_that_is_refused_for_good_does_not_count() -> None:
    assert judged(ClientAuthenticationError("AADSTS7000215: Invalid client secret.")) is Verdict.DOES_NOT_COUNT


def test_a_token_service_out_of_reach_counts() -> None:
    assert judged(ServiceRequestError("The token endpoint does not answer.")) is Verdict.COUNTS


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_host_that_web_sockets_cannot_resolve_counts(endpoint: str | None) -> None:
    websocket = pytest.importorskip("websocket")
    unknown = websocket.WebSocketAddressException("[Errno -2] Name or service not known")
    error = cast(Any, AuthenticationException)(ErrorCondition.ClientError, description=str(unknown), error=unknown)
    error.__cause__ = unknown
    assert judged(error, endpoint) is Verdict.COUNTS
