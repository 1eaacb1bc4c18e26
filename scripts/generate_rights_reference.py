"""Write docs/reference/rights.md: every operation of the embedded namespace, tried with every kind of credential.

The table is what a running server answered. A test fails when the page differs.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from azure.servicebus.management import AccessRights, AuthorizationRule, ServiceBusAdministrationClient

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.outcomes import LinkLostError, TokenRefusedError
from pairbus.embedded.amqp.operations import OPERATIONS
from pairbus.embedded.security import generate_key, sign
from pairbus.testing import EmbeddedNamespace

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "rights.md"
_RIGHTS = {"Send": ["Send"], "Listen": ["Listen"], "Manage": ["Manage", "Send", "Listen"]}
_JWT = "Bearer eyJhbGciOiJub25lIn0.eyJhdWQiOiJodHRwczovL3NlcnZpY2VidXMuYXp1cmUubmV0In0."
_SECONDS = 3600
_QUEUE, _SUBSCRIPTION = "orders", "events/subscriptions/all"
_HTTP = {
    "read a queue": ("GET", f"/{_QUEUE}"),
    "list queues": ("GET", "/$Resources/Queues"),
    "read a rule": ("GET", f"/{_SUBSCRIPTION}/rules/$Default"),
    "create or update a queue": ("PUT", f"/{_QUEUE}"),
    "create a rule": ("PUT", f"/{_SUBSCRIPTION}/rules/another"),
    "read health": ("GET", "/$pairbus/health"),
    "read faults": ("GET", "/$pairbus/faults"),
    "set a fault": ("PUT", "/$pairbus/faults"),
    "read keys' names": ("GET", "/$pairbus/authorization-rules"),
    "set a key": ("PUT", "/$pairbus/authorization-rules/new"),
    "delete a queue": ("DELETE", f"/{_QUEUE}"),  # last: the queue is gone then
}
Attempt = Callable[[ClientConnection], Awaitable[bool]]
Tokens = Callable[[str], str | None]
"""The token of a credential for an audience: an entity or, if it is empty, the namespace."""


@dataclass(frozen=True, slots=True)
class Server:
    port: int
    keys: dict[tuple[str, str], str]

    def token(self, audience: str, place: str, right: str, *, seconds: int = _SECONDS, key: str | None = None) -> str:
        found = key or self.keys[place, right]
        return sign(f"sb://localhost/{audience}", f"{place}{right}", found, int(time.time()) + seconds)

    def credentials(self) -> dict[str, Tokens]:
        columns: dict[str, Tokens] = {
            "none": lambda audience: None,
            "expired": lambda audience: self.token(audience, "all", "Manage", seconds=-1),
            "wrong key": lambda audience: self.token(audience, "all", "Manage", key=generate_key()),
            "for another entity": lambda audience: self.token("other", "all", "Manage"),
            "JWT": lambda audience: _JWT,
        }
        for right in _RIGHTS:
            columns[f"{right}, entity"] = lambda audience, right=right: self.token(audience, "own", right)  # type: ignore[misc]
        for right in _RIGHTS:
            columns[f"{right}, namespace"] = lambda audience, right=right: self.token(audience, "all", right)  # type: ignore[misc]
        return columns

    def request(self, method: str, path: str, token: str | None, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {} if token is None else {"Authorization": token}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, content


def _set_up(namespace: EmbeddedNamespace, admin: ServiceBusAdministrationClient) -> Server:
    parts = dict(part.partition("=")[::2] for part in namespace.connection_string.split(";"))
    server = Server(namespace.port, {})
    own = []
    for right, rights in _RIGHTS.items():
        server.keys["own", right], server.keys["all", right] = generate_key(), generate_key()
        own.append(
            AuthorizationRule(
                key_name=f"own{right}",
                rights=[AccessRights(name) for name in rights],
                primary_key=server.keys["own", right],
                secondary_key=generate_key(),
            )
        )
        root = sign(
            "sb://localhost/", parts["SharedAccessKeyName"], parts["SharedAccessKey"], int(time.time()) + _SECONDS
        )
        body = json.dumps({"rights": rights, "primary_key": server.keys["all", right]}).encode()
        status, answer = server.request("PUT", f"/$pairbus/authorization-rules/all{right}", root, body)
        assert status == 200, answer
    admin.create_queue(_QUEUE, authorization_rules=own)
    admin.create_topic("events", authorization_rules=own)
    admin.create_subscription("events", "all")
    return server


async def _is_allowed(server: Server, tokens: Tokens, path: str, attempt: Attempt) -> bool:
    connection = await ClientConnection.open("127.0.0.1", server.port)
    try:
        token = tokens(path)
        if token is not None:
            await connection.put_token(token, f"sb://localhost/{path}")
        return await attempt(connection)
    except TokenRefusedError:
        return False
    except LinkLostError as error:
        if error.condition == "amqp:unauthorized-access":
            return False
        raise
    finally:
        await connection.close()


async def _amqp_rows(server: Server) -> dict[str, list[bool]]:
    async def send(connection: ClientConnection) -> bool:
        await connection.open_sender(_QUEUE)
        return True

    async def receive(connection: ClientConnection) -> bool:
        await connection.open_receiver(_QUEUE)
        return True

    def manage(entity: str, operation: str) -> Attempt:
        async def attempt(connection: ClientConnection) -> bool:
            return (await connection.manage(entity, operation, {})).status != 401

        return attempt

    attempts: dict[str, tuple[str, Attempt]] = {"send": (_QUEUE, send), "receive and settle": (_QUEUE, receive)}
    for name in OPERATIONS:
        place = _SUBSCRIPTION if name.endswith(("-rule", "-rules")) else _QUEUE
        attempts[f"`{name}`"] = (place, manage(place, name))
    return {
        name: [await _is_allowed(server, tokens, path, attempt) for tokens in server.credentials().values()]
        for name, (path, attempt) in attempts.items()
    }


def _http_rows(server: Server) -> dict[str, list[bool]]:
    return {
        name: [
            server.request(method, path, tokens(path.partition("$")[0].strip("/").removesuffix("/rules")))[0] != 401
            for tokens in server.credentials().values()
        ]
        for name, (method, path) in _HTTP.items()
    }


def _table(first: str, columns: list[str], rows: dict[str, list[bool]]) -> str:
    lines = [f"| {first} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {name} | {' | '.join('yes' if allowed else '–' for allowed in row)} |" for name, row in rows.items()]
    return "\n".join(lines)


def page() -> str:
    with EmbeddedNamespace("contoso") as namespace, namespace.admin() as admin:
        server = _set_up(namespace, admin)
        columns = list(server.credentials())
        over_amqp = _table("AMQP", columns, asyncio.run(_amqp_rows(server)))
        over_http = _table("HTTP", columns, _http_rows(server))
    return f"""# Rights

What a running embedded namespace allowed, tried by `scripts/generate_rights_reference.py`; a test fails when this page
differs. Columns are credentials: none, tokens that are not valid here (JWTs are not accepted at all), and valid tokens
whose key has this right on the entity itself or on the namespace. SASL PLAIN logins have the rights of their key.

{over_amqp}

The transaction coordinator needs any valid token; the operations inside a transaction need their own rights.

{over_http}

The web socket (`/$servicebus/websocket`) carries AMQP and opens without a token, but not for a web page of another
origin.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
