"""Which entities a pattern of names stands for, by the namespace's administration."""

from __future__ import annotations

import re

from azure.core.exceptions import AzureError

from pairbus.pipeline.servicebus.options import Entities
from pairbus.pipeline.servicebus.wire import Wire, WireError
from pairbus.syphon.namespaces import describe_error, is_credential_refused


async def resolve(wire: Wire, entities: Entities) -> tuple[str, ...]:
    """The paths to read, sorted; what is named is not looked up. `WireError` if the namespace does not list them."""
    if entities.pattern is None:
        return entities.named
    pattern = re.compile(entities.pattern, re.IGNORECASE)
    try:
        async with wire.namespace.administration() as admin:
            names = [queue.name async for queue in admin.list_queues() if pattern.fullmatch(queue.name)]
    except (AzureError, OSError) as error:
        raise WireError(
            "amqp:unauthorized-access" if is_credential_refused(error) else "amqp:connection:forced",
            f"The queues of {wire.host} could not be listed for queuePattern {entities.pattern!r}: "
            f"{describe_error(error)}. "
            "The connection string needs the right to manage, and connectionVerify a certificate if the namespace has "
            "its own.",
        ) from error
    return tuple(entities.path(name) for name in sorted(names))
