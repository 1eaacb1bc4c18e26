"""Where a link leads: the addresses that clients write, taken apart."""

from __future__ import annotations

from urllib.parse import unquote

MANAGEMENT_SUFFIX = "/$management"
CBS_NODE = "$cbs"


def path_of(address: str | None) -> str:
    """The path in an address: `amqps://host:port/entity`, `sb://host/entity` and a bare `entity` are the same."""
    if not address:
        return ""
    _, found, rest = address.partition("://")
    path = rest.partition("/")[2] if found else address
    return unquote(path.partition("?")[0]).strip("/")


def is_cbs(path: str) -> bool:
    return path.lower() == CBS_NODE


def managed_entity(path: str) -> str | None:
    """The entity that a management address is about; None if the path is not a management address.

    The namespace's own `$management` is the empty entity.
    """
    if path.lower() == MANAGEMENT_SUFFIX[1:]:
        return ""
    return path[: -len(MANAGEMENT_SUFFIX)] if path.lower().endswith(MANAGEMENT_SUFFIX) else None
