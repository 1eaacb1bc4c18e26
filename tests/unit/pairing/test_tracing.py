"""A diverted send is a span of its own, and its messages carry the way back to it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

SCRIPT = textwrap.dedent(
    """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from pairbus.pairing.observers import diverted_send

    with diverted_send("orders", 1) as nobody_asked:
        assert nobody_asked is None

    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("app").start_as_current_span("order placed"), diverted_send("orders", 3) as parent:
        pass
    divert, placed = spans.get_finished_spans()
    assert divert.name == "pairbus divert"
    assert divert.attributes["pairbus.route"] == "backlog"
    assert divert.attributes["messaging.destination.name"] == "orders"
    assert divert.attributes["messaging.batch.message_count"] == 3
    assert divert.parent.span_id == placed.context.span_id
    flags = int(divert.context.trace_flags)
    assert flags & 1
    assert parent == f"00-{divert.context.trace_id:032x}-{divert.context.span_id:016x}-{flags:02x}"
    """
)


def test_a_diverted_send_is_a_span_whose_context_travels_with_the_messages() -> None:
    """In a process of its own: the provider of traces is the process's and can be set only once."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


RESTORING = textwrap.dedent(
    """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from pairbus import envelope
    from pairbus.amqp.codec import encode
    from pairbus.pairing.observers import diverted_send
    from pairbus.syphon.deliveries import Item
    from pairbus.syphon.outcomes import Logbook
    from pairbus.syphon.transport import SendError, SendFailure

    raw = b"\\x00\\x53\\x75" + encode(b"an order")
    book = Logbook("q", "contoso", "standby")
    book.sent("orders", [Item("orders", 1, (), envelope.inspect(envelope.to_backlog(raw, "orders")))], None, 0.5)

    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    with diverted_send("orders", 1) as parent:
        pass
    forms = [envelope.to_backlog(raw, "orders", trace_parent=one) for one in (parent, parent, None, "nonsense")]
    items = [Item("orders", number, (), envelope.inspect(form)) for number, form in enumerate(forms)]
    book.sent("orders", items, None, 0.5)
    book.sent("orders", items[2:], SendError(next(iter(SendFailure)), "com.microsoft:timeout"), 0.5)
    divert, restore, failed = spans.get_finished_spans()
    assert restore.name == "pairbus restore"
    assert restore.attributes["messaging.batch.message_count"] == 4
    assert [link.context.span_id for link in restore.links] == [divert.context.span_id]
    assert [link.context.trace_id for link in restore.links] == [divert.context.trace_id]
    assert restore.end_time - restore.start_time == 500_000_000
    assert failed.attributes["error.type"] == "SendError"
    assert not failed.links
    """
)


def test_the_restoring_is_a_span_that_links_to_the_diverted_sends() -> None:
    done = subprocess.run([sys.executable, "-c", RESTORING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_the_libraries_nothing_is_traced_or_counted_and_all_works() -> None:
    script = textwrap.dedent(
        """
        import sys
        sys.modules["opentelemetry"] = None
        sys.modules["prometheus_client"] = None
        from pairbus.pairing.observers import diverted_send, shared_metrics
        assert shared_metrics() is None
        with diverted_send("orders", 1) as parent:
            assert parent is None
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
