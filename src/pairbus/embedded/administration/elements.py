"""Every element of a description, named once: its field, and how its text is read and written.

Reading accepts what clients are known to send (`True`, an empty `ForwardTo`, an entity's full URI); writing
is canonical.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote
from xml.sax.saxutils import escape as xml_escape

from pairbus.embedded.entities.durations import format_duration, parse_duration
from pairbus.embedded.errors import InvalidError

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNT_DETAILS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
SCHEMA_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

MAX_INTEGER_DIGITS = 18

Kind = Literal["duration", "boolean", "integer", "word", "text", "path"]


@dataclass(frozen=True, slots=True)
class Element:
    """`text` and `path` may be absent, which means None; an absent element of another kind keeps its value."""

    name: str
    field: str
    kind: Kind

    @property
    def absent_means_none(self) -> bool:
        return self.kind in ("text", "path")

    def read(self, text: str) -> Any:
        match self.kind:
            case "duration":
                return self._duration(text)
            case "boolean":
                return self._boolean(text)
            case "integer":
                return self._integer(text)
            case "word":
                return text.strip()
            case "text":
                return text or None
            case "path":
                return _path(text) or None

    def write(self, value: Any, authority: str) -> str:
        """The element's text, escaped."""
        match self.kind:
            case "duration":
                return format_duration(value)
            case "boolean":
                return "true" if value else "false"
            case "integer":
                return str(value)
            case "path":
                return escape(f"sb://{authority}/{value}")
            case "word" | "text":
                return escape(value)

    def _duration(self, text: str) -> int:
        try:
            return parse_duration(text)
        except InvalidError as error:
            raise InvalidError(f"{self.name}: {error.description}") from None

    def _boolean(self, text: str) -> bool:
        match text.strip().lower():
            case "true" | "1":
                return True
            case "false" | "0":
                return False
        raise InvalidError(f"{self.name} is '{text[:64]}': it must be true or false.")

    def _integer(self, text: str) -> int:
        digits = text.strip()
        if not digits.removeprefix("-").isdecimal() or len(digits) > MAX_INTEGER_DIGITS or not digits.isascii():
            raise InvalidError(f"{self.name} is '{text[:64]}': it must be a whole number.")
        return int(digits)


_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: str) -> str:
    """Text for an element. Characters XML 1.0 cannot carry become U+FFFD: better one odd sign than no
    document.
    """
    return xml_escape(_NOT_IN_XML.sub("\ufffd", text), {"\r": "&#13;"})


def _path(text: str) -> str:
    """The entity path in a URI such as `sb://host:port/path`, or the path itself."""
    _, is_uri, rest = text.strip().partition("://")
    path = rest.partition("/")[2] if is_uri else text.strip()
    return unquote(path).strip("/")


_LIFETIME = (
    Element("DefaultMessageTimeToLive", "default_message_time_to_live_ms", "duration"),
    Element("AutoDeleteOnIdle", "auto_delete_on_idle_ms", "duration"),
    Element("EnableBatchedOperations", "enable_batched_operations", "boolean"),
    Element("Status", "status", "word"),
    Element("UserMetadata", "user_metadata", "text"),
)
_PUBLISHING = (
    *_LIFETIME,
    Element("MaxSizeInMegabytes", "max_size_in_megabytes", "integer"),
    Element("RequiresDuplicateDetection", "requires_duplicate_detection", "boolean"),
    Element("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_history_time_window_ms", "duration"),
    Element("EnablePartitioning", "enable_partitioning", "boolean"),
    Element("EnableExpress", "enable_express", "boolean"),
    Element("MaxMessageSizeInKilobytes", "max_message_size_in_kilobytes", "integer"),
)
_RECEIVING = (
    Element("LockDuration", "lock_duration_ms", "duration"),
    Element("RequiresSession", "requires_session", "boolean"),
    Element("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration", "boolean"),
    Element("MaxDeliveryCount", "max_delivery_count", "integer"),
    Element("ForwardTo", "forward_to", "path"),
    Element("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to", "path"),
)

QUEUE_ELEMENTS = (*_RECEIVING, *_PUBLISHING)
TOPIC_ELEMENTS = (
    *_PUBLISHING,
    Element("FilteringMessagesBeforePublishing", "filtering_messages_before_publishing", "boolean"),
    Element("SupportOrdering", "support_ordering", "boolean"),
)
SUBSCRIPTION_ELEMENTS = (
    *_RECEIVING,
    *_LIFETIME,
    Element("DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_evaluation_exceptions", "boolean"),
)
CORRELATION_ELEMENTS = (
    Element("CorrelationId", "correlation_id", "text"),
    Element("MessageId", "message_id", "text"),
    Element("To", "to", "text"),
    Element("ReplyTo", "reply_to", "text"),
    Element("Label", "label", "text"),
    Element("SessionId", "session_id", "text"),
    Element("ReplyToSessionId", "reply_to_session_id", "text"),
    Element("ContentType", "content_type", "text"),
)
