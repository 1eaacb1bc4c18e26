"""OpenTelemetry spans for diverted sends and their restoring, where `opentelemetry` is installed; else nothing.

A diverted send is a span of its own, `pairbus divert`. Its context travels with the messages (W3C trace parent, removed
when they go home), and the syphon's `pairbus restore` span links to the spans of all the messages it carried.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

_NOT_TRACED = contextlib.nullcontext(None)


def diverted_send(entity: str, count: int) -> contextlib.AbstractContextManager[str | None]:
    """A span around the send; yields the trace parent that its messages carry, if there is one."""
    return _span(_api(), entity, count) if is_on() else _NOT_TRACED


def is_on() -> bool:
    """Whether anybody wants traces: the library is installed, and the application has set a provider."""
    api = _api()
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def restored_send(
    entity: str, count: int, trace_parents: Iterable[str | None], seconds: float, error: str | None
) -> None:
    """A span for a send home that has just ended, linked to the diverted sends its messages come from."""
    api = _api()
    contexts = {parent: _context(api, parent) for parent in trace_parents if parent is not None}
    links = [api.Link(context) for context in contexts.values() if context is not None][:MAX_LINKS]
    attributes = {
        "messaging.system": "servicebus",
        "messaging.operation.type": "send",
        "messaging.destination.name": entity,
        "messaging.batch.message_count": count,
        "pairbus.route": "syphon",
    }
    ended_ns = time.time_ns()
    span = api.get_tracer("pairbus").start_span(
        "pairbus restore",
        kind=api.SpanKind.PRODUCER,
        attributes=attributes,
        links=links,
        start_time=ended_ns - round(seconds * 1e9),
    )
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(api.StatusCode.ERROR)
    span.end(ended_ns)


_TRACE_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
MAX_LINKS = 128


def _context(api: Any, trace_parent: str) -> Any:
    found = _TRACE_PARENT.fullmatch(trace_parent)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=api.TraceFlags(flags))


@contextlib.contextmanager
def _span(api: Any, entity: str, count: int) -> Iterator[str | None]:
    tracer = api.get_tracer("pairbus")
    attributes = {
        "messaging.system": "servicebus",
        "messaging.operation.type": "send",
        "messaging.destination.name": entity,
        "messaging.batch.message_count": count,
        "pairbus.route": "backlog",
    }
    with tracer.start_as_current_span("pairbus divert", kind=api.SpanKind.PRODUCER, attributes=attributes) as span:
        context = span.get_span_context()
        if not context.is_valid:
            yield None
            return
        flags = int(context.trace_flags)
        yield f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


@functools.cache
def _api() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace
