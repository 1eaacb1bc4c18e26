"""The whole error tree.

::

    Exception
    └── PairbusError                        anything this library raises on its own account
        ├── PairingError                    pair_namespace could not make a backlog queue ready
        ├── BacklogUnavailableError         neither the primary nor any backlog queue took the message
        ├── PartlyAcceptedError             some messages of a send were accepted, the rest were not
        ├── ScheduledInBacklogError         a scheduled message that waits in a backlog cannot be cancelled
        ├── PairedNamespaceFaultedError     a client was faulted because its partner is gone
        ├── EnvelopeError (ValueError)      a message cannot be brought into its backlog form, or back
        │   ├── ReservedPropertyError       the user's own property has a name the backlog form needs
        │   ├── DestinationMissingError     a backlog message does not say where it belongs
        │   ├── AliasError                  a backlog message's alias has a type or value nobody can read
        │   └── PartError                   the parts of a message do not fit together
        └── SpoolError                      the local journal
            ├── SpoolFullError              its size limit is reached
            └── SpoolInUseError             another process owns the folder

What the SDK raises is passed on as it is and is not in this tree. The errors that a *send* can raise are,
in addition, `azure.servicebus.exceptions.ServiceBusError`, so that an application's own ``except
ServiceBusError`` still sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class PairbusError(Exception):
    """Anything this library raises on its own account."""


class PairingError(PairbusError):
    """A backlog queue could not be looked up or created.

    `queue` names it, `cause` is what the service said.
    """

    def __init__(self, queue: str, cause: BaseException) -> None:
        super().__init__(
            f"Backlog queue {queue!r} of the secondary namespace could not be made ready: {_sentence(cause)}"
            " Check the secondary's address, that its credential may read and create queues, and for a local namespace"
            " that connection_verify names its certificate."
        )
        self.queue = queue
        self.cause = cause


class BacklogUnavailableError(PairbusError):
    """Neither the primary nor any backlog queue took the message, and there is no spool.

    `primary_error` is None when the entity was already failed over and the primary was not tried.
    """

    def __init__(
        self,
        entity: str,
        primary_error: BaseException | None,
        queue_errors: Mapping[str, BaseException],
    ) -> None:
        tried = "; ".join(f"{queue}: {_sentence(error)}" for queue, error in queue_errors.items())
        primary = f"The primary said: {_sentence(primary_error)} " if primary_error is not None else ""
        super().__init__(
            f"No backlog queue took the message for {entity!r}. {primary}"
            f"Backlog queues: {tried or 'none could be tried'}"
        )
        self.entity = entity
        self.primary_error = primary_error
        self.queue_errors = dict(queue_errors)


class PartlyAcceptedError(PairbusError):
    """A send needed several sends to the backlog and one of them failed.

    `accepted` holds the positions, in the caller's order, of the messages that are safe; send the `rest`
    again.
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
    """The number was given for a message that was scheduled while its entity was failed over."""

    def __init__(self, sequence_numbers: Sequence[int]) -> None:
        numbers = ", ".join(str(number) for number in sequence_numbers)
        super().__init__(
            f"The numbers {numbers} belong to messages that were scheduled into a backlog: the primary does "
            "not know them, so they cannot be cancelled. They are delivered at their time."
        )
        self.sequence_numbers = tuple(sequence_numbers)


class PairedNamespaceFaultedError(PairbusError):
    """The client was faulted: its partner was closed or failed for good and the pair cannot go on."""

    def __init__(self, partner: str, cause: str) -> None:
        super().__init__(
            f"This client was faulted because its partner, the {partner} namespace, is gone: {cause}. Close "
            "the paired client and pair the namespaces again."
        )
        self.partner = partner
        self.cause = cause


class EnvelopeError(PairbusError, ValueError):
    """A message cannot be brought into its backlog form, or back."""


class ReservedPropertyError(EnvelopeError):
    """The user's own application property has a name the backlog form needs."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"The application properties {', '.join(map(repr, names))} are reserved for the backlog. "
            "Give the message's own properties other names."
        )
        self.names = tuple(names)


class DestinationMissingError(EnvelopeError):
    """A backlog message without `x-ms-path`: nobody can tell where it belongs."""

    def __init__(self) -> None:
        super().__init__("The message has no application property 'x-ms-path', so its destination is not known.")


class AliasError(EnvelopeError):
    """An alias holds a value of a type, or out of a range, that nobody can read."""

    def __init__(self, alias: str, value: object, expected: str) -> None:
        super().__init__(
            f"The application property {alias!r} holds a {type(value).__name__} ({_shortened(value)}); "
            f"expected {expected}."
        )
        self.alias = alias


class PartError(EnvelopeError):
    """The parts of a message do not fit together: wrong count, foreign part, unreadable joint."""


class SpoolError(PairbusError):
    """The local journal cannot do what was asked."""


class SpoolFullError(SpoolError):
    """The journal's size limit is reached; nothing was stored."""

    def __init__(self, folder: str, limit_bytes: int) -> None:
        super().__init__(
            f"The spool in {folder!r} is full: it holds its limit of {limit_bytes} bytes. The message was "
            "not stored; send it again when a namespace is back and the spool has emptied."
        )
        self.limit_bytes = limit_bytes


class SpoolInUseError(SpoolError):
    """Another process owns the folder."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"The spool folder {folder!r} is in use by another process; give each process its own folder.")


def _sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text}" + ("" if text.endswith((".", "!", "?")) else ".")


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
