"""Authorization rules: a named pair of keys and what a token signed with either may do.

Send and Listen are independent. Manage includes both, so a rule that grants Manage must list all three, as
the service demands. Keys are secrets: they are left out of `repr`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pairbus.embedded.errors import InvalidError

MANAGE = "Manage"
SEND = "Send"
LISTEN = "Listen"
RIGHTS = frozenset({MANAGE, SEND, LISTEN})
MAX_RULES = 12
MAX_KEY_NAME_LENGTH = 256
MAX_KEY_LENGTH = 256


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    key_name: str
    rights: frozenset[str]
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    created_ms: int = 0
    modified_ms: int = 0

    def validate(self) -> None:
        if not 1 <= len(self.key_name) <= MAX_KEY_NAME_LENGTH or not self.key_name.isprintable():
            raise InvalidError(
                f"KeyName '{self.key_name[:64]}' must have 1 to {MAX_KEY_NAME_LENGTH} printable characters."
            )
        if not self.rights or not self.rights <= RIGHTS:
            raise InvalidError(
                f"Rights of '{self.key_name}' are {sorted(self.rights)}: give one or more of Listen, Manage, Send."
            )
        if MANAGE in self.rights and self.rights != RIGHTS:
            raise InvalidError(f"Rights of '{self.key_name}' include Manage: they must include Send and Listen too.")
        for name, key in (("PrimaryKey", self.primary_key), ("SecondaryKey", self.secondary_key)):
            if not 1 <= len(key) <= MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
                raise InvalidError(
                    f"{name} of '{self.key_name}' must have 1 to {MAX_KEY_LENGTH} printable ASCII characters."
                )

    def to_json(self) -> str:
        return json.dumps(self.to_plain(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "AuthorizationRule":
        return cls.from_plain(json.loads(text))

    def to_plain(self) -> dict[str, Any]:
        return {
            "key_name": self.key_name,
            "rights": sorted(self.rights),
            "primary_key": self.primary_key,
            "secondary_key": self.secondary_key,
            "created_ms": self.created_ms,
            "modified_ms": self.modified_ms,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "AuthorizationRule":
        return cls(**{**plain, "rights": frozenset(plain["rights"])})


def validate_rules(rules: tuple[AuthorizationRule, ...]) -> None:
    """At most 12 rules for one namespace or entity, each name once, without regard to case."""
    if len(rules) > MAX_RULES:
        raise InvalidError(f"AuthorizationRules has {len(rules)} rules: at most {MAX_RULES} are allowed.")
    seen: set[str] = set()
    for rule in rules:
        rule.validate()
        if rule.key_name.casefold() in seen:
            raise InvalidError(f"AuthorizationRules names '{rule.key_name}' twice: each KeyName must be unique.")
        seen.add(rule.key_name.casefold())
