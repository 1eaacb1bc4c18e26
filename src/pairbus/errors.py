"""PURE. The error tree.

::

    Exception
    └── PairbusError                        every error of this library
        ├── PairingError                    pair_namespace could neither find nor create a backlog queue
        ├── BacklogUnavailableError         neither the primary nor any backlog queue accepted the message
        ├── PartlyAcceptedError             some messages of a send were accepted, the rest were not
        ├── ScheduledInBacklogError         a message scheduled into a backlog cannot be cancelled
        ├── PairedNamespaceFaultedError     a client was faulted because its partner is gone
        ├── EnvelopeError (ValueError)      a message cannot be converted to its backlog form, or back
        │   ├── ReservedPropertyError       an application property has a name that the backlog form uses
        │   ├── DestinationMissingError     a backlog message does not name its destination
        │   ├── AliasError                  an alias of a backlog message has an unreadable type or value
        │   └── PartError                   the parts of a message do not fit together
        └── SpoolError                      the local journal
            ├── SpoolFullError              its size limit is reached
            └── SpoolInUseError             another process uses the folder

Errors of the SDK are passed on unchanged and are not in this tree. The errors that a *send* can raise are also
`azure.servicebus.exceptions.ServiceBusError`, so that an application's ``except ServiceBusError`` still catches them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class UsageError(Exception):
    """A file, an option or a setup cannot be used. The text is one sentence with the value and what to do.

    Not in the tree: no send raises it. The command line prints the sentence and exits with 2.
    """


class PairbusError(Exception):
    """The base class of all errors of this library."""


class PairingError(PairbusError):
    """A backlog queue could be neither found nor created; `cause` is the service's error."""

    def __init__(self, queue: str, cause: BaseException) -> None:
        super().__init__(
            f"Cannot find or create backlog queue {queue!r} in the secondary namespace: {_sentence(cause)} Check the "
            "secondary's address, that its credential may read and create queues, and for a local namespace that "
            "connection_verify names its certificate."
        )
        self.queue = queue
        self.cause = cause


class BacklogUnavailableError(PairbusError):
    """Neither the primary nor any backlog queue accepted the message, and there is no spool.

    `primary_error` is None if the entity was already failed over, so that the primary was not tried.
    """

    def __init__(
        self, entity: str, primary_error: BaseException | None, queue_errors: Mapping[str, BaseException]
    ) -> None:
        tried = "; ".join(f"{queue}: {_sentence(error)}" for queue, error in queue_errors.items())
        primary = f"Primary: {_sentence(primary_error)} " if primary_error is not None else ""
        super().__init__(
            f"No backlog queue accepted the message for {entity!r}. {primary}"
            f"Backlog queues: {tried or 'none is in rotation.'}"
        )
        self.entity = entity
        self.primary_error = primary_error
        self.queue_errors = dict(queue_errors)


class PartlyAcceptedError(PairbusError):
    """A send needed several sends to the backlog, and one of them failed.

    `accepted` holds the positions, in the caller's order, of the messages that are safe. Send the `rest` again.
    """

    def __init__(self, accepted: Sequence[int], rest: Sequence[int], cause: BaseException) -> None:
        super().__init__(
            f"{len(accepted)} of {len(accepted) + len(rest)} messages were accepted into the backlog, then a "
            f"send failed: {_sentence(cause)} Send only the messages at the positions in `rest` again."
        )
        self.accepted = tuple(accepted)
        self.rest = tuple(rest)
        self.cause = cause


class ScheduledInBacklogError(PairbusError):
    """The sequence numbers belong to messages that were scheduled while their entity was failed over."""

    def __init__(self, sequence_numbers: Sequence[int]) -> None:
        numbers = ", ".join(str(number) for number in sequence_numbers)
        super().__init__(
            f"Cannot cancel the messages {numbers}: they were scheduled into a backlog, so the primary does not know "
            "them. They will be delivered at their time."
        )
        self.sequence_numbers = tuple(sequence_numbers)


class PairedNamespaceFaultedError(PairbusError):
    """The client was faulted: its partner was closed or failed for good, so the pair cannot continue."""

    def __init__(self, partner: str, cause: str) -> None:
        super().__init__(
            f"This client was faulted because its partner, the {partner} namespace, is gone: {cause}. Close the paired "
            "client and pair the namespaces again."
        )
        self.partner = partner
        self.cause = cause


class EnvelopeError(PairbusError, ValueError):
    """A message cannot be converted to its backlog form, or back."""


class ReservedPropertyError(EnvelopeError):
    """An application property has a name that the backlog form uses."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"The application properties {', '.join(map(repr, names))} are reserved for the backlog. Rename the "
            "message's own properties."
        )
        self.names = tuple(names)


class DestinationMissingError(EnvelopeError):
    """A backlog message has no `x-ms-path`, so its destination is unknown."""

    def __init__(self) -> None:
        super().__init__("The message has no application property 'x-ms-path', so its destination is unknown.")


class AliasError(EnvelopeError):
    """An alias has a value of the wrong type or out of range."""

    def __init__(self, alias: str, value: object, expected: str) -> None:
        super().__init__(
            f"The application property {alias!r} has a value of type {type(value).__name__} ({_shortened(value)}); "
            f"expected {expected}."
        )
        self.alias = alias


class PartError(EnvelopeError):
    """The parts of a split message do not fit together: wrong count, foreign part, unreadable position."""


class SpoolError(PairbusError):
    """The local journal failed."""


class SpoolFullError(SpoolError):
    """The journal has reached its size limit; nothing was stored."""

    def __init__(self, folder: str, limit_bytes: int) -> None:
        super().__init__(
            f"The spool in {folder!r} is full (limit: {limit_bytes} bytes), so the message was not stored. Send it "
            "again when a namespace is back and the spool has emptied."
        )
        self.limit_bytes = limit_bytes


class SpoolInUseError(SpoolError):
    """Another process uses the folder."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"Another process uses the spool folder {folder!r}. Give each process its own folder.")


def _sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text}" + ("" if text.endswith((".", "!", "?")) else ".")


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
