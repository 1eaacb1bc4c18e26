"""Who may ask the page for what. ASGI, around everything else.

- Every request must name this machine (`Host`): a foreign name that was made to resolve to it is refused.
- Nothing is loaded from anywhere else, nothing may frame the page, nothing is kept by the browser.
- There are no cookies, so nothing rides along. Changing anything needs the token in a header of its own, which a page
  from elsewhere can neither read nor send, and an `Origin`, if there is one, that is this page's.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "X-Pairbus-Token"  # noqa: S105 - the name of a header
OUR_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class Guarded:
    """The application behind the rules above."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if not names_us(Headers(scope=scope).get("host", "")):
            refusal = JSONResponse({"error": "Ask for this page as localhost or 127.0.0.1."}, status_code=421)
            await refusal(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def names_us(host: str) -> bool:
    """Whether a Host header means this machine, whatever the port: a tunnel may have another one."""
    try:
        return urlsplit(f"//{host}").hostname in OUR_NAMES
    except ValueError:
        return False


def refusal_of_change(headers: Headers, token: str | None) -> str | None:
    """Why a request may not change anything; None if it may."""
    if token is None:
        return "This page is read-only: start it with --allow-control."
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{headers.get('host')}":
        return "This was asked by another page."
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return "This was asked by another page."
    given = headers.get(TOKEN_HEADER, "")
    if not hmac.compare_digest(given.encode(), token.encode()):
        return "The control token is missing or wrong."
    return None
