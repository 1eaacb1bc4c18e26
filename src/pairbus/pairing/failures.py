"""The errors of `pairbus.errors` that a send can raise, as errors of the SDK too.

An application that catches `ServiceBusError` around its sends today keeps catching everything a paired send
can raise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from azure.servicebus.exceptions import ServiceBusError

from pairbus import errors


class BacklogUnavailableError(errors.BacklogUnavailableError, ServiceBusError):
    __doc__ = errors.BacklogUnavailableError.__doc__

    def __init__(
        self,
        entity: str,
        primary_error: BaseException | None,
        queue_errors: Mapping[str, BaseException],
    ) -> None:
        errors.BacklogUnavailableError.__init__(self, entity, primary_error, queue_errors)


class PartlyAcceptedError(errors.PartlyAcceptedError, ServiceBusError):
    __doc__ = errors.PartlyAcceptedError.__doc__

    def __init__(self, accepted: Sequence[int], rest: Sequence[int], cause: BaseException) -> None:
        errors.PartlyAcceptedError.__init__(self, accepted, rest, cause)


class ScheduledInBacklogError(errors.ScheduledInBacklogError, ServiceBusError):
    __doc__ = errors.ScheduledInBacklogError.__doc__

    def __init__(self, sequence_numbers: Sequence[int]) -> None:
        errors.ScheduledInBacklogError.__init__(self, sequence_numbers)


class SpoolError(errors.SpoolError, ServiceBusError):
    __doc__ = errors.SpoolError.__doc__

    def __init__(self, message: str) -> None:
        errors.SpoolError.__init__(self, message)


class SpoolFullError(errors.SpoolFullError, SpoolError):
    __doc__ = errors.SpoolFullError.__doc__

    def __init__(self, folder: str, limit_bytes: int) -> None:
        errors.SpoolFullError.__init__(self, folder, limit_bytes)


class PairedNamespaceFaultedError(errors.PairedNamespaceFaultedError, ServiceBusError):
    __doc__ = errors.PairedNamespaceFaultedError.__doc__

    def __init__(self, partner: str, cause: str) -> None:
        errors.PairedNamespaceFaultedError.__init__(self, partner, cause)
