"""The sync shell is what its aio twin says, and the SDK still has what the shell reaches for."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.aio import ServiceBusSender as AioServiceBusSender
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus import PairedServiceBusClient, PairedServiceBusSender
from pairbus.aio import PairedServiceBusClient as AioPairedServiceBusClient
from pairbus.aio import PairedServiceBusSender as AioPairedServiceBusSender
from pairbus.pairing import sdk

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_sync", ROOT / "scripts" / "generate_sync.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_sync_shell_is_generated_from_the_aio_shell(generator: ModuleType) -> None:
    for path, text in generator.generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run scripts/generate_sync.py"


def test_nothing_of_asyncio_is_left_in_the_sync_shell(generator: ModuleType) -> None:
    for path, text in generator.generated().items():
        for word in ("async ", "await ", "asyncio", "__aenter__", "servicebus.aio"):
            assert word not in text, f"{path.name} still says {word!r}"


def own_names(ours: type) -> set[str]:
    return {name for base in ours.__mro__ if base.__module__.startswith("pairbus.") for name in vars(base)}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(PairedServiceBusSender, ServiceBusSender), (AioPairedServiceBusSender, AioServiceBusSender)],
)
def test_the_paired_sender_has_the_whole_surface_of_the_sdks(ours: type, theirs: type) -> None:
    for name, _ in inspect.getmembers(theirs):
        if not name.startswith("_"):
            assert name in own_names(ours), f"{name} is the SDK's and would not be paired"


@pytest.mark.parametrize("ours", [PairedServiceBusClient, AioPairedServiceBusClient])
def test_the_paired_client_has_the_whole_surface_of_the_sdks(ours: type) -> None:
    theirs = ours.__bases__[-1]
    for name, _ in inspect.getmembers(theirs):
        if not name.startswith("_"):
            assert name in own_names(ours), f"{name} is the SDK's and would not be the primary's"


@pytest.mark.parametrize("sender", [ServiceBusSender, AioServiceBusSender])
def test_the_sdk_still_has_the_names_the_shell_reaches_for(sender: type) -> None:
    for name in ("_open", "_do_retryable_operation"):
        assert callable(getattr(sender, name))
    text = inspect.getsource(sender)
    for name in ("_max_batch_size_on_link", "_max_message_size_on_link", "_amqp_transport", "_handler"):
        assert f"self.{name}" in text
    batch = ServiceBusMessageBatch(max_size_in_bytes=1000)
    batch.add_message(ServiceBusMessage("one"))
    encoded = batch._message
    assert isinstance(encoded, list)
    assert len(encoded[5]) == 1
    error = ServiceBusConnectionError(message="x", condition=b"amqp:socket-error")
    assert sdk.describe(error).condition == "amqp:socket-error"
    assert sdk.describe(error).retryable


def test_a_raw_batch_has_all_that_the_sdk_gives_a_batch() -> None:
    from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

    from pairbus.pairing.sdk import RawBatch

    class Sender:
        _amqp_transport = PyamqpTransport

    theirs = ServiceBusMessageBatch(max_size_in_bytes=10_000)
    theirs.add_message(ServiceBusMessage("x"))
    inside: Any = theirs._message
    ours = RawBatch([bytes(inside[5][0])], Sender())
    assert vars(ours).keys() == vars(theirs).keys()
    assert {name: type(value) for name, value in vars(ours).items()} == {
        name: type(value) for name, value in vars(theirs).items()
    }
    assert len(ours) == 1
