"""A library does not print: where its log lines go is for the application to say."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("imported", ["pairbus", "pairbus.aio", "pairbus.pairing.observers"])
def test_a_warning_is_not_printed_unless_the_application_asks_for_it(imported: str) -> None:
    script = f"import logging, {imported}; logging.getLogger('pairbus.pairing').warning('orders: failed over')"
    quiet = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert quiet.stderr == ""
    asked = f"import logging; logging.basicConfig(); {script}"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stderr.count("orders: failed over") == 1
