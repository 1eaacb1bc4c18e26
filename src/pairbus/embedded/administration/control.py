"""The routes of pairbus itself: health, faults and the namespace's keys, as JSON under `/$pairbus/`.

| route | method | |
|---|---|---|
| `health` | GET | open to all: `{"status": "ok", "name": …}`, or 503 and `failing` while the disk refuses writes |
| `faults` | GET, PUT, DELETE | list; set `{"mode": …, "entity": …, "for_ms": …}`; clear those of `?entity=` or all |
| `authorization-rules` | GET | names and rights, never keys |
| `authorization-rules/{name}` | PUT, DELETE | set `{"rights": […], "primary_key": …}`, or remove |

A rule that is set without keys gets generated ones. All routes but health need a token with Manage on the namespace.
Errors are one sentence of plain text.
"""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from aiohttp import web

from pairbus.embedded.administration.operations import Target
from pairbus.embedded.admission import Admission
from pairbus.embedded.broker import Broker
from pairbus.embedded.clock import Clock
from pairbus.embedded.entities.descriptions import MANAGE, AuthorizationRule, validate_rules
from pairbus.embedded.errors import BrokerError, EntityNotFoundError, InvalidError, UnauthorizedError
from pairbus.embedded.faults import Fault, FaultMode, FaultSwitchboard
from pairbus.embedded.security import Authority, generate_key

_B = TypeVar("_B")


class _FaultBody(msgspec.Struct, forbid_unknown_fields=True):
    mode: str
    entity: str | None = None
    condition: str | None = None
    rate: int | float | None = None
    delay_ms: int | None = None
    for_ms: int | None = None


class _RuleBody(msgspec.Struct, forbid_unknown_fields=True):
    rights: list[str]
    primary_key: str | None = None
    secondary_key: str | None = None


class Control:
    def __init__(
        self,
        broker: Broker,
        faults: FaultSwitchboard,
        authority: Authority,
        clock: Clock,
        name: str,
        admission: Admission,
    ) -> None:
        self._broker = broker
        self._faults = faults
        self._authority = authority
        self._clock = clock
        self._name = name
        self._admission = admission

    async def answer(
        self, request: web.BaseRequest, target: Target, query: Mapping[str, str], body: bytes
    ) -> web.Response:
        _, _, route = target.path.partition("/")
        try:
            if (request.method, route.lower()) == ("GET", "health"):
                status = "ok" if self._broker.is_committing else "failing"
                return web.json_response({"status": status, "name": self._name}, status=200 if status == "ok" else 503)
            grant = self._authority.check(request.headers.get("Authorization", ""), target.path, self._clock.now_ms())
            if not grant.allows(target.path, MANAGE):
                raise UnauthorizedError("MissingClaim: a token with Manage on the namespace is required.")
            self._admission.set_proven(request.transport, True)
            return web.json_response(await self._run(request.method, route, query, body))
        except BrokerError as error:
            return web.Response(status=error.http_status, text=error.description)

    async def _run(self, method: str, route: str, query: Mapping[str, str], body: bytes) -> dict[str, Any]:
        match method, *route.split("/"):
            case "GET", "faults":
                return {"faults": [self._fault_to_plain(fault) for fault in self._faults.list()]}
            case "PUT", "faults":
                self._faults.set(self._read_fault(body))
                return {}
            case "DELETE", "faults":
                self._faults.clear(query.get("entity"))
                return {}
            case "GET", "authorization-rules":
                rules = self._broker.authorization_rules()
                return {"rules": [{"key_name": rule.key_name, "rights": sorted(rule.rights)} for rule in rules]}
            case "PUT", "authorization-rules", name:
                return await self._put_rule(name, body)
            case "DELETE", "authorization-rules", name:
                return await self._delete_rule(name)
        raise EntityNotFoundError(f"'$pairbus/{route}' does not exist, or does not support {method}.")

    def _read_fault(self, body: bytes) -> Fault:
        wanted = _read_json(body, _FaultBody)
        if wanted.for_ms is not None and wanted.for_ms <= 0:
            raise InvalidError(f"for_ms is {wanted.for_ms}. It must be a number of milliseconds above 0.")
        until_ms = None if wanted.for_ms is None else self._clock.now_ms() + wanted.for_ms
        mode = cast(FaultMode, wanted.mode)
        return Fault(mode, wanted.entity, wanted.condition, wanted.rate, wanted.delay_ms, until_ms)

    def _fault_to_plain(self, fault: Fault) -> dict[str, Any]:
        plain = fault.to_plain()
        until_ms = plain.pop("until_ms", None)
        if until_ms is not None:
            plain["for_ms"] = max(0, until_ms - self._clock.now_ms())
        return plain

    async def _put_rule(self, name: str, body: bytes) -> dict[str, Any]:
        wanted = _read_json(body, _RuleBody)
        primary_key, secondary_key = wanted.primary_key or generate_key(), wanted.secondary_key or generate_key()
        now_ms = self._clock.now_ms()
        rule = AuthorizationRule(name, frozenset(wanted.rights), primary_key, secondary_key, now_ms, now_ms)
        others = tuple(other for other in self._broker.authorization_rules() if not _same(other.key_name, name))
        validate_rules((*others, rule))
        await self._broker.set_authorization_rules((*others, rule))
        return {"key_name": name, "rights": sorted(rule.rights), "primary_key": rule.primary_key}

    async def _delete_rule(self, name: str) -> dict[str, Any]:
        rules = self._broker.authorization_rules()
        others = tuple(rule for rule in rules if not _same(rule.key_name, name))
        if len(others) == len(rules):
            raise EntityNotFoundError(f"There is no authorization rule '{name[:64]}'.")
        if not any(MANAGE in rule.rights for rule in others):
            raise InvalidError(f"'{name[:64]}' is the last rule with Manage. Create another one before you delete it.")
        await self._broker.set_authorization_rules(others)
        return {}


def _same(left: str, right: str) -> bool:
    return left.casefold() == right.casefold()


def _read_json(body: bytes, kind: type[_B]) -> _B:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidError(f"The body is not valid. {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidError("The body is not JSON.") from None
