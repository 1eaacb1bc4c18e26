"""Structured logs on standard error: one line per event, `key=value`, quiet unless asked.

    time=2025-01-01T12:00:00.123Z level=warning logger=pairbus.embedded event="the store is slow" took_ms=412

What a caller gives as `extra` becomes keys of its own.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValueFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        fields.update((key, value) for key, value in vars(record).items() if key not in _ORDINARY)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_value(value)}" for key, value in fields.items())


def _value(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(sign in text for sign in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)


def configure(level: str) -> None:
    """Sends the logs of pairbus, and of the libraries it runs, to standard error from `level` on."""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[output], force=True)
