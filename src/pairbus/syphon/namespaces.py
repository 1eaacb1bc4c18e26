"""A namespace's address and credential, and the clients that they give.

Credentials stay the SDK's business: it parses connection strings, and it or azure-identity makes the tokens. They are
never printed: the repr of a namespace shows its host.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import certifi
from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.servicebus import TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairbus.amqp.outcomes import TokenUnavailableError
from pairbus.errors import UsageError

if TYPE_CHECKING:
    from pairbus.amqp.session import AmqpEndpoint
    from pairbus.amqp.websocket import WebSocketRoute

_JWT_SCOPE = "https://servicebus.azure.net//.default"
_SAS_TYPE = "servicebus.windows.net:sastoken"
_UNTRUSTED = ("certificate verify failed", "certificate_verify_failed")
_DETAIL = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)
_TLS_OBJECT = re.compile(r" ssl:(?:<[^>]*>|\w+)")


@dataclass(frozen=True, slots=True)
class Namespace:
    """The address of a namespace and a credential for it. `host` includes the port if it is not the service's own."""

    host: str
    tls: bool = True
    connection_verify: str | None = None
    _connection_string: str | None = field(default=None, repr=False)
    _credential: Any = field(default=None, repr=False)
    _route: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The SDK's options for an indirect route: web sockets, a proxy, a gateway, a TLS context."""
    name: str | None = None
    """The name of an embedded namespace, which its host does not show."""

    @classmethod
    def parse(
        cls, connection_string: str, *, connection_verify: str | None = None, name: str | None = None
    ) -> Namespace:
        """Read a connection string. Raises ValueError, which does not quote it."""
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
        """Take a host name and a credential of azure-identity or azure-core."""
        return cls(host, connection_verify=connection_verify, _credential=credential)

    @classmethod
    def of(cls, client: Any, loop: asyncio.AbstractEventLoop | None = None) -> Namespace:
        """Take the address, the credential and the route of an SDK client, sync or aio.

        `loop` is the loop on which an aio client's credential lives: its tokens are fetched there.
        """
        config = client._config
        route = {
            "http_proxy": config.http_proxy,
            "custom_endpoint_address": client._custom_endpoint_address,
            "ssl_context": client._ssl_context,
        }
        if config.transport_type is not TransportType.Amqp:
            route["transport_type"] = config.transport_type
        return cls(
            client.fully_qualified_namespace,
            _uses_tls(client),
            client._connection_verify,
            _credential=_on_its_loop(client._credential, loop),
            _route={name: value for name, value in route.items() if value is not None},
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the AMQP endpoint."""
        name, _, port = self.host.rpartition(":") if ":" in self.host else (self.host, "", "")
        return name, int(port) if port else (5671 if self.tls else 5672)

    @property
    def hostname(self) -> str:
        return self.address[0]

    def client(self, **options: Any) -> ServiceBusClient:
        """Make the SDK's aio client. The caller closes it."""
        options = {**self._route, **options}
        if self.connection_verify is not None:
            options["connection_verify"] = self.connection_verify
        if self._connection_string is not None:
            return ServiceBusClient.from_connection_string(self._connection_string, **options)
        return ServiceBusClient(self.host, _awaitable(self._credential), use_tls=self.tls, **options)

    def administration(self, **options: Any) -> ServiceBusAdministrationClient:
        """Make the SDK's aio administration client. The caller closes it."""
        if self.connection_verify is not None:
            options["connection_verify"] = self.connection_verify
        if self._connection_string is not None:
            return ServiceBusAdministrationClient.from_connection_string(self._connection_string, **options)
        return ServiceBusAdministrationClient(self.host, _awaitable(self._credential), **options)

    def endpoint(self) -> AmqpEndpoint:
        """Return what a raw AMQP session needs. Raises OSError if `connection_verify` cannot be read."""
        from pairbus.amqp.session import AmqpEndpoint

        # Whatever credential the SDK was given, it makes one that produces tokens when it makes a sender.
        tokens = SdkTokens(self.client().get_queue_sender("-")._credential)
        tls = (self._route.get("ssl_context") or self._tls_context()) if self.tls else None
        gateway = self._route.get("custom_endpoint_address")
        if "transport_type" in self._route:
            return AmqpEndpoint(self.host, self.address, tls, tokens, self._web_socket(gateway))
        address = self.address if gateway is None else _split_address(gateway, 5671)
        return AmqpEndpoint(self.host, address, tls, tokens)

    def _web_socket(self, gateway: str | None) -> WebSocketRoute:
        from pairbus.amqp.websocket import PATH, WebSocketRoute

        host, port = _split_address(gateway or self.hostname, 443)
        url = f"{'wss' if self.tls else 'ws'}://{host}:{port}{PATH}"
        settings = self._route.get("http_proxy")
        if settings is None:
            return WebSocketRoute(url)
        user, password = (quote(settings.get(key) or "", safe="") for key in ("username", "password"))
        proxy = settings["proxy_hostname"].rpartition("://")[2]
        login = f"{user}:{password}@" if user or password else ""
        return WebSocketRoute(url, f"http://{login}{proxy}:{settings['proxy_port']}")

    def _tls_context(self) -> ssl.SSLContext:
        """Trust only the file in `connection_verify`; without one, certifi's authorities and the system's."""
        context = ssl.create_default_context(cafile=self.connection_verify or certifi.where())
        if self.connection_verify is None:
            context.load_default_certs()
        return context


class NamespaceError(UsageError, RuntimeError):
    """An administration request to a namespace failed."""


class CredentialRefusedError(NamespaceError):
    """A namespace does not accept our credential, and the work cannot go on without it."""


@asynccontextmanager
async def administering(namespace: Namespace, purpose: str) -> AsyncIterator[ServiceBusAdministrationClient]:
    """Open a namespace's administration. Errors become a `NamespaceError` that names the purpose."""
    async with namespace.administration() as admin:
        try:
            yield admin
        except (AzureError, OSError) as error:
            raise NamespaceError(
                f"{purpose} in {namespace.host} failed: {str(error).rstrip('.')}. "
                + advice(error, "Check that the namespace answers and that the credential may manage its entities.")
            ) from error


class SdkTokens:
    """Tokens from an SDK credential, for any audience of one namespace."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        kind = getattr(credential, "token_type", b"jwt")
        self._is_sas = (kind.decode() if isinstance(kind, bytes) else str(kind)) == _SAS_TYPE

    @property
    def kind(self) -> str:
        return _SAS_TYPE if self._is_sas else "jwt"

    async def token(self, audience: str) -> tuple[str, int]:
        try:
            access: AccessToken = await self._credential.get_token(audience if self._is_sas else _JWT_SCOPE)
        except AzureError as error:
            raise TokenUnavailableError(str(error)) from error
        value: Any = access.token
        return (value.decode() if isinstance(value, bytes) else str(value)), int(access.expires_on)


class _AwaitableCredential:
    """A sync credential for the aio SDK. Getting a token may block on a request, so it runs on a thread."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        if hasattr(credential, "token_type"):
            self.token_type = credential.token_type

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        token: AccessToken = await asyncio.to_thread(self._credential.get_token, *scopes, **options)
        return token

    async def close(self) -> None:
        return None

    async def __aenter__(self) -> _AwaitableCredential:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class _DistantCredential:
    """An aio credential that belongs to another event loop, which fetches its tokens."""

    def __init__(self, credential: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._credential = credential
        self._loop = loop

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        fetching = self._credential.get_token(*scopes, **options)
        try:
            token: AccessToken = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(fetching, self._loop))
        except RuntimeError as error:
            fetching.close()
            raise ClientAuthenticationError(f"The application's event loop fetches no tokens: {error}.") from error
        return token

    async def close(self) -> None:
        return None

    async def __aenter__(self) -> _DistantCredential:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def _on_its_loop(credential: Any, loop: asyncio.AbstractEventLoop | None) -> Any:
    """The credential for use on other loops than its own. Those of the SDK itself, for keys, have no loop."""
    if loop is None or hasattr(credential, "token_type"):
        return credential
    return _DistantCredential(credential, loop) if hasattr(credential, "get_token") else credential


def _awaitable(credential: Any) -> Any:
    get_token = getattr(credential, "get_token", None)
    if get_token is None or inspect.iscoroutinefunction(get_token):
        return credential
    return _AwaitableCredential(credential)


def _split_address(address: str, default_port: int) -> tuple[str, int]:
    """Host and port of `sb://HOST:PORT`, as the SDK reads it: the scheme and the port may be missing."""
    parts = urlsplit(address if "//" in address else f"//{address}")
    return parts.hostname or "", parts.port or default_port


def _uses_tls(client: Any) -> bool:
    return bool(client._config.use_tls)


def is_untrusted(error: BaseException) -> bool:
    """Whether a connection failed because the server's certificate is not trusted, in any library's words."""
    return any(sign in str(error).lower() for sign in _UNTRUSTED)


def advice(error: BaseException, otherwise: str) -> str:
    """Return the remedy for an untrusted certificate, or `otherwise` for any other error."""
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
    """Return the administration's explanation, or else the error's text, in one line without a full stop."""
    text = str(error)
    detail = _DETAIL.search(text)
    line = detail[1] if detail is not None else _TLS_OBJECT.sub("", text)
    return " ".join(line.split()).rstrip(".") or type(error).__name__
