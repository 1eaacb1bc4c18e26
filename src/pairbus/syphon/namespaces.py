"""The two namespaces as a syphon is given them: an address and a credential, and what the SDK makes of them.

Credentials stay the SDK's: a connection string is parsed by it, and tokens are made by it or by azure-identity. They
are never printed: the repr of a namespace is its host.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, HttpResponseError
from azure.servicebus import TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

_JWT_SCOPE = "https://servicebus.azure.net//.default"
_SAS_TYPE = "servicebus.windows.net:sastoken"
_UNTRUSTED = ("certificate verify failed", "certificate_verify_failed")
_DETAIL = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)
_TLS_OBJECT = re.compile(r" ssl:(?:<[^>]*>|\w+)")


@dataclass(frozen=True, slots=True)
class Namespace:
    """Where a namespace is and how to be let in. `host` has a port if it is not the service's own."""

    host: str
    tls: bool = True
    connection_verify: str | None = None
    _connection_string: str | None = field(default=None, repr=False)
    _credential: Any = field(default=None, repr=False)
    _way: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The SDK's options for how to get there, if not directly: web sockets, a proxy, a gateway, a TLS context."""
    name: str | None = None
    """What an embedded namespace is called: its host does not say."""

    @classmethod
    def parse(
        cls, connection_string: str, *, connection_verify: str | None = None, name: str | None = None
    ) -> Namespace:
        """From a connection string; raises ValueError without showing it."""
        try:
            client = ServiceBusClient.from_connection_string(connection_string)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"The connection string of {len(connection_string)} characters cannot be read ({error}); expected "
                "'Endpoint=sb://HOST/;SharedAccessKeyName=NAME;SharedAccessKey=KEY', as the portal shows it."
            ) from None
        return cls(
            client.fully_qualified_namespace,
            _uses_tls(client),
            connection_verify,
            _connection_string=connection_string,
            name=name,
        )

    @classmethod
    def at(cls, host: str, credential: Any, *, connection_verify: str | None = None) -> Namespace:
        """From a host name and a credential of azure-identity or azure-core."""
        return cls(host, connection_verify=connection_verify, _credential=credential)

    @classmethod
    def of(cls, client: Any) -> Namespace:
        """The namespace of one of the SDK's clients, sync or aio, with its credential."""
        config = client._config
        way = {
            "http_proxy": config.http_proxy,
            "custom_endpoint_address": client._custom_endpoint_address,
            "ssl_context": client._ssl_context,
        }
        if config.transport_type is not TransportType.Amqp:
            way["transport_type"] = config.transport_type
        return cls(
            client.fully_qualified_namespace,
            _uses_tls(client),
            client._connection_verify,
            _credential=client._credential,
            _way={name: value for name, value in way.items() if value is not None},
        )

    @property
    def plain_amqp(self) -> bool:
        """Whether AMQP connections can be made directly: not through web sockets or a gateway."""
        return not self._way

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the AMQP endpoint."""
        name, _, port = self.host.rpartition(":") if ":" in self.host else (self.host, "", "")
        return name, int(port) if port else (5671 if self.tls else 5672)

    @property
    def hostname(self) -> str:
        return self.address[0]

    def client(self, **options: Any) -> ServiceBusClient:
        """The SDK's aio client. The caller closes it."""
        options = {**self._way, **options}
        if self.connection_verify is not None:
            options["connection_verify"] = self.connection_verify
        if self._connection_string is not None:
            return ServiceBusClient.from_connection_string(self._connection_string, **options)
        return ServiceBusClient(self.host, _awaitable(self._credential), use_tls=self.tls, **options)

    def administration(self) -> ServiceBusAdministrationClient:
        """The SDK's aio administration client. The caller closes it."""
        options = {} if self.connection_verify is None else {"connection_verify": self.connection_verify}
        if self._connection_string is not None:
            return ServiceBusAdministrationClient.from_connection_string(self._connection_string, **options)
        return ServiceBusAdministrationClient(self.host, _awaitable(self._credential), **options)

    def tokens(self) -> TokenSource:
        # The SDK turns whatever credential it was given into one that makes tokens when it makes a sender.
        credential = self.client().get_queue_sender("-")._credential
        return TokenSource(credential)


class NamespaceError(RuntimeError):
    """A namespace did not do what its administration was asked for."""


class CredentialRefusedError(NamespaceError):
    """A namespace does not accept our credential, and nothing is left to do without it."""


@asynccontextmanager
async def administering(namespace: Namespace, what: str) -> AsyncIterator[ServiceBusAdministrationClient]:
    """The administration of a namespace; what goes wrong is told in a sentence that says what was wanted."""
    async with namespace.administration() as admin:
        try:
            yield admin
        except (AzureError, OSError) as error:
            raise NamespaceError(
                f"{what} in {namespace.host} failed: {str(error).rstrip('.')}. "
                + advice(error, "Check that the namespace answers and that the credential may manage its entities.")
            ) from error


class TokenSource:
    """Tokens of one namespace, for any audience in it."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        kind = getattr(credential, "token_type", b"jwt")
        self._sas = (kind.decode() if isinstance(kind, bytes) else str(kind)) == _SAS_TYPE

    @property
    def kind(self) -> str:
        return _SAS_TYPE if self._sas else "jwt"

    async def token(self, audience: str) -> tuple[str, int]:
        """The token, and when it ends (seconds since the epoch)."""
        found: AccessToken = await self._credential.get_token(audience if self._sas else _JWT_SCOPE)
        value: Any = found.token
        return (value.decode() if isinstance(value, bytes) else str(value)), int(found.expires_on)


class _Awaitable:
    """A sync credential for the aio SDK: asking for a token may mean a request, so it is asked on a thread."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        if hasattr(credential, "token_type"):
            self.token_type = credential.token_type

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        token: AccessToken = await asyncio.to_thread(self._credential.get_token, *scopes, **options)
        return token

    async def close(self) -> None:
        return None

    async def __aenter__(self) -> _Awaitable:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def _awaitable(credential: Any) -> Any:
    get_token = getattr(credential, "get_token", None)
    if get_token is None or inspect.iscoroutinefunction(get_token):
        return credential
    return _Awaitable(credential)


def _uses_tls(client: Any) -> bool:
    return bool(client._config.use_tls)


def is_untrusted(error: BaseException) -> bool:
    """Whether a connection failed because the server's certificate is not trusted, in any library's words."""
    return any(sign in str(error).lower() for sign in _UNTRUSTED)


def advice(error: BaseException, otherwise: str) -> str:
    """The remedy for an untrusted certificate, or `otherwise` for any other error."""
    if not is_untrusted(error):
        return otherwise
    return (
        "Trust its certificate: name a local namespace by its name or ready file, as in --secondary contoso-standby, "
        "or give the file of its authority (ca.pem in its folder) with PAIRBUS_CA_FILE, ca-file or connection_verify."
    )


def is_credential_refused(error: BaseException) -> bool:
    """Whether the administration does not accept the credential, or the credential lacks the right."""
    return isinstance(error, HttpResponseError) and error.status_code in (401, 403)


def describe_error(error: BaseException) -> str:
    """The administration's own explanation in one line, without full stop; otherwise the error's text."""
    text = str(error)
    detail = _DETAIL.search(text)
    line = detail[1] if detail is not None else _TLS_OBJECT.sub("", text)
    return " ".join(line.split()).rstrip(".") or type(error).__name__
