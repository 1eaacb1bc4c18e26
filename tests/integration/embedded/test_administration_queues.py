"""Queues through the SDK's administration client: what is set comes back, what the service refuses raises its
exceptions.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    ServiceBusAdministrationClient,
)

from pairbus.testing import EmbeddedNamespace

LARGEST = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477581)


@pytest.fixture(scope="module")
def namespace() -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace("contoso") as running:
        yield running


@pytest.fixture
def admin(namespace: EmbeddedNamespace) -> Iterator[ServiceBusAdministrationClient]:
    with namespace.admin() as client:
        yield client
        for queue in list(client.list_queues()):
            client.delete_queue(queue.name)
        for topic in list(client.list_topics()):
            client.delete_topic(topic.name)


def test_a_new_queue_has_the_services_defaults(admin: ServiceBusAdministrationClient) -> None:
    for queue in (admin.create_queue("orders"), admin.get_queue("orders")):
        assert queue.name == "orders"
        assert queue.lock_duration == timedelta(minutes=1)
        assert queue.max_size_in_megabytes == 1024
        assert queue.max_delivery_count == 10
        assert queue.default_message_time_to_live == LARGEST
        assert queue.auto_delete_on_idle == LARGEST
        assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)
        assert queue.status == "Active"
        assert queue.availability_status == "Available"
        assert queue.enable_batched_operations is True
        assert queue.max_message_size_in_kilobytes == 256
        for name in (
            "requires_session",
            "requires_duplicate_detection",
            "dead_lettering_on_message_expiration",
            "enable_express",
            "enable_partitioning",
        ):
            assert queue[name] is False
        assert queue.forward_to is None
        assert queue.user_metadata is None


def test_a_backlog_queue_comes_back_as_it_was_asked_for(admin: ServiceBusAdministrationClient) -> None:
    name = "contoso/x-servicebus-transfer/0"
    admin.create_queue(
        name,
        max_size_in_megabytes=5120,
        max_delivery_count=2147483647,
        default_message_time_to_live="P10675199DT2H48M5.4775807S",
        auto_delete_on_idle="P10675199DT2H48M5.4775807S",
        lock_duration=timedelta(minutes=1),
        dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
    )
    queue = admin.get_queue(name)
    assert queue.name == name
    assert queue.max_size_in_megabytes == 5120
    assert queue.max_delivery_count == 2147483647
    assert queue.default_message_time_to_live == LARGEST
    assert queue.dead_lettering_on_message_expiration is True
    assert [found.name for found in admin.list_queues()] == [name]


def test_every_setting_can_be_created_and_updated(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("target")
    queue = admin.create_queue(
        "orders",
        requires_session=True,
        enable_partitioning=True,
        enable_express=True,
        user_metadata="<owner> & co",
        forward_dead_lettered_messages_to="target",
    )
    assert queue.user_metadata == "<owner> & co"
    assert str(queue.forward_dead_lettered_messages_to).endswith("/target")
    admin.update_queue(
        queue,
        auto_delete_on_idle="PT10M1S",
        default_message_time_to_live=timedelta(minutes=11),
        duplicate_detection_history_time_window="PT12M3S",
        lock_duration="PT13S",
        max_delivery_count=14,
        max_size_in_megabytes=3072,
        enable_express=False,
        dead_lettering_on_message_expiration=True,
        enable_batched_operations=False,
        forward_to="target",
        forward_dead_lettered_messages_to=None,
        user_metadata=None,
        status="SendDisabled",
    )
    queue = admin.get_queue("ORDERS")
    assert queue.auto_delete_on_idle == timedelta(minutes=10, seconds=1)
    assert queue.default_message_time_to_live == timedelta(minutes=11)
    assert queue.duplicate_detection_history_time_window == timedelta(minutes=12, seconds=3)
    assert queue.lock_duration == timedelta(seconds=13)
    assert queue.max_delivery_count == 14
    assert queue.max_size_in_megabytes == 3072
    assert queue.enable_express is False
    assert queue.requires_session is True
    assert queue.enable_partitioning is True
    assert queue.dead_lettering_on_message_expiration is True
    assert queue.enable_batched_operations is False
    assert str(queue.forward_to).endswith("/target")
    assert queue.forward_dead_lettered_messages_to is None
    assert queue.user_metadata is None
    assert queue.status == "SendDisabled"


def test_an_update_of_what_was_read_changes_nothing(admin: ServiceBusAdministrationClient) -> None:
    queue = admin.create_queue("orders", requires_duplicate_detection=True)
    admin.update_queue(queue)
    assert dict(admin.get_queue("orders")) == dict(queue)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lock_duration": timedelta(days=25)}, "LockDuration is P25D"),
        ({"lock_duration": "P1M"}, "LockDuration: 'P1M' is not a duration"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount is 0"),
        ({"max_size_in_megabytes": 1}, "MaxSizeInMegabytes is 1"),
        ({"auto_delete_on_idle": timedelta(minutes=4)}, "AutoDeleteOnIdle is PT4M"),
        ({"duplicate_detection_history_time_window": timedelta(days=8)}, "DuplicateDetectionHistoryTimeWindow is P8D"),
        ({"default_message_time_to_live": timedelta(0)}, "DefaultMessageTimeToLive is PT0S"),
        ({"user_metadata": "x" * 1025}, "UserMetadata has 1025 characters"),
        ({"max_message_size_in_kilobytes": 1024}, "MaxMessageSizeInKilobytes is 1024"),
        ({"forward_to": "nowhere"}, "ForwardTo names 'nowhere'"),
        ({"enable_express": True, "requires_duplicate_detection": True}, "cannot be enabled together"),
    ],
    ids=str,
)
def test_the_service_refuses_what_is_out_of_range(
    admin: ServiceBusAdministrationClient, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(HttpResponseError) as refused:
        admin.create_queue("orders", **options)
    assert refused.value.status_code == 400
    assert words in str(refused.value.message)
    assert "SubCode=40000" in str(refused.value.message)
    assert list(admin.list_queues()) == []


@pytest.mark.parametrize("name", ["", "a b", "q" * 261, "-q", "t/Subscriptions/s?", "$q"])
def test_bad_names_are_refused(admin: ServiceBusAdministrationClient, name: str) -> None:
    with pytest.raises(HttpResponseError):
        admin.create_queue(name)
    with pytest.raises(HttpResponseError):
        admin.get_queue(name)


def test_what_creation_fixed_cannot_be_updated(admin: ServiceBusAdministrationClient) -> None:
    queue = admin.create_queue("orders")
    with pytest.raises(HttpResponseError, match="RequiresSession of 'orders' is false"):
        admin.update_queue(queue, requires_session=True)
    with pytest.raises(HttpResponseError, match="LockDuration"):
        admin.update_queue(queue, lock_duration=timedelta(days=25))


def test_existing_and_missing_queues(admin: ServiceBusAdministrationClient) -> None:
    queue = admin.create_queue("orders")
    with pytest.raises(ResourceExistsError):
        admin.create_queue("Orders")
    with pytest.raises(ResourceExistsError):
        admin.create_topic("orders")
    admin.delete_queue("orders")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_queue("orders")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("orders")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue_runtime_properties("orders")
    with pytest.raises(HttpResponseError):
        admin.update_queue(queue)


def test_a_topic_is_not_a_queue(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("events")
    with pytest.raises(AttributeError):
        admin.get_queue("events")  # the SDK finds no queue in the entry


def test_lists_come_in_pages_sorted_by_name(admin: ServiceBusAdministrationClient) -> None:
    names = [f"queue-{number:03}" for number in range(205)]
    for name in reversed(names):
        admin.create_queue(name)
    assert [queue.name for queue in admin.list_queues()] == names
    assert [queue.name for queue in admin.list_queues(max_page_size=7)] == names
    assert [queue.name for queue in admin.list_queues(start_index=200)] == names[200:]
    assert len(list(admin.list_queues_runtime_properties())) == 205


def test_runtime_properties_count_messages(namespace: EmbeddedNamespace, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("orders")
    empty = admin.get_queue_runtime_properties("orders")
    assert (empty.total_message_count, empty.size_in_bytes) == (0, 0)
    assert empty.created_at_utc is not None
    assert empty.updated_at_utc is not None
    assert empty.accessed_at_utc is not None
    with namespace.client() as client, client.get_queue_sender("orders") as sender:
        sender.send_messages([ServiceBusMessage(b"x" * 1000) for _ in range(3)])
        with client.get_queue_receiver("orders") as receiver:
            (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
            receiver.dead_letter_message(message)
        counted = admin.get_queue_runtime_properties("orders")
    assert counted.active_message_count == 2
    assert counted.dead_letter_message_count == 1
    assert counted.total_message_count == 3
    assert counted.scheduled_message_count == 0
    assert counted.transfer_message_count == 0
    assert counted.transfer_dead_letter_message_count == 0
    assert counted.size_in_bytes is not None
    assert counted.size_in_bytes >= 3000


def rule(name: str, *rights: AccessRights, keys: tuple[str | None, str | None] = (None, None)) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        key_name=name,
        rights=list(rights),
        primary_key=keys[0],
        secondary_key=keys[1],
    )


def test_authorization_rules_keep_their_keys_and_get_missing_ones(admin: ServiceBusAdministrationClient) -> None:
    rules = [rule("sender", AccessRights.SEND, keys=("one", "two")), rule("reader", AccessRights.LISTEN)]
    admin.create_queue("orders", authorization_rules=rules)
    queue = admin.get_queue("orders")
    assert queue.authorization_rules is not None
    sender, reader = queue.authorization_rules
    assert (sender.key_name, sender.rights) == ("sender", ["Send"])
    assert (sender.primary_key, sender.secondary_key) == ("one", "two")
    assert (reader.key_name, reader.rights) == ("reader", ["Listen"])
    assert reader.primary_key
    assert reader.primary_key != reader.secondary_key
    queue.authorization_rules = [rule("reader", AccessRights.LISTEN)]
    admin.update_queue(queue)
    after = admin.get_queue("orders").authorization_rules
    assert after is not None
    assert [found.primary_key for found in after] == [reader.primary_key]


def with_key(namespace: EmbeddedNamespace, name: str, key: str) -> str:
    endpoint = namespace.connection_string.partition(";")[0]
    return f"{endpoint};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"


def test_an_entitys_key_manages_that_entity_only(
    namespace: EmbeddedNamespace, admin: ServiceBusAdministrationClient
) -> None:
    manage = (AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN)
    admin.create_queue(
        "orders",
        authorization_rules=[
            rule("owner", *manage, keys=("owner-key", "other")),
            rule("sender", AccessRights.SEND, keys=("sender-key", "other")),
        ],
    )
    admin.create_queue("invoices")
    options = {"connection_verify": namespace.ca_file}
    owner_string = with_key(namespace, "owner", "owner-key")
    with ServiceBusAdministrationClient.from_connection_string(owner_string, **options) as owner:
        queue = owner.get_queue("orders")
        owner.update_queue(queue, max_delivery_count=3)
        with pytest.raises(ClientAuthenticationError):
            owner.get_queue("invoices")
        with pytest.raises(ClientAuthenticationError):
            owner.create_queue("another")
        with pytest.raises(ClientAuthenticationError):
            list(owner.list_queues())
        with pytest.raises(ClientAuthenticationError):
            owner.update_queue(queue, forward_to="invoices")
    sender_string = with_key(namespace, "sender", "sender-key")
    with (
        ServiceBusAdministrationClient.from_connection_string(sender_string, **options) as sender,
        pytest.raises(ClientAuthenticationError, match="Manage claim is required"),
    ):
        sender.get_queue("orders")
    assert admin.get_queue("orders").max_delivery_count == 3


@pytest.mark.parametrize(("name", "key"), [("RootManageSharedAccessKey", "wrong"), ("invalid", "invalid")])
def test_wrong_keys_are_refused(namespace: EmbeddedNamespace, name: str, key: str) -> None:
    string = with_key(namespace, name, key)
    options = {"connection_verify": namespace.ca_file}
    with (
        ServiceBusAdministrationClient.from_connection_string(string, **options) as client,
        pytest.raises(ClientAuthenticationError, match="invalid signature"),
    ):
        list(client.list_queues())


@pytest.mark.parametrize("version", list(ApiVersion))
def test_every_api_version_of_the_sdk_works(namespace: EmbeddedNamespace, version: ApiVersion) -> None:
    with namespace.admin(api_version=version) as client:
        client.create_queue("versioned")
        queue = client.get_queue("versioned")
        client.update_queue(queue, max_delivery_count=7)
        assert client.get_queue("versioned").max_delivery_count == 7
        assert [found.name for found in client.list_queues()] == ["versioned"]
        with pytest.raises(HttpResponseError):
            client.create_queue("too-large", max_message_size_in_kilobytes=1024)
        client.delete_queue("versioned")


def test_namespace_properties(admin: ServiceBusAdministrationClient) -> None:
    properties = admin.get_namespace_properties()
    assert properties.name == "contoso"
    assert properties.messaging_sku == "Standard"
    assert properties.created_at_utc is not None


def test_settings_survive_a_restart(namespace: EmbeddedNamespace, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("orders", lock_duration="PT13S", authorization_rules=[rule("app", AccessRights.SEND)])
    before = dict(admin.get_queue("orders"))
    namespace.restart()
    with namespace.admin() as again:
        after = dict(again.get_queue("orders"))
    keys = [found.primary_key for found in before.pop("authorization_rules")]
    assert [found.primary_key for found in after.pop("authorization_rules")] == keys
    assert after == before
