"""Who may do what in a namespace: tokens and logins, checked against authorization rules; and its TLS certificate.

Tokens are shared access signatures: `SharedAccessSignature sr=<uri>&sig=<signature>&se=<seconds>&skn=<key name>`. A
token is valid if `sig` is the HMAC-SHA256 of `sr` and `se`, as they are written in the token, under either key of a
rule named `skn`, and if `se` is in the future. Host and port in `sr` are not compared: the key proves the namespace,
which has many names.

Scope. A rule of the namespace covers all entities. A rule of an entity covers that entity and its subscriptions,
sub-queues and `$management`, but not another entity whose name continues after a slash. A token covers no more than its
`sr`, a grant no more than the requested audience. A login with a rule's name and key (SASL PLAIN) has the rights of the
rule for `LOGIN_MS`; then it is checked again.

Certificate. Each data folder gets its own authority, once. Clients trust the public `ca.pem`
(`connection_verify=ca_file`). The private `server.pem` contains the server's certificate and key. The authority's key
is never written, so nobody can sign anything else that a client with `ca.pem` would trust. Both certificates are valid
for twenty years and are not renewed.
"""

import hashlib
import hmac
import secrets
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import quote_plus, unquote, unquote_plus

from pairbus.embedded.entities.descriptions import (
    MANAGE,
    AuthorizationRule,
    EntityDescription,
)
from pairbus.embedded.errors import EntityNotFoundError, UnauthorizedError
from pairbus.private import replace_private

SCHEME = "SharedAccessSignature "
BEARER = "Bearer "
KEY_BYTES = 32
MAX_TOKEN_LENGTH = 8_192
MAX_PATH_SEGMENTS = 32
LOGIN_MS = 3_600_000

# The wildcard is for programs that need a host name per namespace: `contoso.servicebus.localhost`.
HOSTS = ("localhost", "*.servicebus.localhost", "127.0.0.1", "::1")


class RuleSource(Protocol):
    """The source of the rules: the broker."""

    def authorization_rules(self) -> tuple[AuthorizationRule, ...]: ...
    def get(self, path: str) -> EntityDescription: ...
    def rules_by_path(self) -> Mapping[str, tuple[AuthorizationRule, ...]]: ...


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a valid token: `rights` on `scope` and everything below it, until `expires_ms`.

    If they come from a rule of an `entity`, they cover only that entity and its parts.
    """

    scope: str
    rights: frozenset[str]
    expires_ms: int
    entity: str | None = None

    def allows(self, path: str, right: str) -> bool:
        requested = entity_path(path)
        return (
            (right in self.rights or MANAGE in self.rights)
            and _covers(self.scope, requested)
            and (self.entity is None or _belongs(self.entity, requested))
        )


@dataclass(frozen=True, slots=True)
class _Token:
    resource: str
    """`sr` as it is written in the token, still encoded: this text was signed."""
    signature: str
    expiry: str
    key_names: frozenset[str]
    expires_ms: int


class Authority:
    """Checks tokens against the current rules: a removed or replaced key is refused at once."""

    def __init__(self, rules: RuleSource) -> None:
        self._rules = rules

    def check(self, token: str, audience: str, now_ms: int) -> Grant:
        """The grant of `token` for `audience`, a URI or a path. Raises UnauthorizedError."""
        parsed = _parse(token)
        path = entity_path(audience)
        if parsed.expires_ms <= now_ms:
            raise UnauthorizedError("ExpiredToken: The token has expired. Create a new one.")
        if not _covers(_token_scope(parsed.resource), path):
            raise UnauthorizedError(f"InvalidAudience: The token was not issued for '{path or '/'}'.")
        sign_with = partial(_signature, f"{parsed.resource}\n{parsed.expiry}".encode())
        rights: frozenset[str] = frozenset()
        entity: str | None = None
        for owner, rule in self._rules_covering(path):
            # Every rule is compared in full, so that the time taken reveals nothing about the keys.
            if rule.key_name.casefold() in parsed.key_names and _matches_a_key(rule, parsed.signature, sign_with):
                rights |= rule.rights
                entity = owner
        if not rights:
            raise UnauthorizedError("InvalidSignature: The token has an invalid signature or key name.")
        return Grant(path, rights, parsed.expires_ms, entity)

    def login(self, name: str, key: str, now_ms: int) -> Iterator[Grant]:
        """The grants of a rule's name and key, on all entities. None if they are wrong."""
        for path, rules in (("", self._rules.authorization_rules()), *self._rules.rules_by_path().items()):
            for rule in rules:
                if rule.key_name.casefold() == name.casefold() and _matches_a_key(rule, key):
                    yield Grant(path, rule.rights, now_ms + LOGIN_MS, path or None)

    def _rules_covering(self, path: str) -> Iterator[tuple[str | None, AuthorizationRule]]:
        """The rules that cover the path, each with the entity it belongs to."""
        for rule in self._rules.authorization_rules():
            yield None, rule
        segments = path.split("/")[:MAX_PATH_SEGMENTS]
        for end in range(1, len(segments) + 1):
            owner = "/".join(segments[:end])
            if _belongs(owner, path):
                for rule in self._rules_of(owner):
                    yield owner, rule

    def _rules_of(self, name: str) -> Iterable[AuthorizationRule]:
        if not name:
            return ()
        try:
            return getattr(self._rules.get(name), "authorization_rules", ())
        except EntityNotFoundError:
            return ()


def generate_key() -> str:
    """256 random bits, like the keys of the service."""
    return b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def sign(resource: str, key_name: str, key: str, expires_s: int) -> str:
    """A token for `resource`, like those of the SDKs."""
    encoded = quote_plus(resource)
    signature = quote_plus(_signature(f"{encoded}\n{expires_s}".encode(), key))
    return f"{SCHEME}sr={encoded}&sig={signature}&se={expires_s}&skn={quote_plus(key_name)}"


def address_path(address: str) -> str:
    """The path of an address: `amqps://host:port/entity`, `sb://host/entity` and `entity` all give `entity`."""
    _, separator, rest = address.partition("://")
    path = rest.partition("/")[2] if separator else address
    return unquote(path.partition("?")[0]).strip("/")


def entity_path(resource: str) -> str:
    """The path of an entity's URI, in lower case. The empty path is the namespace itself."""
    return address_path(resource).lower()


def _token_scope(encoded: str) -> str:
    """The path in a token's `sr`. Some clients leave out the scheme and start with the host."""
    resource = unquote_plus(encoded)
    return entity_path(resource if "://" in resource else f"sb://{resource}")


def _covers(scope: str, path: str) -> bool:
    return not scope or path == scope or path.startswith(scope + "/")


def _belongs(entity: str, path: str) -> bool:
    """Whether the path is the entity, or one of its subscriptions, sub-queues or nodes."""
    return path.startswith(entity) and (path == entity or path[len(entity) :].startswith(("/$", "/subscriptions/")))


def _signature(signed: bytes, key: str) -> str:
    return b64encode(hmac.digest(key.encode(), signed, hashlib.sha256)).decode()


def _matches_a_key(rule: AuthorizationRule, given: str, derive: Callable[[str], str] = str) -> bool:
    """Whether `given` is derived from one of the keys. Both are compared in full, so the time taken reveals nothing."""
    primary = hmac.compare_digest(derive(rule.primary_key).encode(), given.encode())
    secondary = hmac.compare_digest(derive(rule.secondary_key).encode(), given.encode())
    return primary or secondary


def _parse(token: str) -> _Token:
    text = token.removeprefix(BEARER)
    if len(text) > MAX_TOKEN_LENGTH or not text.startswith(SCHEME):
        raise UnauthorizedError("MalformedToken: The token must start with 'SharedAccessSignature sr='.")
    parts = dict(part.partition("=")[::2] for part in text.removeprefix(SCHEME).split("&"))
    missing = [name for name in ("sr", "sig", "se", "skn") if not parts.get(name)]
    if missing:
        raise UnauthorizedError(f"MalformedToken: The token lacks {', '.join(missing)}.")
    expiry = parts["se"]
    if not expiry.isascii() or not expiry.isdigit() or len(expiry) > 15:
        raise UnauthorizedError("MalformedToken: The token's 'se' must be a whole number of seconds since 1970.")
    # Some clients encode the key name twice: accept both readings.
    once = unquote_plus(parts["skn"])
    names = frozenset({once.casefold(), unquote_plus(once).casefold()})
    return _Token(parts["sr"], unquote(parts["sig"]), expiry, names, int(expiry) * 1_000)


# --- the TLS certificate ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    ca_file: Path
    server_file: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.server_file)
        context.set_alpn_protocols(["http/1.1"])
        return context


def ensure_certificate(folder: Path) -> ServerCertificate:
    """The certificate of the folder. It is made if it is missing or incomplete."""
    certificate = ServerCertificate(folder / "ca.pem", folder / "server.pem")
    if not (certificate.ca_file.exists() and certificate.server_file.exists()):
        ca_pem, server_pem = _make_certificates()
        # `ca.pem` is written last: without it the pair counts as missing.
        certificate.ca_file.unlink(missing_ok=True)
        replace_private(certificate.server_file, server_pem, durable=True)
        replace_private(certificate.ca_file, ca_pem, mode=0o644, durable=True)
    return certificate


def _make_certificates() -> tuple[bytes, bytes]:
    """The PEM texts of the authority and of the server (key and certificate)."""
    # Imported here: a folder that has its certificate does not need the library.
    import trustme

    authority = trustme.CA(organization_name="pairbus", organization_unit_name="embedded namespace authority")
    server = authority.issue_cert(*HOSTS, organization_name="pairbus", organization_unit_name="embedded namespace")
    return authority.cert_pem.bytes(), server.private_key_and_cert_chain_pem.bytes()
