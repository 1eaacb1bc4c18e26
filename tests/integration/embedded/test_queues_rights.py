"""Keys that really limit: Send, Listen and Manage, on the namespace and on one entity; wrong and expired ones."""

from __future__ import annotations

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    ServiceBusAdministrationClient,
)
from tests.support.sdk import Face, sdk_client
from tests.support.stage import Stage, receive_one

from pairbus.embedded.security import sign

KEYS: dict[str, list[str | AccessRights]] = {"sending": [AccessRights.SEND], "listening": [AccessRights.LISTEN]}


def _rules() -> list[AuthorizationRule]:
    return [
        AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            key_name=name,
            rights=rights,
            claim_type="SharedAccessKey",
            claim_value="None",
            primary_key=f"{name}-primary-key-0123456789012345678901234=",
            secondary_key=f"{name}-secondary-key-012345678901234567890123=",
        )
        for name, rights in KEYS.items()
    ]


def _string(stage: Stage, name: str, key: str, queue: str = "") -> str:
    endpoint = stage.namespace.connection_string.partition(";")[0]
    entity = f";EntityPath={queue}" if queue else ""
    return f"{endpoint};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true{entity}"


def test_an_entitys_keys_send_or_listen_and_only_there(stage: Stage, face: Face) -> None:
    queue, other = stage.queue(authorization_rules=_rules()), stage.queue()
    send, listen = (_string(stage, name, f"{name}-primary-key-0123456789012345678901234=") for name in KEYS)
    with (
        sdk_client(stage.namespace, face, connection_string=send, retry_total=0) as sending,
        sdk_client(stage.namespace, face, connection_string=listen, retry_total=0) as listening,
    ):
        sending.get_queue_sender(queue).send_messages(ServiceBusMessage("allowed"))
        receiver = listening.get_queue_receiver(queue)
        receiver.complete_message(receive_one(receiver))
        with pytest.raises(ServiceBusAuthorizationError):
            listening.get_queue_sender(queue).send_messages(ServiceBusMessage("refused"))
        with pytest.raises(ServiceBusError, match=r"Listen"):
            sending.get_queue_receiver(queue).receive_messages(1, max_wait_time=30)
        with pytest.raises(ServiceBusAuthenticationError):
            sending.get_queue_sender(other).send_messages(ServiceBusMessage("another queue"))
    assert stage.counts(queue) == stage.counts(other) == (0, 0, 0)


def test_management_operations_need_their_right(stage: Stage, face: Face) -> None:
    queue = stage.queue(authorization_rules=_rules())
    send, listen = (_string(stage, name, f"{name}-secondary-key-012345678901234567890123=") for name in KEYS)
    with (
        sdk_client(stage.namespace, face, connection_string=send, retry_total=0) as sending,
        sdk_client(stage.namespace, face, connection_string=listen, retry_total=0) as listening,
    ):
        sender = sending.get_queue_sender(queue)
        (number,) = sender.schedule_messages(ServiceBusMessage("later"), stage.utc(60))
        receiver = listening.get_queue_receiver(queue)
        assert [message.sequence_number for message in receiver.peek_messages(1)] == [number]
    with (
        ServiceBusAdministrationClient.from_connection_string(
            listen, connection_verify=stage.namespace.ca_file
        ) as admin,
        pytest.raises(HttpResponseError) as refused,
    ):
        admin.create_queue("not-by-me")
    assert refused.value.status_code == 401


def test_wrong_keys_wrong_names_and_old_tokens_are_refused(stage: Stage, face: Face) -> None:
    queue = stage.queue()
    for text in (
        _string(stage, "RootManageSharedAccessKey", "d3Jvbmc="),
        _string(stage, "nobody", "d3Jvbmc="),
    ):
        with (
            sdk_client(stage.namespace, face, connection_string=text, retry_total=0) as client,
            pytest.raises(ServiceBusAuthenticationError),
        ):
            client.get_queue_sender(queue).send_messages(ServiceBusMessage("refused"))
    assert stage.counts(queue) == (0, 0, 0)


def test_a_token_of_ones_own_works_until_it_expires(stage: Stage) -> None:
    queue = stage.queue()
    parts = dict(part.partition("=")[::2] for part in stage.namespace.connection_string.split(";") if part)
    host = parts["Endpoint"].removeprefix("sb://").rstrip("/")
    now = stage.clock.now_ms() // 1000
    names = parts["SharedAccessKeyName"], parts["SharedAccessKey"]
    good, old = (sign(f"sb://{host}/{queue}", *names, now + lasting) for lasting in (1000, -10))
    for token, is_good in ((good, True), (old, False)):
        text = f"Endpoint={parts['Endpoint']};SharedAccessSignature={token};UseDevelopmentEmulator=true"
        with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
            sender = client.get_queue_sender(queue)
            if is_good:
                sender.send_messages(ServiceBusMessage("signed"))
            else:
                with pytest.raises(ServiceBusAuthenticationError):
                    sender.send_messages(ServiceBusMessage("too late"))
    assert stage.counts(queue) == (1, 0, 0)
