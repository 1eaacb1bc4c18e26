"""The documentation builds as a site, strictly and without the network, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        # A proxy that refuses everything: what would be fetched fails.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Loaded(HTMLParser):
    """What a browser fetches by itself for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADING.get(tag, ""))
        if address is not None:
            self.addresses.append(address)


def loaded(page: Path) -> Iterator[str]:
    parser = Loaded()
    parser.feed(page.read_text(encoding="utf-8"))
    yield from parser.addresses


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        for address in loaded(page):
            assert not re.match(r"(\w+:)?//", address), f"{page.name}: {address}"
            if page.name != "404.html":  # it is shown at any address, so its own are absolute
                assert (page.parent / address.partition("#")[0].partition("?")[0]).exists(), f"{page.name}: {address}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(\w+:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_hidden_comments_show_nothing(site: Path) -> None:
    """What the tests of the blocks are told is not for readers."""
    for page in site.rglob("*.html"):
        assert not re.search(r"&lt;!-- (setup|check|not run)", page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_the_repository_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / target).exists(), target


def test_the_picture_of_the_demo_shows_a_run_without_loss_and_loads_nothing() -> None:
    picture = (ROOT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")
    assert "lost&#160;0,&#160;duplicated" in picture
    assert set(re.findall(r"https?://[^\"<\s]+", picture)) == {"http://www.w3.org/2000/svg"}
