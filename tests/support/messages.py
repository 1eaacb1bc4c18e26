"""Hypothesis strategies for messages, with every type of body, property and annotation that the SDK can encode."""

from __future__ import annotations

import datetime

from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import strategies as st

from pairbus import envelope

MOMENTS = st.datetimes(
    min_value=datetime.datetime(2000, 1, 1), max_value=datetime.datetime(2200, 1, 1), timezones=st.just(datetime.UTC)
).map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAMES = TEXTS.filter(lambda name: name not in envelope.RESERVED)
SCALARS = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.booleans(),
    st.floats(allow_nan=False),
    TEXTS,
    st.uuids(),
    MOMENTS,
)
TYPED = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda value: {"TYPE": "LONG", "VALUE": value}),
    st.integers(0, 2**64 - 1).map(lambda value: {"TYPE": "ULONG", "VALUE": value}),
    st.integers(0, 2**32 - 1).map(lambda value: {"TYPE": "UINT", "VALUE": value}),
    st.integers(0, 255).map(lambda value: {"TYPE": "UBYTE", "VALUE": value}),
)
# A map that spells out its type is taken for one wherever it stands but as the body itself: there the SDK encodes it as
# the map it looks like, in which an integer must fit into 32 bits.
VALUES = st.recursive(
    st.one_of(st.none(), SCALARS, st.binary(max_size=20), TYPED),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
BODIES = st.one_of(
    st.builds(
        lambda data: {"data_body": data},
        st.one_of(st.binary(max_size=300), st.lists(st.binary(max_size=50), min_size=1, max_size=3)),
    ),
    st.builds(lambda value: {"value_body": value}, VALUES.filter(lambda value: not _spells_out_a_type(value))),
    st.builds(lambda rows: {"sequence_body": rows}, st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=3)),
)


def _spells_out_a_type(value: object) -> bool:
    return isinstance(value, dict) and "TYPE" in value


@st.composite
def messages(draw: st.DrawFn, shortest_ttl_ms: int = 1) -> AmqpAnnotatedMessage:
    """Any message that an application can build with the SDK."""
    return AmqpAnnotatedMessage(
        **draw(BODIES),
        header={
            "time_to_live": draw(st.none() | st.integers(shortest_ttl_ms, 2**32 - 1)),
            "priority": draw(st.none() | st.integers(0, 9)),
        },
        properties={
            "message_id": draw(TEXTS.filter(bool)),
            "user_id": draw(st.none() | st.binary(max_size=10)),
            "to": draw(st.none() | TEXTS),
            "subject": draw(st.none() | TEXTS),
            "reply_to": draw(st.none() | TEXTS),
            "correlation_id": draw(st.none() | TEXTS),
            "content_type": draw(st.none() | st.sampled_from(["application/json", "text/plain"])),
            "content_encoding": draw(st.none() | st.just("utf-8")),
            "group_id": draw(st.none() | TEXTS),
            "group_sequence": draw(st.none() | st.integers(0, 2**32 - 1)),
            "reply_to_group_id": draw(st.none() | TEXTS),
        },
        application_properties=draw(st.dictionaries(NAMES, SCALARS | TYPED, max_size=4)),
        annotations=draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "x-opt-partition-key": TEXTS,
                    "x-opt-scheduled-enqueue-time": MOMENTS,
                    "my-annotation": SCALARS,
                },
            )
        ),
        footer=draw(st.none() | st.dictionaries(TEXTS.filter(str.isascii).filter(bool), SCALARS, max_size=2)),
    )
