"""OpenTelemetry spans for diverted sends, when `opentelemetry` is installed; nothing at all when it is not.

A diverted send is a span of its own, `pairbus divert`. Its context travels with the messages (W3C trace
parent, removed when they go home) so that the syphon can link the restoring to it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

_NOT_TRACED = contextlib.nullcontext(None)


def diverted_send(entity: str, count: int) -> contextlib.AbstractContextManager[str | None]:
    """A span around the send; yields the trace parent that its messages carry, if there is one."""
    api = _api()
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return _NOT_TRACED  # not installed, or nobody has asked for traces
    return _span(api, entity, count)


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
