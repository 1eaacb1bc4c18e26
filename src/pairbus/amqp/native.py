"""Values into and out of the engine's C objects: data, conditions, termini, delivery states.

Everything goes through our own codec, so that types survive exactly; the engine's own Python wrappers lose some.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cproton import ffi, lib

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.outcomes import (
    ACCEPTED,
    DECLARED,
    MODIFIED,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    Accepted,
    AmqpError,
    Declared,
    Modified,
    Rejected,
    Released,
    State,
    Transactional,
    outcome_from_value,
    outcome_value,
)
from pairbus.amqp.types import Symbol


def write_data(data: Any, value: Any) -> None:
    """Put one value into a data object of the engine."""
    raw = encode(value)
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, raw, len(raw))


def read_data(data: Any) -> Any:
    """The value in a data object of the engine, or None."""
    size = lib.pn_data_encoded_size(data)
    if size <= 0:
        return None
    buffer = ffi.new("char[]", size)
    taken = lib.pn_data_encode(data, buffer, size)
    return decode(bytes(ffi.buffer(buffer, taken)))[0] if taken > 0 else None


def write_condition(condition: Any, error: AmqpError) -> None:
    lib.pn_condition_clear(condition)
    lib.pn_condition_set_name(condition, error.condition.encode("ascii", "replace"))
    lib.pn_condition_set_description(condition, error.description.replace("\0", " ").encode())
    write_data(lib.pn_condition_info(condition), error.wire_info())


def read_condition(condition: Any) -> AmqpError | None:
    if not lib.pn_condition_is_set(condition):
        return None
    name = ffi.string(lib.pn_condition_get_name(condition)).decode("ascii", "replace")
    text = lib.pn_condition_get_description(condition)
    info = read_data(lib.pn_condition_info(condition))
    return AmqpError(
        name,
        "" if text == ffi.NULL else ffi.string(text).decode("utf-8", "replace"),
        {str(key): value for key, value in info.items()} if isinstance(info, dict) else {},
    )


@dataclass(frozen=True, slots=True)
class Terminus:
    """One end of a link as the peer wrote it."""

    address: str | None
    is_null: bool = False
    is_coordinator: bool = False
    filter: dict[Any, Any] = field(default_factory=dict)


def read_terminus(impl: Any) -> Terminus:
    kind = lib.pn_terminus_get_type(impl)
    address = lib.pn_terminus_get_address(impl)
    found = read_data(lib.pn_terminus_filter(impl)) if kind == lib.PN_SOURCE else None
    return Terminus(
        None if address == ffi.NULL else ffi.string(address).decode("utf-8", "replace"),
        is_null=kind == lib.PN_UNSPECIFIED,
        is_coordinator=kind == lib.PN_COORDINATOR,
        filter=found if isinstance(found, dict) else {},
    )


def write_state(impl: Any, state: State) -> None:
    local = lib.pn_delivery_local(impl)
    if isinstance(state, Rejected):
        if state.error is not None:
            write_condition(lib.pn_disposition_condition(local), state.error)
    elif isinstance(state, Modified):
        lib.pn_disposition_set_failed(local, state.delivery_failed)
        lib.pn_disposition_set_undeliverable(local, state.undeliverable_here)
        if state.annotations:
            write_data(
                lib.pn_disposition_annotations(local), {Symbol(key): value for key, value in state.annotations.items()}
            )
    elif isinstance(state, Declared):
        write_data(lib.pn_disposition_data(local), [state.txn])
    elif isinstance(state, Transactional):
        write_data(lib.pn_disposition_data(local), [state.txn, outcome_value(state.outcome)])
    lib.pn_delivery_update(impl, state.code)


ACCEPTED_STATE = Accepted()
_RELEASED = Released()


def read_state(impl: Any) -> State | None:
    remote = lib.pn_delivery_remote(impl)
    code = lib.pn_disposition_type(remote)
    if code == ACCEPTED:
        return ACCEPTED_STATE
    if code == RELEASED:
        return _RELEASED
    if code == REJECTED:
        return Rejected(read_condition(lib.pn_disposition_condition(remote)))
    if code == MODIFIED:
        found = read_data(lib.pn_disposition_annotations(remote))
        return Modified(
            bool(lib.pn_disposition_is_failed(remote)),
            bool(lib.pn_disposition_is_undeliverable(remote)),
            {str(key): value for key, value in found.items()} if isinstance(found, dict) else {},
        )
    if code in (DECLARED, TRANSACTIONAL):
        fields = read_data(lib.pn_disposition_data(remote))
        if isinstance(fields, list) and fields and isinstance(fields[0], bytes):
            if code == DECLARED:
                return Declared(fields[0])
            return Transactional(fields[0], outcome_from_value(fields[1]) if len(fields) > 1 else None)
    return None
