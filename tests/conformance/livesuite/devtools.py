"""The test framework the suite is written against (``devtools_testutils``), which is not published.

Here every test is live and nothing is recorded, so recording, sanitising and matching are empty. Preparers make a
resource before a test, hand it to the test as keyword arguments, and remove it afterwards; a cached one is made once
per process and arguments.
"""

import functools
import inspect
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.aio._base_handler_async import (
    ServiceBusSharedKeyCredential as AsyncServiceBusSharedKeyCredential,
)

from livesuite import namespaces

RESOURCE_GROUP_PARAM = "resource_group"

Test = Callable[..., Any]
AnyTest = TypeVar("AnyTest", bound=Test)


class AzureTestError(Exception):
    """Raised by the suite's preparers."""


class ReservedResourceNameError(Exception):
    """Raised by the suite's preparers."""


class AzureRecordedTestCase:
    """Base class of the suite's tests."""

    is_live = True

    @staticmethod
    def await_prepared_test(test: AnyTest) -> AnyTest:
        """Preparers here await coroutines themselves."""
        return test


class AzureMgmtRecordedTestCase(AzureRecordedTestCase):
    """Base class of the suite's tests that make resources."""


@dataclass(frozen=True, slots=True)
class FakeResource:
    """A resource by name."""

    name: str
    id: str


class _KeyOfTheNamespace:
    """The manager's key of whichever namespace a token is asked for: the suite has one credential for all."""

    @staticmethod
    def policy_and_key(scope: str) -> tuple[str, str]:
        namespace = namespaces.by_host(urlsplit(scope).netloc)
        if namespace is None:
            return "RootManageSharedAccessKey", "no-such-namespace"
        return namespace.key_name, namespace.key


class SuiteCredential(ServiceBusSharedKeyCredential):
    """Signs with the key of the namespace in the scope."""

    def __init__(self) -> None:
        super().__init__("", "")

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        policy, key = _KeyOfTheNamespace.policy_and_key(scopes[0])
        return ServiceBusSharedKeyCredential(policy, key).get_token(*scopes, **kwargs)


class AsyncSuiteCredential(AsyncServiceBusSharedKeyCredential):
    """Signs with the key of the namespace in the scope."""

    def __init__(self) -> None:
        super().__init__("", "")

    async def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        policy, key = _KeyOfTheNamespace.policy_and_key(scopes[0])
        return await AsyncServiceBusSharedKeyCredential(policy, key).get_token(*scopes, **kwargs)


def get_credential(*, is_async: bool = False, **options: Any) -> Any:
    """Shared keys instead of Entra: the SDK's own credential classes, so that its own code paths run."""
    return AsyncSuiteCredential() if is_async else SuiteCredential()


def get_region_override(default: str) -> str:
    """There are no regions."""
    return default


def recorded_by_proxy(test: AnyTest) -> AnyTest:
    """Nothing is recorded."""
    return test


recorded_by_proxy_async = recorded_by_proxy


def nothing(*args: Any, **kwargs: Any) -> None:
    """For sanitizers and matchers of recordings, of which there are none."""


set_custom_default_matcher = nothing
add_general_regex_sanitizer = nothing
add_remove_header_sanitizer = nothing
add_oauth_response_sanitizer = nothing


class AzureMgmtPreparer:
    """Makes a resource for a test. Subclasses (the suite's) say how in ``create_resource`` and ``remove_resource``."""

    is_live = True
    supplied_names: frozenset[str] = frozenset()

    _cached: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - one per process, on purpose

    def __init__(
        self,
        name_prefix: str = "",
        random_name_length: int = 24,
        *,
        playback_fake_resource: Any = None,
        disable_recording: bool = True,
        client_kwargs: Any = None,
        random_name_enabled: bool = False,
    ) -> None:
        self.name_prefix = name_prefix
        self.random_name_length = random_name_length
        self.random_name_enabled = random_name_enabled
        self.resource_moniker = name_prefix
        self.resource: Any = None
        self.client: Any = None
        self.test_class_instance: Any = None
        self._cache_key: str | None = None

    @property
    def moniker(self) -> str:
        return self.resource_moniker

    def set_cache(self, enabled: bool, *key: Any) -> None:
        """Keep what is made for later tests that ask for the same."""
        self._cache_key = repr((type(self).__name__, self.name_prefix, key)) if enabled else None

    def create_mgmt_client(self, client_class: Callable[..., Any], **options: Any) -> Any:
        return client_class(**options)

    def create_resource(self, name: str, **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError

    def remove_resource(self, name: str, **kwargs: Any) -> None:
        raise NotImplementedError

    def __call__(self, test: Test) -> Test:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def prepared_async(instance: Any, *args: Any, **kwargs: Any) -> None:
                kwargs, name = self._prepare(instance, kwargs)
                try:
                    await test(instance, *args, **_accepted(test, kwargs))
                finally:
                    self._clean_up(name, kwargs)

            return self._with_own_signature(prepared_async, test)

        @functools.wraps(test)
        def prepared(instance: Any, *args: Any, **kwargs: Any) -> None:
            kwargs, name = self._prepare(instance, kwargs)
            try:
                test(instance, *args, **_accepted(test, kwargs))
            finally:
                self._clean_up(name, kwargs)

        return self._with_own_signature(prepared, test)

    def _with_own_signature(self, wrapper: Test, test: Test) -> Test:
        """pytest must not look for fixtures called like the arguments that come from here."""
        signature = inspect.signature(test)
        kept = [p for p in signature.parameters.values() if p.name not in self.supplied_names]
        wrapper.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return wrapper

    def _prepare(self, instance: Any, kwargs: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        self.test_class_instance = instance
        if self._cache_key is not None and self._cache_key in self._cached:
            return {**kwargs, **self._cached[self._cache_key]}, None
        name = _random_name(self.name_prefix, self.random_name_length)
        made = self.create_resource(name, **kwargs)
        if self._cache_key is not None:
            self._cached[self._cache_key] = made
            return {**kwargs, **made}, None
        return {**kwargs, **made}, name

    def _clean_up(self, name: str | None, kwargs: dict[str, Any]) -> None:
        if name is None:
            return
        try:
            self.remove_resource(name, **kwargs)
        except Exception:  # the outcome of the test counts, not that of tidying up after it
            logging.getLogger(__name__).warning("could not remove %s", name, exc_info=True)


class _NamedGroupPreparer(AzureMgmtPreparer):
    def create_resource(self, name: str, **kwargs: Any) -> dict[str, Any]:
        return {RESOURCE_GROUP_PARAM: FakeResource(name, name), "location": "here"}

    def remove_resource(self, name: str, **kwargs: Any) -> None:
        """A name is all there is."""


ResourceGroupPreparer = RandomNameResourceGroupPreparer = CachedResourceGroupPreparer = _NamedGroupPreparer


class PowerShellPreparer(AzureMgmtPreparer):
    """Gives the management tests a namespace of their own, which they empty as they like."""

    def __init__(self, directory: str, **fakes: str) -> None:
        super().__init__(directory)
        self.supplied_names = frozenset(fakes)
        self._fakes = fakes

    def create_resource(self, name: str, **kwargs: Any) -> dict[str, Any]:
        namespace = namespaces.start(namespaces.MANAGEMENT_NAMESPACE)
        return self._fakes | {
            "servicebus_connection_str": namespace.connection_string(namespace.key_name, namespace.key),
            "servicebus_fully_qualified_namespace": namespace.host,
            "servicebus_sas_policy": namespace.key_name,
            "servicebus_sas_key": namespace.key,
        }

    def remove_resource(self, name: str, **kwargs: Any) -> None:
        """The namespace serves the next test, too."""


def _accepted(test: Test, kwargs: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(test).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return kwargs
    names = {p.name for p in parameters}
    return {name: value for name, value in kwargs.items() if name in names}


def _random_name(prefix: str, length: int) -> str:
    letters = max(6, length - len(prefix))
    return prefix + secrets.token_hex(letters)[: min(letters, 12)]
