"""Error bodies as the service writes them: `<Error><Code>…</Code><Detail>…</Detail></Error>`.

`Detail` begins with a sub-code that clients look for, and ends with the time, so that a report can be matched
with a log.
"""

from datetime import UTC, datetime

from pairbus.embedded.administration.elements import escape
from pairbus.embedded.errors import BrokerError, UnauthorizedError

CONTENT_TYPE = "application/xml; charset=utf-8"


def refusal_body(status: int, description: str, now_ms: int) -> bytes:
    moment = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    detail = escape(f"{description} Timestamp:{moment}")
    return f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>".encode()


def describe(error: BrokerError) -> str:
    """The error's sentence behind its sub-code; a refused token speaks for itself."""
    if isinstance(error, UnauthorizedError):
        return error.description
    return f"SubCode={error.http_status}00. {error.description}"
