"""Options: defaults, ranges, and errors that name the option, the value and the range."""

from __future__ import annotations

import traceback
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from pairbus import PairedServiceBusClient, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.options import backlog_path


def options(**chosen: Any) -> SendAvailabilityPairedNamespaceOptions[None, None]:
    return SendAvailabilityPairedNamespaceOptions(None, None, **chosen)


def test_the_defaults_are_those_of_the_feature() -> None:
    made = options()
    assert (made.backlog_queue_count, made.recovery_pings) == (10, 1)
    assert (made.failover_interval, made.ping_primary_interval) == (60, 60)
    assert (made.syphon_retry_interval, made.send_timeout) == (1, 60)
    assert (made.enable_syphon, made.divert_during_interval) == (False, False)
    assert made.backlog_time_to_live == "restore"
    assert made.spool_limit_bytes == 1024 * 1024 * 1024
    assert (made.primary_name, made.causes_failover, made.spool, made.ledger) == (None, None, None, None)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("backlog_queue_count", 0, "1 or more"),
        ("backlog_queue_count", 1.5, "1 or more"),
        ("backlog_queue_count", True, "1 or more"),
        ("failover_interval", -1, "0 to 60 minutes"),
        ("failover_interval", 3600.001, "0 to 60 minutes"),
        ("failover_interval", timedelta(hours=2), "0 to 60 minutes"),
        ("failover_interval", "1 min", "0 to 60 minutes"),
        ("failover_interval", float("nan"), "0 to 60 minutes"),
        ("ping_primary_interval", 0.999, "1 second to 30 minutes"),
        ("ping_primary_interval", timedelta(minutes=31), "1 second to 30 minutes"),
        ("syphon_retry_interval", 0, "1 second to 2 minutes"),
        ("syphon_retry_interval", 121, "1 second to 2 minutes"),
        ("recovery_pings", 0, "1 or more"),
        ("send_timeout", 0, "more than 0"),
        ("send_timeout", None, "more than 0"),
        ("send_timeout", float("inf"), "at most 24 hours"),
        ("send_timeout", timedelta(days=2), "at most 24 hours"),
        ("spool_limit_bytes", 0, "1 or more"),
        ("spool_limit_bytes", 1e9, "1 or more"),
        ("spool_limit_bytes", "1 GiB", "1 or more"),
        ("enable_syphon", "yes", "True or False"),
        ("divert_during_interval", 1, "True or False"),
        ("backlog_time_to_live", "keep", "'restore' or 'deduct'"),
        ("causes_failover", "always", "a callable"),
        ("primary_name", "", "path segment"),
        ("primary_name", "a/b", "path segment"),
        ("primary_name", ".hidden", "path segment"),
        ("primary_name", "x" * 51, "path segment"),
        ("spool", 7, "folder"),
        ("ledger", 7, "folder"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name_value_and_range(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError) as raised:
        options(**{name: value})
    assert name in str(raised.value)
    assert repr(value) in str(raised.value)
    assert allowed in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("failover_interval", 0),
        ("failover_interval", timedelta(minutes=60)),
        ("ping_primary_interval", 1),
        ("ping_primary_interval", 1800),
        ("syphon_retry_interval", 120),
        ("send_timeout", 0.001),
        ("send_timeout", timedelta(hours=24)),
        ("spool_limit_bytes", 1),
        ("backlog_queue_count", 1000),
        ("primary_name", "contoso-1.eu_2"),
    ],
)
def test_the_ends_of_a_range_belong_to_it(name: str, value: Any) -> None:
    made = options(**{name: value})
    expected = value.total_seconds() if isinstance(value, timedelta) else value
    assert getattr(made, name) == expected


def test_options_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        options().send_timeout = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("contoso.servicebus.windows.net", "contoso"),
        ("contoso.servicebus.localhost:5672", "contoso"),
        ("contoso", "contoso"),
    ],
)
def test_the_primary_is_named_after_its_host(host: str, name: str) -> None:
    assert options().name_of_primary(host) == name


@pytest.mark.parametrize("host", ["localhost", "localhost:5672", "127.0.0.1:5672", "10.1.2.3", "[::1]:5672"])
def test_a_host_without_a_name_needs_the_option(host: str) -> None:
    with pytest.raises(ValueError, match="primary_name") as raised:
        options().name_of_primary(host)
    assert host in str(raised.value)
    assert options(primary_name="contoso").name_of_primary(host) == "contoso"


def test_the_path_of_a_backlog_queue() -> None:
    assert backlog_path("contoso", 0) == "contoso/x-servicebus-transfer/0"


def test_an_unknown_option_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(TypeError, match="failover_intervall"):
        PairedServiceBusClient.from_connection_strings("", "", failover_intervall=1)


def test_a_bad_option_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ValueError, match="recovery_pings"):
        PairedServiceBusClient.from_connection_strings("", "", recovery_pings=-1)


@pytest.mark.parametrize(
    "junk", ["", "topsecret", "Endpoint=sb://;SharedAccessKeyName=a;SharedAccessKey=topsecret", None]
)
def test_a_connection_string_that_is_none_is_named_and_not_shown(junk: Any) -> None:
    good = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
    for which, given in (("primary", (junk, good)), ("secondary", (good, junk))):
        with pytest.raises(ValueError, match=f"^{which} is not the connection string") as raised:
            PairedServiceBusClient.from_connection_strings(*given)
        assert "topsecret" not in "".join(traceback.format_exception(raised.value))


def test_a_namespace_is_not_paired_with_itself() -> None:
    key = "SharedAccessKeyName=a;SharedAccessKey=b"
    with pytest.raises(ValueError, match=r"are the same namespace, 'contoso.servicebus.windows.net'. Use another"):
        PairedServiceBusClient.from_connection_strings(
            f"Endpoint=sb://contoso.servicebus.windows.net/;{key}",
            f"Endpoint=sb://Contoso.servicebus.windows.net;{key}",
        )
