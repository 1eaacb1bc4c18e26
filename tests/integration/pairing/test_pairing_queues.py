"""Pairing: backlog queues are found, created with exact settings, reported; what cannot be made ready is named."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import AccessRights, AuthorizationRule
from tests.support.pairing import Shell, backlog_bodies, bodies, paired

from pairbus import PairedServiceBusClient, PairingError
from pairbus.testing.namespace import EmbeddedPair, embedded_pair

BACKLOG = "x-servicebus-transfer"
KEY = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IQ=="
LARGEST = timedelta(days=10675199)


def queues_of(pair: EmbeddedPair, name: str) -> list[str]:
    with pair.secondary.admin() as admin:
        return sorted(queue.name for queue in admin.list_queues() if queue.name.startswith(f"{name}/"))


def test_missing_queues_are_created_with_exactly_the_settings_of_the_feature(pair: EmbeddedPair, shell: Shell) -> None:
    name = f"created-{shell}"
    expected = tuple(f"{name}/{BACKLOG}/{index}" for index in range(10))
    with paired(pair, shell, primary_name=name, backlog_queue_count=10) as client:
        assert client.backlog_queues.created == expected
        assert client.backlog_queues.found == ()
        assert client.backlog_queues.in_rotation == expected
    assert queues_of(pair, name) == sorted(expected)
    with pair.secondary.admin() as admin:
        made, default = admin.get_queue(expected[0]), admin.create_queue(f"{name}-default")
    assert made.max_size_in_megabytes == 5120
    assert made.max_delivery_count == 2147483647
    assert made.lock_duration == timedelta(minutes=1)
    assert made.dead_lettering_on_message_expiration is True
    assert made.enable_batched_operations is True
    for setting in ("default_message_time_to_live", "auto_delete_on_idle"):
        value: Any = getattr(made, setting)
        assert value == "P10675199DT2H48M5.4775807S" or value >= LARGEST
    for setting in ("requires_session", "requires_duplicate_detection", "enable_partitioning", "forward_to"):
        assert getattr(made, setting) == getattr(default, setting)


def test_queues_that_exist_are_found_and_not_touched(
    pair: EmbeddedPair, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"found-{shell}"
    with pair.secondary.admin() as admin:
        admin.create_queue(f"{name}/{BACKLOG}/1", lock_duration=timedelta(seconds=30), max_delivery_count=5)
    with (
        caplog.at_level(logging.WARNING, "pairbus.pairing"),
        paired(pair, shell, primary_name=name, backlog_queue_count=3) as client,
    ):
        assert client.backlog_queues.found == (f"{name}/{BACKLOG}/1",)
        assert client.backlog_queues.created == (f"{name}/{BACKLOG}/0", f"{name}/{BACKLOG}/2")
        assert len(client.backlog_queues.in_rotation) == 3
    (warning,) = [record.message for record in caplog.records if f"{name}/{BACKLOG}/1" in record.message]
    assert "lock_duration" in warning
    assert "max_delivery_count is 5" in warning
    with pair.secondary.admin() as admin:
        assert admin.get_queue(f"{name}/{BACKLOG}/1").max_delivery_count == 5
    caplog.clear()
    with paired(pair, shell, primary_name=name, backlog_queue_count=1) as client:
        assert client.backlog_queues.created == ()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_each_queue_takes_two_round_trips_to_create_and_one_to_find(
    pair: EmbeddedPair, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    name, count = f"trips-{shell}", 4

    def requests() -> int:
        return sum(record.getMessage().count("Request URL:") for record in caplog.records)

    with caplog.at_level(logging.INFO, "azure.core.pipeline.policies.http_logging_policy"):
        with paired(pair, shell, primary_name=name, backlog_queue_count=count):
            assert requests() == 2 * count
        caplog.clear()
        with paired(pair, shell, primary_name=name, backlog_queue_count=count):
            assert requests() == count


def test_two_applications_with_different_counts_share_the_namespaces(pair: EmbeddedPair, shell: Shell) -> None:
    name = f"shared-{shell}"
    with pair.primary.admin() as admin:
        admin.create_queue(name)
    with (
        paired(pair, shell, primary_name=name, backlog_queue_count=5) as large,
        paired(pair, shell, primary_name=name, backlog_queue_count=2) as small,
    ):
        assert len(small.backlog_queues.found) == 2
        small.fail_over(name)
        senders = [small.get_queue_sender(name) for _ in range(6)]
        for sender in senders:
            sender.send_messages(ServiceBusMessage("from small"))
        assert {sender.backlog_queue for sender in senders} <= {f"{name}/{BACKLOG}/0", f"{name}/{BACKLOG}/1"}
        large.get_queue_sender(name).send_messages(ServiceBusMessage("from large"))
        assert bodies(pair.primary, name) == ["from large"]
        assert len(queues_of(pair, name)) == 5  # the extra ones are their owner's


def test_an_unreachable_primary_does_not_keep_from_pairing(tmp_path: Path, shell: Shell) -> None:
    with embedded_pair(tmp_path) as pair:
        pair.primary.stop()
        with paired(pair, shell, failover_interval=0, send_timeout=5) as client:
            sender = client.get_queue_sender("orders")
            with sender:
                sender.send_messages(ServiceBusMessage("kept"))
            assert backlog_bodies(client, pair) == ["kept"]


def test_an_unreachable_secondary_is_named(tmp_path: Path, shell: Shell) -> None:
    with embedded_pair(tmp_path) as pair:
        pair.secondary.stop()
        with (
            pytest.raises(PairingError, match=f"contoso/{BACKLOG}/0"),
            paired(pair, shell, send_timeout=5),
        ):
            pytest.fail("paired with a namespace that is down")


@pytest.mark.parametrize("rights", [[], [AccessRights.SEND, AccessRights.LISTEN]], ids=["wrong key", "no right"])
def test_a_credential_that_may_not_create_queues_is_named(
    pair: EmbeddedPair, shell: Shell, rights: list[str | AccessRights]
) -> None:
    if rights:
        rule = AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            rights=rights,
            key_name="sender",
            primary_key=KEY,
            secondary_key=KEY,
        )
        with pair.secondary.admin() as admin:
            admin.create_queue(f"limited-{shell}", authorization_rules=[rule])
    endpoint = pair.secondary.connection_string.partition(";")[0]
    poor = f"{endpoint};SharedAccessKeyName=sender;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
    with pytest.raises(PairingError, match=f"refused-{shell}/{BACKLOG}/0") as raised:
        PairedServiceBusClient.from_connection_strings(
            pair.primary.connection_string,
            poor,
            connection_verify=pair.secondary.ca_file,
            primary_name=f"refused-{shell}",
            send_timeout=5,
        )
    assert KEY not in str(raised.value)
    assert raised.value.cause is raised.value.__cause__
    assert queues_of(pair, f"refused-{shell}") == []


def test_the_paired_client_is_an_sdk_client_for_everything_but_senders(pair: EmbeddedPair) -> None:
    with pair.primary.admin() as admin:
        admin.create_queue("receiving")
        admin.create_topic("news")
        admin.create_subscription("news", "all")
    client = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string,
        pair.secondary.connection_string,
        connection_verify=pair.secondary.ca_file,
        primary_name="contoso",
        backlog_queue_count=1,
    )
    with client:
        assert isinstance(client, ServiceBusClient)
        assert client.fully_qualified_namespace == f"127.0.0.1:{pair.primary.port}"
        with client.get_queue_sender("receiving") as sender, client.get_topic_sender("news") as topic:
            sender.send_messages(ServiceBusMessage("one"))
            topic.send_messages(ServiceBusMessage("two"))
        with client.get_queue_receiver("receiving", max_wait_time=5) as receiver:
            (message,) = receiver.receive_messages(max_message_count=1)
            assert str(message) == "one"
            receiver.complete_message(message)
        with client.get_subscription_receiver("news", "all", max_wait_time=5) as receiver:
            (message,) = receiver.receive_messages(max_message_count=1)
            assert str(message) == "two"
            receiver.complete_message(message)


def test_options_given_as_values_and_by_name_mean_the_same(pair: EmbeddedPair) -> None:
    with paired(pair, "sync", primary_name="contoso", backlog_queue_count=1) as client:
        options = replace(client.options, backlog_queue_count=2)
        assert options.backlog_queue_count == 2
        assert options.secondary is client.secondary


def test_a_secondary_whose_amqp_does_not_answer_is_named(tmp_path: Path, shell: Shell) -> None:
    with embedded_pair(tmp_path) as pair:
        with paired(pair, shell, backlog_queue_count=2):
            pass
        pair.secondary.fault("error", condition="amqp:unauthorized-access", entity=f"contoso/{BACKLOG}/0")
        with pytest.raises(PairingError, match=f"contoso/{BACKLOG}/0"), paired(pair, shell, backlog_queue_count=2):
            pytest.fail("paired with a namespace that takes no messages")


@pytest.mark.parametrize("existing", [2, 1])
def test_where_the_queues_exist_the_rights_to_send_and_listen_are_enough(tmp_path: Path, existing: int) -> None:
    with embedded_pair(tmp_path) as pair:
        with paired(pair, "sync", backlog_queue_count=existing):
            pass
        with pair.secondary.admin() as admin:
            for index in range(existing):
                queue = admin.get_queue(f"contoso/{BACKLOG}/{index}")
                rights: list[str | AccessRights] = [AccessRights.SEND, AccessRights.LISTEN]
                queue.authorization_rules = [
                    AuthorizationRule(
                        type="SharedAccessAuthorizationRule",
                        rights=rights,
                        key_name="sender",
                        primary_key=KEY,
                        secondary_key=KEY,
                    )
                ]
                admin.update_queue(queue)
        endpoint = pair.secondary.connection_string.partition(";")[0]
        poor = f"{endpoint};SharedAccessKeyName=sender;SharedAccessKey={KEY};UseDevelopmentEmulator=true"

        def make() -> PairedServiceBusClient:
            return PairedServiceBusClient.from_connection_strings(
                pair.primary.connection_string,
                poor,
                connection_verify=pair.secondary.ca_file,
                primary_name="contoso",
                backlog_queue_count=2,
                send_timeout=10,
            )

        if existing < 2:
            with pytest.raises(PairingError, match=f"contoso/{BACKLOG}/1"):
                make()
            return
        with make() as client:
            client.fail_over("orders")
            client.get_queue_sender("orders").send_messages(ServiceBusMessage("kept"))
            assert backlog_bodies(client, pair) == ["kept"]
