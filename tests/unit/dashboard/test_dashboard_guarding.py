"""Who may change something through the page: whoever has the token, all of it, and asks from the page itself."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from pairbus.dashboard.server import TOKEN_HEADER, refusal_of_change
from pairbus.loopback import names_this_machine

TOKEN = "k3y-of-the-page"
WRONG_TOKEN = "The control token is missing or wrong."
ANOTHER_PAGE = "The request came from another page."


def refusal(token: str | None = TOKEN, **headers: str) -> str | None:
    given = {"Host": "127.0.0.1:8400", TOKEN_HEADER: TOKEN}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    return refusal_of_change(CIMultiDict(given), token)


def test_the_token_opens() -> None:
    assert refusal() is None
    assert refusal(Origin="http://127.0.0.1:8400", Sec_Fetch_Site="same-origin") is None
    assert refusal(Sec_Fetch_Site="none") is None


@pytest.mark.parametrize("given", ["", TOKEN[:-1], TOKEN[1:], TOKEN + "x", TOKEN.upper(), "ü" * len(TOKEN)])
def test_anything_but_the_whole_token_is_refused(given: str) -> None:
    assert refusal(X_Pairbus_Token=given.encode().decode("latin-1")) == WRONG_TOKEN


def test_no_token_at_all_is_refused() -> None:
    assert refusal_of_change(CIMultiDict({"Host": "localhost"}), TOKEN) == WRONG_TOKEN


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://evil-127.0.0.1:8400",
        "http://127.0.0.1:8400.evil.example",
        "http://127.0.0.1:8401",
        "https://127.0.0.1:8400",
        "http://localhost:8400",
        "null",
        "",
    ],
)
def test_another_origin_is_refused_even_with_the_token(origin: str) -> None:
    assert refusal(Origin=origin) == ANOTHER_PAGE


@pytest.mark.parametrize("site", ["cross-site", "same-site", ""])
def test_what_a_browser_says_another_page_asked_is_refused_even_with_the_token(site: str) -> None:
    assert refusal(Sec_Fetch_Site=site) == ANOTHER_PAGE


def test_a_page_without_control_has_no_token_that_opens() -> None:
    for given in (TOKEN, "", "None"):
        said = refusal(None, X_Pairbus_Token=given)
        assert said is not None
        assert said.startswith("This page is read-only")


@pytest.mark.parametrize("host", ["localhost.evil.example", "evil.example@x", "127.0.0.1.evil.example", "::1", "", "["])
def test_only_names_of_this_machine_name_it(host: str) -> None:
    assert not names_this_machine(host)
