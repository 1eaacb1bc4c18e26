"""Coverage-guided mutation of hostile input, for everything that reads bytes of others.

An input is kept if it reaches new lines of pairbus; kept inputs are mutated further. The corpus in `tests/corpus` has a
folder of starting inputs for each target. The oracle is more than "no crash":

- A target raises only the errors that its callers handle.
- The Python lines executed (`STEPS`) and the memory allocated (`BYTES`) are bounded by a constant and the input's size.
  Lines are counted instead of seconds, so the verdict is the same on every machine.
- Against a running server: a well-behaved client is served throughout (`attack_server`).
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
import tracemalloc
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, get_args

from tests.support.raw import open_raw, raw_message

import pairbus
from pairbus import envelope
from pairbus.amqp.codec import decode, encode, skip
from pairbus.amqp.engine import Engine, LinkOpened
from pairbus.amqp.message import Sections, split_batch
from pairbus.amqp.sasl import AMQP_HEADER, SaslError, SaslExchange
from pairbus.amqp.types import AmqpDecodeError, Described, UInt, ULong
from pairbus.dashboard.ledger_tail import LedgerTail
from pairbus.embedded.administration.atom import parse_content, read_description
from pairbus.embedded.administration.elements import read_rule
from pairbus.embedded.entities.descriptions import QueueDescription, SqlAction, SqlFilter
from pairbus.embedded.entities.filters import EvaluationError, MessageProperties, compile_action, compile_filter
from pairbus.embedded.errors import InvalidError
from pairbus.errors import EnvelopeError
from pairbus.pipeline.servicebus.offsets import Offset
from pairbus.publishing.flows import DAY_SECONDS
from pairbus.testing.namespace import EmbeddedNamespace

CORPUS = Path(__file__).parents[1] / "corpus"
SOURCE = str(Path(pairbus.__file__).parent)
MOST_BYTES = 4096
STEPS = (50_000, 3_000)
"""The most lines for an input: a constant, and for each byte."""
BYTES = (4 << 20, 4_000)
_NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, (1 << 64) - 1]

GREETING = SaslExchange(server=False).start() + AMQP_HEADER


def frame(code: int, *fields: object) -> bytes:
    body = encode(Described(ULong(code), list(fields)))
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body


OPENING = GREETING + frame(0x10, "hostile", "localhost") + frame(0x11, None, UInt(0), UInt(1000), UInt(1000))


def _amqp_value(data: bytes) -> None:
    with suppress(AmqpDecodeError):
        decode(data)
    with suppress(AmqpDecodeError):
        skip(data, 0)


def _amqp_message(data: bytes) -> None:
    for read in (Sections.split, split_batch):
        with suppress(AmqpDecodeError):
            read(data)


def _amqp_frames(data: bytes) -> None:
    engine = Engine(server=True, container_id="fuzz")
    engine.start(0.0)
    try:
        with suppress(AmqpDecodeError):  # the protocol around the engine closes the connection
            for event in engine.receive_data(OPENING + data, 0.0):
                if isinstance(event, LinkOpened):
                    _ = event.link.remote_source, event.link.remote_target, event.link.remote_properties
                    event.link.accept()
                    event.link.grant(10)
        while engine.data_to_send():
            pass
    finally:
        engine.connection_lost()


def _sasl(data: bytes) -> None:
    with suppress(SaslError):
        SaslExchange(server=True, login=lambda name, key: False).feed(data)


def _atom(data: bytes) -> None:
    with suppress(InvalidError):
        root = parse_content(data)
        with suppress(InvalidError):
            read_description(root, QueueDescription("orders"), 0)
        read_rule(root, "rule")


def _sql(data: bytes) -> None:
    text, view = data.decode("utf-8", "replace"), MessageProperties({"sys.label": "x"}, lambda: {"a": 1, "b": "text"})
    with suppress(InvalidError, EvaluationError):
        compile_filter(SqlFilter(text))(view)
    with suppress(InvalidError, EvaluationError):
        compile_action(SqlAction(text))(view)


def _ledger(data: bytes) -> None:
    tail = LedgerTail(Path("nowhere"))
    tail._day = 1_735_689_600 // DAY_SECONDS  # the day of the lines in the corpus
    for line in data.splitlines():
        tail._add(line)
    assert all(0 <= count.billed < 1 << 63 for count in tail.billed())


def _envelope(data: bytes) -> None:
    message = envelope.inspect(data)
    for policy in get_args(envelope.TimeToLivePolicy):
        with suppress(EnvelopeError, AmqpDecodeError, *([type(message.error)] if message.error else [])):
            envelope.restore(message, now_ms=1_735_689_600_000, policy=policy)


def _offset(data: bytes) -> None:
    with suppress(json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        value = json.loads(data)
        with suppress(ValueError):
            Offset.from_json(value)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "amqp-value": _amqp_value,
    "amqp-message": _amqp_message,
    "amqp-frames": _amqp_frames,
    "sasl": _sasl,
    "atom": _atom,
    "sql": _sql,
    "ledger": _ledger,
    "envelope": _envelope,
    "offset": _offset,
}


@dataclass(slots=True)
class Findings:
    """The figures of a run."""

    inputs: int = 0
    lines: set[tuple[str, int]] = field(default_factory=set)
    kept: list[bytes] = field(default_factory=list)
    most_steps: int = 0
    peak_bytes: int = 0
    slowest_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.inputs:,} inputs, {len(self.kept)} kept, {len(self.lines):,} lines reached, at most "
            f"{self.most_steps:,} steps, {self.peak_bytes / 1024:,.0f} KiB, {self.slowest_s * 1000:.0f} ms of CPU"
        )


def fuzz(name: str, seed: int, enough: Callable[[int], bool], corpus: Path = CORPUS) -> Findings:
    """Run a target until `enough(inputs)`. Raises AssertionError with the input that broke a bound."""
    target, rng = TARGETS[name], random.Random(f"{name} {seed}")
    findings = Findings()
    starting = [path.read_bytes() for path in sorted((corpus / name).iterdir())]
    target(starting[0])  # builds parsers and caches
    for data in starting:
        _try(name, target, data, findings)
        _measure(name, target, data, findings)
    while not enough(findings.inputs):
        _try(name, target, mutate(rng, findings.kept), findings)
    return findings


def _try(name: str, target: Callable[[bytes], None], data: bytes, findings: Findings) -> None:
    lines: set[tuple[str, int]] = set()
    steps = 0

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal steps
        if event == "line":
            steps += 1
            if frame.f_code.co_filename.startswith(SOURCE):
                lines.add((frame.f_code.co_filename, frame.f_lineno))
        return local

    before = time.thread_time()
    sys.settrace(lambda frame, event, arg: local)
    try:
        target(data)
    except BaseException as error:
        sys.settrace(None)
        raise AssertionError(f"{name}: {type(error).__name__} for {data!r}") from error
    finally:
        sys.settrace(None)
    findings.inputs += 1
    findings.slowest_s = max(findings.slowest_s, time.thread_time() - before)
    findings.most_steps = max(findings.most_steps, steps)
    assert steps <= STEPS[0] + STEPS[1] * len(data), f"{name}: {steps} steps for {data!r}"
    if not lines <= findings.lines:
        findings.lines |= lines
        findings.kept.append(data)
        _measure(name, target, data, findings)


def _measure(name: str, target: Callable[[bytes], None], data: bytes, findings: Findings) -> None:
    tracemalloc.start()
    try:
        target(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    findings.peak_bytes = max(findings.peak_bytes, peak)
    assert peak <= BYTES[0] + BYTES[1] * len(data), f"{name}: {peak} bytes for {data!r}"


def mutate(rng: random.Random, kept: list[bytes]) -> bytes:
    """One of the inputs with one to eight changes."""
    data = bytearray(rng.choice(kept))
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        at, length = rng.randrange(len(data) + 1), rng.choice([1, 2, 4, 8, 64])
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = data[at : at + length] * rng.choice([1, 2, 50])
            case 3:
                size = rng.choice([1, 2, 4, 8])
                data[at : at + size] = (rng.choice(_NUMBERS) % (1 << 8 * size)).to_bytes(size, "big")
            case 4:
                other = rng.choice(kept)
                start = rng.randrange(len(other) + 1)
                data[at : at + length] = other[start : start + length]
            case 5:
                data[at:at] = str(rng.choice(_NUMBERS)).encode()
    return bytes(data[:MOST_BYTES])


def attack_server(seed: int, enough: Callable[[int], bool], corpus: Path = CORPUS) -> int:
    """Send mutated bytes to every protocol of a server, and serve a client in between. Returns the connections made."""
    rng, attacks = random.Random(f"server {seed}"), 0
    inputs = {
        name: [path.read_bytes() for path in sorted((corpus / name).iterdir())] for name in ("http", "amqp-frames")
    }
    with EmbeddedNamespace("contoso") as namespace, namespace.admin() as admin:
        admin.create_queue("orders")
        upgrade = (corpus / "http" / "upgrade").read_bytes()
        while not enough(attacks):
            for _ in range(50):
                over_http = mutate(rng, inputs["http"])
                in_frames = OPENING + mutate(rng, inputs["amqp-frames"])
                frames = upgrade + bytes([0x82, 0x80 | min(len(in_frames), 125)]) + mutate(rng, [in_frames])
                address = ("127.0.0.1", namespace.port)
                with socket.create_connection(address, timeout=30) as connection, suppress(ConnectionError):
                    connection.sendall(rng.choice([over_http, in_frames, frames]))
                attacks += 1
            url = f"http://127.0.0.1:{namespace.port}/$pairbus/health"
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert json.load(answer)["status"] == "ok"
            asyncio.run(_send_and_receive(namespace.connection_string))
    return attacks


async def _send_and_receive(connection_string: str) -> None:
    connection = await open_raw(connection_string)
    receiver = await connection.open_receiver("orders", receive_and_delete=True)
    await (await connection.open_sender("orders")).send(raw_message("served"))
    assert len(await receiver.receive(1)) == 1
    await connection.close()
