"""A real Chromium for the page, and the page's own server as a user starts it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "Chromium is not installed: install it for the browser tests (apt-get install chromium)"
DEADLINE_MS = 120_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One for each file, not for the session: as long as it is there, nobody else can run an event loop here."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Served:
    """A running page: its address, its token if it has one, and its process."""

    def __init__(self, address: str, token: str | None, process: subprocess.Popen[str]) -> None:
        self.address = address
        self.token = token
        self._process = process

    @property
    def port(self) -> int:
        return int(self.address.rstrip("/").rpartition(":")[2])

    def stop(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(60) == 0


@contextmanager
def _serve(state_folder: Path, *options: str, port: int = 0) -> Iterator[Served]:
    command = [sys.executable, "-m", "pairbus.cli", "dashboard", "--port", str(port), "--state-dir", str(state_folder)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
            assert found is not None
            token = None
            if "--allow-control" in options:
                (file,) = state_folder.glob("dashboard-*.token")
                token = file.read_text().strip()
            served = Served(found[0], token, process)
            yield served
            if process.poll() is None:
                served.stop()
        finally:
            process.kill()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:
        yield lambda *words, **details: stack.enter_context(_serve(*words, **details))


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page in a fresh profile; when the test ends, nothing may have gone wrong in its console."""
    complaints: list[str] = []
    with ExitStack() as stack:

        def open_one(address: str, *, may_complain: bool = False, **profile: Any) -> Page:
            context = chromium.new_context(**profile)
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(DEADLINE_MS)
            if not may_complain:
                page.on(
                    "console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None
                )
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(address)
            return page

        yield open_one
    assert complaints == []
