"""What a credential may do: Manage, Send, Listen, each tried in a way that leaves no trace.

Manage: the namespace is asked for its properties. Send: a link is opened to an entity, and nothing is sent. Listen: an
entity is peeked at, which takes nothing. A credential with Manage has the other two by the service's own rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from pairbus.syphon.namespaces import Namespace

MANAGE, SEND, LISTEN = "Manage", "Send", "Listen"
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Rights:
    """What was found: rights it has, rights it lacks, and whether an entity to try was there."""

    has: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    entity: str | None = None
    missing: bool = False
    """The entity that was to be tried does not exist."""
    trouble: str | None = None
    """What went wrong that says nothing about rights."""
    said: str | None = field(default=None)
    """What the namespace said when it refused."""


async def find_rights(namespace: Namespace, entity: str | None) -> Rights:
    """Tries Manage, and, without it, Send and Listen on `entity`."""
    said = None
    try:
        async with namespace.administration() as admin:
            await admin.get_namespace_properties()
        return Rights(frozenset({MANAGE, SEND, LISTEN}), entity=entity)
    except ClientAuthenticationError as error:
        said = first_line(error)
    except HttpResponseError as error:
        if error.status_code not in _REFUSED:
            return Rights(trouble=first_line(error))
        said = first_line(error)
    except (AzureError, OSError) as error:
        return Rights(trouble=first_line(error))
    if entity is None:
        return Rights(lacks=frozenset({MANAGE}), said=said)
    return await _try_links(namespace, entity, said)


async def _try_links(namespace: Namespace, entity: str, said: str | None) -> Rights:
    has, lacks = set(), {MANAGE}
    async with namespace.client(retry_total=0) as client:
        for right in (SEND, LISTEN):
            try:
                if right == SEND:
                    async with client.get_queue_sender(entity):
                        has.add(right)
                else:
                    async with client.get_queue_receiver(entity) as receiver:
                        await receiver.peek_messages(1)
                        has.add(right)
            except (ServiceBusAuthenticationError, ServiceBusAuthorizationError) as error:
                if _is_missing(error):
                    return Rights(frozenset(has), frozenset(lacks), entity, missing=True, said=said)
                lacks.add(right)
            except MessagingEntityNotFoundError:
                return Rights(frozenset(has), frozenset(lacks), entity, missing=True, said=said)
            except (ServiceBusError, OSError) as error:
                return Rights(frozenset(has), frozenset(lacks), entity, trouble=first_line(error), said=said)
    return Rights(frozenset(has), frozenset(lacks), entity, said=said)


def _is_missing(error: ServiceBusError) -> bool:
    """A token for an entity that does not exist is refused as such; the SDK tells it like a wrong key."""
    return getattr(getattr(error, "inner_exception", None), "status_code", None) == HTTPStatus.NOT_FOUND


def first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return text[:200] or type(error).__name__
