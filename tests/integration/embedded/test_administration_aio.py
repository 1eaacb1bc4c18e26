"""The SDK's asynchronous administration client: the same answers through its other transport."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import CorrelationRuleFilter

from pairbus.testing import EmbeddedNamespace

Work = Callable[[ServiceBusAdministrationClient], Awaitable[None]]


@pytest.fixture(scope="module")
def namespace() -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace("contoso") as running:
        yield running


def run(namespace: EmbeddedNamespace, work: Work) -> None:
    async def main() -> None:
        client = ServiceBusAdministrationClient.from_connection_string(
            namespace.connection_string, connection_verify=namespace.ca_file
        )
        async with client:
            await work(client)

    asyncio.run(main())


def test_queues(namespace: EmbeddedNamespace) -> None:
    async def work(admin: ServiceBusAdministrationClient) -> None:
        await admin.create_queue("a/b", lock_duration="PT13S")
        queue = await admin.get_queue("a/b")
        assert queue.lock_duration == timedelta(seconds=13)
        await admin.update_queue(queue, max_delivery_count=3)
        assert (await admin.get_queue("a/b")).max_delivery_count == 3
        with pytest.raises(ResourceExistsError):
            await admin.create_queue("a/b")
        with pytest.raises(HttpResponseError, match="LockDuration is P25D"):
            await admin.update_queue(queue, lock_duration=timedelta(days=25))
        for number in range(5):
            await admin.create_queue(f"q{number}")
        names = [found.name async for found in admin.list_queues(max_page_size=2)]
        assert names == ["a/b", "q0", "q1", "q2", "q3", "q4"]
        assert (await admin.get_queue_runtime_properties("q0")).total_message_count == 0
        for name in names:
            await admin.delete_queue(name)
        with pytest.raises(ResourceNotFoundError):
            await admin.delete_queue("a/b")
        assert (await admin.get_namespace_properties()).name == "contoso"

    run(namespace, work)


def test_topics_subscriptions_and_rules(namespace: EmbeddedNamespace) -> None:
    async def work(admin: ServiceBusAdministrationClient) -> None:
        await admin.create_topic("events")
        await admin.create_subscription("events", "all")
        await admin.create_rule("events", "all", "rule", filter=CorrelationRuleFilter(correlation_id="c"))
        rule = await admin.get_rule("events", "all", "rule")
        assert isinstance(rule.filter, CorrelationRuleFilter)
        assert [found.name async for found in admin.list_rules("events", "all")] == ["$Default", "rule"]
        assert [found.name async for found in admin.list_subscriptions("events")] == ["all"]
        counted = await admin.get_topic_runtime_properties("events")
        assert (counted.sql_filter_count, counted.correlation_filter_count) == (1, 1)
        await admin.delete_rule("events", "all", "rule")
        await admin.delete_subscription("events", "all")
        await admin.delete_topic("events")
        assert [found.name async for found in admin.list_topics()] == []

    run(namespace, work)
