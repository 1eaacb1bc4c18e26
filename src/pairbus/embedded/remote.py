"""The fault switchboard of a server in another process, or another thread: its control endpoint on loopback.

Whoever holds a connection string with the Manage right may switch faults. Each token is made for one use.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from pairbus.embedded.security import sign

FAULTS_PATH = "/$pairbus/faults"
TIMEOUT_SECONDS = 10.0
TOKEN_SECONDS = 600


class ControlError(Exception):
    """The control endpoint could not be asked, or said no; one sentence."""


class RemoteSwitchboard:
    """Sets, clears and lists the faults of the server behind `connection_string`."""

    def __init__(self, connection_string: str) -> None:
        parts = dict(part.partition("=")[::2] for part in connection_string.strip().split(";") if part)
        missing = [key for key in ("Endpoint", "SharedAccessKeyName", "SharedAccessKey") if not parts.get(key)]
        endpoint = urlsplit(parts.get("Endpoint", ""))
        if missing or endpoint.hostname is None:
            raise ControlError(
                f"The connection string lacks {' and '.join(missing) or 'a host in Endpoint'}: "
                "take the one that 'pairbus serve' shows."
            )
        self._host = endpoint.hostname
        self._port = endpoint.port or 5672
        self._key_name = parts["SharedAccessKeyName"]
        self._key = parts["SharedAccessKey"]

    def __repr__(self) -> str:
        return f"RemoteSwitchboard({self._host}:{self._port})"

    def set(
        self,
        mode: str,
        *,
        entity: str | None = None,
        condition: str | None = None,
        rate: float | None = None,
        delay_ms: int | None = None,
        for_ms: int | None = None,
    ) -> None:
        fault = {
            "mode": mode,
            "entity": entity,
            "condition": condition,
            "rate": rate,
            "delay_ms": delay_ms,
            "for_ms": for_ms,
        }
        self._ask("PUT", FAULTS_PATH, {key: value for key, value in fault.items() if value is not None})

    def clear(self, entity: str | None = None) -> None:
        """Ends the faults of `entity`, or all of them."""
        self._ask("DELETE", FAULTS_PATH if entity is None else f"{FAULTS_PATH}?entity={quote(entity, safe='')}")

    def list(self) -> list[dict[str, Any]]:
        faults = self._ask("GET", FAULTS_PATH)["faults"]
        return list(faults)

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        token = sign(f"http://{self._host}:{self._port}/", self._key_name, self._key, int(time.time()) + TOKEN_SECONDS)
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            content = None if body is None else json.dumps(body)
            headers = {"Authorization": token, "Content-Type": "application/json"}
            connection.request(method, path, body=content, headers=headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(
                f"No pairbus server answers on {self._host}:{self._port} ({error}): start it with 'pairbus serve'."
            ) from error
        finally:
            connection.close()
        if answer.status == http.client.UNAUTHORIZED:
            raise ControlError(
                f"The server on {self._host}:{self._port} refuses the key '{self._key_name}': "
                "faults need a key with the Manage right."
            )
        if answer.status >= http.client.BAD_REQUEST:
            raise ControlError(text.strip() or f"The server answered {answer.status} {answer.reason}.")
        return dict(json.loads(text)) if text else {}
