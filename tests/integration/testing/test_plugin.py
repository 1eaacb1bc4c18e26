"""The pytest plugin, used as a stranger's test suite uses it."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from pairbus.testing import Outage

BEGUN = []


def send(namespace, queue):
    with namespace.client(retry_total=0) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("hello"))


@pytest.fixture(autouse=True)
def queues(pairbus_pair):
    with pairbus_pair.primary.admin() as admin:
        admin.create_queue("orders")
        admin.create_queue("invoices")


def test_begin_and_end(pairbus_pair, outage):
    assert isinstance(outage, Outage) and not outage.is_on
    outage.begin()
    assert outage.is_on and "contoso:all of it" in repr(outage)
    with pytest.raises(ServiceBusError):
        send(pairbus_pair.primary, "orders")
    outage.end()
    outage.end()
    send(pairbus_pair.primary, "orders")


def test_one_entity_for_a_block(pairbus_pair, outage):
    with outage.begin("orders", mode="error", condition="amqp:internal-error"):
        with pytest.raises(ServiceBusError):
            send(pairbus_pair.primary, "orders")
        send(pairbus_pair.primary, "invoices")
    send(pairbus_pair.primary, "orders")


def test_both_at_once(pairbus_pair, outage):
    outage.begin(entity="orders", mode="slow", delay=0.01)
    outage.begin(secondary=True)
    assert pairbus_pair.primary.faults() == [{"mode": "slow", "entity": "orders", "delay_ms": 10}]
    assert pairbus_pair.secondary.faults() == [{"mode": "refuse"}]
    outage.end()
    assert pairbus_pair.primary.faults() == pairbus_pair.secondary.faults() == []


@pytest.fixture
def looking_back(pairbus_pair):
    yield
    assert pairbus_pair.primary.faults() == BEGUN, "the outage outlived its test"


def test_it_ends_with_the_test(looking_back, outage):
    outage.begin("orders", mode="hang")


def test_a_mode_that_does_not_exist(outage):
    with pytest.raises(Exception, match="unknown"):
        outage.begin(mode="sulk")
    assert not outage.is_on
"""

PROCESSES = """
def test_a_killed_namespace_has_no_outage_left(pairbus_process_pair, outage):
    outage.begin("orders")
    assert pairbus_process_pair.primary.faults() != []
    pairbus_process_pair.primary.kill()
    outage.end()
"""


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SUITE, test_processes=PROCESSES)
    done = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=6)


def test_the_fixtures_are_described(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest_subprocess("--fixtures")
    done.stdout.fnmatch_lines_random(
        [
            "outage -- *",
            "    An outage of `pairbus_process_pair` if the test uses that fixture, else of `pairbus_pair`.",
            "pairbus_pair -- *",
            "pairbus_process_pair -- *",
        ]
    )
