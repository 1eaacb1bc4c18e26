"""The calls of Azure's resource manager that the suite's fixtures make, answered by embedded namespaces.

Entities are made through the namespace's own administration API with the official client; a namespace is made by
starting one. Stands in for ``azure.mgmt.resource``, ``azure.mgmt.servicebus`` and its ``models``.
"""

import base64
import json
import secrets
import urllib.request
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from azure.servicebus.management import AccessRights as EntityRights
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient

from livesuite import namespaces
from livesuite.namespaces import Namespace

T = TypeVar("T")


class AccessRights(StrEnum):
    """Rights as the resource manager spells them."""

    manage = "Manage"
    send = "Send"
    listen = "Listen"


@dataclass(frozen=True, slots=True)
class SBQueue:
    """What a queue is asked to be."""

    lock_duration: str
    requires_duplicate_detection: bool = False
    dead_lettering_on_message_expiration: bool = False
    requires_session: bool = False
    enable_partitioning: bool = False


@dataclass(frozen=True, slots=True)
class SBSubscription:
    """What a subscription is asked to be."""

    requires_session: bool = False
    lock_duration: str = "PT60S"


@dataclass(frozen=True, slots=True)
class SBAuthorizationRule:
    """The rights of a key."""

    rights: list[AccessRights] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Resource:
    """Whatever was made: the suite only reads names."""

    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Keys:
    """A key and the connection string that carries it."""

    key_name: str
    primary_key: str
    primary_connection_string: str


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """A long-running operation that has ended."""

    value: T

    def result(self) -> T:
        return self.value


class _ResourceGroups:
    def create_or_update(self, name: str, parameters: Any) -> Resource:
        return Resource(name)

    def begin_delete(self, name: str, polling: bool = False) -> Done[None]:
        return Done(None)


class ResourceManagementClient:
    """Resource groups have no counterpart here: a name is all there is."""

    def __init__(self, **options: Any) -> None:
        self.resource_groups = _ResourceGroups()


class _Namespaces:
    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], str] = {}

    def begin_create_or_update(self, group: str, name: str, parameters: Any) -> Done[Resource]:
        return Done(Resource(namespaces.start(name).name))

    def delete(self, group: str, name: str) -> None:
        """Namespaces live until the run ends; the suite's caches still hold them."""

    def list_keys(self, group: str, name: str, rule: str) -> Keys:
        namespace = namespaces.start(name)
        key = namespace.key if rule == namespace.key_name else self._keys[name, rule]
        return Keys(rule, key, namespace.connection_string(rule, key))

    def create_or_update_authorization_rule(
        self, group: str, name: str, rule: str, wanted: SBAuthorizationRule
    ) -> Resource:
        """Keys of a whole namespace are not in the administration API, but in the embedded server's control."""
        key = self._keys[name, rule] = _new_key()
        body = {"rights": [str(right) for right in wanted.rights], "primary_key": key}
        _control(namespaces.start(name), "PUT", f"/$pairbus/authorization-rules/{rule}", body)
        return Resource(rule)

    def delete_authorization_rule(self, group: str, name: str, rule: str) -> None:
        _control(namespaces.start(name), "DELETE", f"/$pairbus/authorization-rules/{rule}", None)


class _Queues:
    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], str] = {}

    def create_or_update(self, group: str, namespace: str, name: str, wanted: SBQueue) -> Resource:
        with _administration(namespace) as client:
            client.create_queue(
                name,
                lock_duration=wanted.lock_duration,
                requires_duplicate_detection=wanted.requires_duplicate_detection,
                dead_lettering_on_message_expiration=wanted.dead_lettering_on_message_expiration,
                requires_session=wanted.requires_session,
                enable_partitioning=wanted.enable_partitioning,
            )
        return Resource(name)

    def delete(self, group: str, namespace: str, name: str) -> None:
        with _administration(namespace) as client:
            client.delete_queue(name)

    def create_or_update_authorization_rule(
        self, group: str, namespace: str, queue: str, rule: str, wanted: SBAuthorizationRule
    ) -> Resource:
        key = self._keys[queue, rule] = _new_key()
        with _administration(namespace) as client:
            description = client.get_queue(queue)
            description.authorization_rules = [
                AuthorizationRule(
                    type="SharedAccessAuthorizationRule",
                    claim_type="SharedAccessKey",
                    claim_value="None",
                    key_name=rule,
                    rights=[EntityRights(str(right)) for right in wanted.rights],
                    primary_key=key,
                    secondary_key=_new_key(),
                )
            ]
            client.update_queue(description)
        return Resource(rule)

    def list_keys(self, group: str, namespace: str, queue: str, rule: str) -> Keys:
        key = self._keys[queue, rule]
        return Keys(rule, key, namespaces.start(namespace).connection_string(rule, key, entity_path=queue))

    def delete_authorization_rule(self, group: str, namespace: str, queue: str, rule: str) -> None:
        """The queue is removed right after, and its keys with it."""


class _Topics:
    def create_or_update(self, group: str, namespace: str, name: str, wanted: Any) -> Resource:
        with _administration(namespace) as client:
            client.create_topic(name)
        return Resource(name)

    def delete(self, group: str, namespace: str, name: str) -> None:
        with _administration(namespace) as client:
            client.delete_topic(name)


class _Subscriptions:
    def create_or_update(self, group: str, namespace: str, topic: str, name: str, wanted: SBSubscription) -> Resource:
        with _administration(namespace) as client:
            client.create_subscription(
                topic, name, requires_session=wanted.requires_session, lock_duration=wanted.lock_duration
            )
        return Resource(name)

    def delete(self, group: str, namespace: str, topic: str, name: str) -> None:
        with _administration(namespace) as client:
            client.delete_subscription(topic, name)


_KEYS_OF_NAMESPACES = _Namespaces()
_KEYS_OF_QUEUES = _Queues()


class ServiceBusManagementClient:
    """One per fixture in the suite; what they made is remembered for the whole process, as the cloud does."""

    def __init__(self, **options: Any) -> None:
        self.namespaces = _KEYS_OF_NAMESPACES
        self.queues = _KEYS_OF_QUEUES
        self.topics = _Topics()
        self.subscriptions = _Subscriptions()


def _administration(namespace: str) -> ServiceBusAdministrationClient:
    running = namespaces.start(namespace)
    return ServiceBusAdministrationClient.from_connection_string(
        running.connection_string(running.key_name, running.key)
    )


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def _control(namespace: Namespace, method: str, path: str, body: dict[str, Any] | None) -> None:
    from livesuite.devtools import get_credential

    url = f"https://{namespace.host}"
    token = get_credential().get_token(url).token
    request = urllib.request.Request(
        url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": token, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request):
        pass
