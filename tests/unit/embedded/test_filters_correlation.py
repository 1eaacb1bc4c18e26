"""Correlation filters: equality of everything they name."""

from datetime import UTC, datetime, timedelta

import pytest

from pairbus.amqp.types import Described, Float, Int, Symbol, Timestamp, ULong
from pairbus.embedded.entities.descriptions import CorrelationFilter
from pairbus.embedded.entities.filters import MessageProperties, compile_filter

SYSTEM = {
    "CorrelationId": "c",
    "MessageId": "m",
    "To": "t",
    "ReplyTo": "r",
    "Label": "Order",
    "SessionId": "s",
    "ReplyToSessionId": "rs",
    "ContentType": "text/plain",
}
APPLICATION = {
    "Color": "red",
    "int": Int(2),
    "ulong": ULong(2),
    "single": Float(2.0),
    "flag": False,
    "when": Timestamp(1_000),
    "span": Described(Symbol("com.microsoft:timespan"), 10_000_000),
    "list": [1],
    "nothing": None,
}


def takes(wanted: CorrelationFilter) -> bool:
    return compile_filter(wanted)(MessageProperties(SYSTEM, lambda: APPLICATION))


@pytest.mark.parametrize(
    "wanted",
    [
        CorrelationFilter(correlation_id="c"),
        CorrelationFilter(message_id="m"),
        CorrelationFilter(to="t"),
        CorrelationFilter(reply_to="r"),
        CorrelationFilter(label="Order"),
        CorrelationFilter(session_id="s"),
        CorrelationFilter(reply_to_session_id="rs"),
        CorrelationFilter(content_type="text/plain"),
        CorrelationFilter("c", "m", "t", "r", "Order", "s", "rs", "text/plain", {"color": "red"}),
        CorrelationFilter(properties={"COLOR": "red"}),
        CorrelationFilter(properties={"int": 2, "ulong": 2, "single": 2}),
        CorrelationFilter(properties={"int": 2.0, "single": 2.0}),
        CorrelationFilter(properties={"flag": False}),
        CorrelationFilter(properties={"when": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}),
        CorrelationFilter(properties={"span": timedelta(seconds=1)}),
    ],
)
def test_what_is_equal_is_taken(wanted: CorrelationFilter) -> None:
    assert takes(wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        CorrelationFilter(correlation_id="C"),
        CorrelationFilter(message_id="x"),
        CorrelationFilter(to="x"),
        CorrelationFilter(reply_to="x"),
        CorrelationFilter(label="order"),
        CorrelationFilter(session_id="x"),
        CorrelationFilter(reply_to_session_id="x"),
        CorrelationFilter(content_type="x"),
        CorrelationFilter(label="Order", properties={"color": "blue"}),
        CorrelationFilter(label="x", properties={"color": "red"}),
        CorrelationFilter(properties={"color": "Red"}),
        CorrelationFilter(properties={"missing": "x"}),
        CorrelationFilter(properties={"nothing": ""}),
        CorrelationFilter(properties={"int": "2"}),
        CorrelationFilter(properties={"int": 3}),
        CorrelationFilter(properties={"flag": 0}),
        CorrelationFilter(properties={"list": 1}),
        CorrelationFilter(properties={"when": 1_000}),
    ],
)
def test_what_differs_is_not_taken(wanted: CorrelationFilter) -> None:
    assert not takes(wanted)


def test_a_property_that_is_not_set_equals_nothing() -> None:
    assert not compile_filter(CorrelationFilter(session_id=""))(MessageProperties({}))
