"""Tokens: what is signed, by whom, for what, and until when."""

import base64
import hashlib
import hmac
from dataclasses import replace
from urllib.parse import quote_plus

import pytest
from azure.servicebus._pyamqp.utils import generate_sas_token

from pairbus.embedded.entities.descriptions import (
    LISTEN,
    MANAGE,
    RIGHTS,
    SEND,
    AuthorizationRule,
    EntityDescription,
    QueueDescription,
    TopicDescription,
)
from pairbus.embedded.errors import EntityNotFoundError, UnauthorizedError
from pairbus.embedded.security import Authority, Grant, sign

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
LATER_S = NOW_S + 3600

ROOT = AuthorizationRule("RootManageSharedAccessKey", RIGHTS, "primary-root", "secondary-root")
SENDER = AuthorizationRule("sender", frozenset({SEND}), "primary-sender", "secondary-sender")
READER = AuthorizationRule("reader", frozenset({LISTEN}), "primary-reader", "secondary-reader")


class Namespace:
    """A namespace with one queue and one topic, each with a rule of its own."""

    def __init__(self) -> None:
        self.rules: tuple[AuthorizationRule, ...] = (ROOT,)
        self.queues = {"contoso/orders": QueueDescription("Contoso/Orders", authorization_rules=(SENDER,))}
        self.topics = {"events": TopicDescription("Events", authorization_rules=(READER,))}

    def authorization_rules(self) -> tuple[AuthorizationRule, ...]:
        return self.rules

    def get(self, path: str) -> EntityDescription:
        entity = self.queues.get(path.lower()) or self.topics.get(path.lower())
        if entity is None:
            raise EntityNotFoundError(path)
        return entity

    def rules_by_path(self) -> dict[str, tuple[AuthorizationRule, ...]]:
        return {path: entity.authorization_rules for path, entity in (self.queues | self.topics).items()}


@pytest.fixture
def namespace() -> Namespace:
    return Namespace()


@pytest.fixture
def authority(namespace: Namespace) -> Authority:
    return Authority(namespace)


def root_token(resource: str = "sb://localhost:5672/contoso/orders", expires_s: int = LATER_S) -> str:
    return sign(resource, "RootManageSharedAccessKey", "primary-root", expires_s)


def sdk_token(resource: str, key_name: str) -> str:
    token: str = generate_sas_token(resource, key_name, "primary-root", LATER_S)  # type: ignore[no-untyped-call]
    return token


def test_a_good_token_grants_the_rights_of_its_rule_on_the_audience(authority: Authority) -> None:
    grant = authority.check(root_token(), "sb://localhost:5672/contoso/orders", NOW_MS)
    assert grant == Grant("contoso/orders", RIGHTS, LATER_S * 1000)


@pytest.mark.parametrize("key", ["primary-root", "secondary-root"])
def test_either_key_signs(authority: Authority, key: str) -> None:
    token = sign("https://localhost:9/", "RootManageSharedAccessKey", key, LATER_S)
    assert authority.check(token, "https://127.0.0.1:10/anything", NOW_MS).rights == RIGHTS


def test_the_signature_covers_the_expiry_as_it_is_written(authority: Authority) -> None:
    token = root_token().replace(f"se={LATER_S}", f"se=0{LATER_S}")
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority.check(token, "sb://localhost:5672/contoso/orders", NOW_MS)


@pytest.mark.parametrize(
    ("key_name", "key"),
    [("RootManageSharedAccessKey", "wrong"), ("unknown", "primary-root"), ("sender", "primary-root")],
)
def test_wrong_keys_and_names_are_refused(authority: Authority, key_name: str, key: str) -> None:
    token = sign("sb://localhost/contoso/orders", key_name, key, LATER_S)
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority.check(token, "sb://localhost/contoso/orders", NOW_MS)


def test_a_changed_token_is_refused(authority: Authority) -> None:
    token = root_token().replace(f"se={LATER_S}", f"se={LATER_S + 1}")
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority.check(token, "sb://localhost/contoso/orders", NOW_MS)


@pytest.mark.parametrize("expires_s", [NOW_S, NOW_S - 1])
def test_an_expired_token_is_refused(authority: Authority, expires_s: int) -> None:
    with pytest.raises(UnauthorizedError, match="ExpiredToken"):
        authority.check(root_token(expires_s=expires_s), "sb://localhost/contoso/orders", NOW_MS)


def test_a_token_for_one_entity_does_not_reach_another(authority: Authority) -> None:
    with pytest.raises(UnauthorizedError, match="InvalidAudience"):
        authority.check(root_token(), "sb://localhost/contoso/orders2", NOW_MS)


def test_a_token_for_the_namespace_reaches_every_entity_but_its_grant_only_the_audience(
    authority: Authority,
) -> None:
    grant = authority.check(root_token("sb://localhost/"), "sb://localhost/events", NOW_MS)
    assert grant.allows("Events/Subscriptions/all/$DeadLetterQueue", LISTEN)
    assert grant.allows("events/$management", SEND)
    assert not grant.allows("contoso/orders", SEND)


def test_an_entitys_key_reaches_that_entity_and_below(authority: Authority) -> None:
    token = sign("sb://localhost/events/Subscriptions/all", "reader", "primary-reader", LATER_S)
    grant = authority.check(token, "sb://localhost/Events/subscriptions/ALL", NOW_MS)
    assert grant.allows("events/subscriptions/all", LISTEN)
    assert not grant.allows("events/subscriptions/all", SEND)
    assert not grant.allows("events/subscriptions/all", MANAGE)


@pytest.mark.parametrize("audience", ["sb://localhost/", "sb://localhost/events", "sb://localhost/contoso"])
def test_an_entitys_key_reaches_neither_neighbours_nor_the_namespace(authority: Authority, audience: str) -> None:
    token = sign("sb://localhost/", "sender", "primary-sender", LATER_S)
    assert authority.check(token, "sb://localhost/contoso/orders", NOW_MS).rights == {SEND}
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority.check(token, audience, NOW_MS)


def test_an_entitys_key_does_not_reach_an_entity_whose_name_goes_on_behind_a_slash(
    namespace: Namespace, authority: Authority
) -> None:
    namespace.queues["contoso/orders/archive"] = QueueDescription("contoso/orders/archive")
    token = sign("sb://localhost/contoso/orders", "sender", "primary-sender", LATER_S)
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority.check(token, "sb://localhost/contoso/orders/archive", NOW_MS)
    (login,) = authority.login("sender", "primary-sender", 0)
    for grant in (authority.check(token, "sb://localhost/contoso/orders", NOW_MS), login):
        assert grant.allows("Contoso/Orders/$management", SEND)
        assert not grant.allows("contoso/orders/archive", SEND)
        assert not grant.allows("contoso/orders2", SEND)


def test_manage_implies_send_and_listen() -> None:
    grant = Grant("", frozenset({MANAGE}), LATER_S)
    assert grant.allows("any", SEND)
    assert grant.allows("any", LISTEN)


def test_a_token_for_a_host_without_scheme_is_for_the_namespace(authority: Authority) -> None:
    token = sign("127.0.0.1:5672", "RootManageSharedAccessKey", "primary-root", LATER_S)
    assert authority.check(token, "sb://127.0.0.1:5672/events", NOW_MS).rights == RIGHTS


def test_a_replaced_key_is_refused_at_once(namespace: Namespace, authority: Authority) -> None:
    namespace.rules = (replace(ROOT, primary_key="new", secondary_key="newer"),)
    with pytest.raises(UnauthorizedError):
        authority.check(root_token(), "sb://localhost/contoso/orders", NOW_MS)


def test_the_signature_covers_the_resource_as_it_is_written(authority: Authority) -> None:
    """Other SDKs encode with lower-case hexadecimal digits: the signed text counts, not its meaning."""
    resource = "sb%3a%2f%2flocalhost%2fcontoso%2forders"
    digest = hmac.digest(b"primary-root", f"{resource}\n{LATER_S}".encode(), hashlib.sha256)
    signature = quote_plus(base64.b64encode(digest))
    token = f"SharedAccessSignature sr={resource}&sig={signature}&se={LATER_S}&skn=RootManageSharedAccessKey"
    assert authority.check(token, "sb://localhost/contoso/orders", NOW_MS).rights == RIGHTS


def test_the_sdks_token_is_good_also_behind_bearer(authority: Authority) -> None:
    token = sdk_token("https://localhost:1", "RootManageSharedAccessKey")
    assert authority.check("Bearer " + token, "https://localhost:1/contoso/orders", NOW_MS).rights == RIGHTS


def test_a_key_name_with_a_space_survives_the_sdks_double_encoding(namespace: Namespace, authority: Authority) -> None:
    namespace.rules = (replace(ROOT, key_name="my key"),)
    token = sdk_token("sb://localhost/q", "my key")
    assert authority.check(token, "sb://localhost/q", NOW_MS).rights == RIGHTS


@pytest.mark.parametrize(
    "token",
    [
        "",
        "Bearer eyJhbGciOi",
        "SharedAccessSignature ",
        "SharedAccessSignature sr=a&sig=b&se=1",
        "SharedAccessSignature sr=a&sig=b&se=soon&skn=c",
        "SharedAccessSignature sr=a&sig=b&se=٣&skn=c",
        "SharedAccessSignature sr=a&sig=b&se=" + "9" * 400 + "&skn=c",
        "SharedAccessSignature sr=" + "a" * 10_000 + "&sig=b&se=9&skn=c",
    ],
)
def test_malformed_tokens_are_refused(authority: Authority, token: str) -> None:
    with pytest.raises(UnauthorizedError, match="MalformedToken"):
        authority.check(token, "sb://localhost/contoso/orders", NOW_MS)


def test_a_name_and_key_allow_what_their_rule_does(authority: Authority) -> None:
    (root,) = authority.login(ROOT.key_name.upper(), ROOT.secondary_key, 0)
    assert root.allows("anything", "Manage")
    (sender,) = authority.login(SENDER.key_name, SENDER.primary_key, 0)
    assert sender.allows("contoso/orders", "Send")
    assert not sender.allows("contoso/orders", "Listen") and not sender.allows("events", "Send")
    assert list(authority.login(ROOT.key_name, SENDER.primary_key, 0)) == []
    assert list(authority.login("nobody", ROOT.primary_key, 0)) == []
