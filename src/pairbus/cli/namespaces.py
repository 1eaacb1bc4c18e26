"""Namespaces as people name them on the command line. Connection strings come from somewhere else, by preference."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pairbus.cli import settings
from pairbus.cli.parsing import holds_key
from pairbus.cli.refusal import Refusal
from pairbus.cli.voice import remark

if TYPE_CHECKING:
    from pairbus.embedded.running import RunningServer
    from pairbus.syphon import Namespace

_MOST_DIGITS = 4
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}")
HELP = (
    "Where the connection string is: env:VARIABLE, a file that holds it, or the ready file, data folder or name of an "
    "embedded namespace; or HOST.servicebus.windows.net, with the Azure credential of this machine."
)


class NotRunning(Refusal):
    """What was given can only be an embedded namespace, and none of that name or in that folder runs."""

    def __init__(self, sentence: str, *, given: str, start: str, name: str | None) -> None:
        super().__init__(sentence)
        self.given = given
        self.start = start
        """The command that starts it."""
        self.name = name
        """None if only its folder is known: a folder does not keep the name."""


def is_named(given: str | None, variable: str) -> bool:
    """Whether anything says which namespace it is: the option, the environment, the file of --config."""
    return bool(given or os.environ.get(variable) or settings.shared(variable.removeprefix("PAIRBUS_").lower()))


def namespace(option: str, given: str | None, variable: str) -> Namespace:
    """The namespace that the user means; without the option, the one in the environment variable."""
    from pairbus.syphon import Namespace

    if given is None:
        given = (
            f"env:{variable}" if variable in os.environ else settings.shared(variable.removeprefix("PAIRBUS_").lower())
        )
        if given is None:
            raise Refusal(
                f"Neither {option}, nor the environment variable {variable}, nor a --config names the namespace: "
                f"give one of them, such as {option} env:VARIABLE."
            )
    verify = settings.ca_file()
    try:
        if given.startswith("env:"):
            return Namespace.parse(_environment(option, given[4:]), connection_verify=verify)
        if holds_key(given):
            remark(f"{option}: everyone on this machine can read a connection string that is typed; use a file.")
            return Namespace.parse(given, connection_verify=verify)
        found = _described(given)
        if found is not None:
            return Namespace.parse(found.connection_string, connection_verify=found.ca_file, name=found.name)
        if Path(given).is_file():
            text = Path(given).read_text(encoding="utf-8").strip()
            return Namespace.parse(text, connection_verify=verify)
    except ValueError as error:
        raise Refusal(f"{option}: {error}") from error
    except OSError as error:
        raise Refusal(f"{option} '{given}' cannot be read: {error.strerror}.") from error
    if _is_stopped_folder(Path(given)):
        start = f"pairbus serve NAME --data {shlex.quote(given)}"
        sentence = f"{option} '{given}' is the data folder of a namespace that is not running: start it with `{start}`."
        raise NotRunning(sentence, given=given, start=start, name=None)
    if given.casefold().endswith(".json") and not Path(given).exists():
        raise Refusal(
            f"{option} '{given}' is a file that does not exist: start the embedded namespace whose ready file it is, "
            "or give another file."
        )
    if "." in given and "/" not in given:
        return Namespace.at(given, _azure_credential(option))
    sentence = (
        f"{option} '{given}' is no namespace: give env:VARIABLE, a file, a running embedded namespace, or a host name."
    )
    if _PLAIN_NAME.fullmatch(given) and not Path(given).exists():
        raise NotRunning(sentence, given=given, start=f"pairbus serve {given} --data FOLDER", name=given)
    raise Refusal(sentence)


def _environment(option: str, variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise Refusal(f"{option} names the environment variable '{variable}', which is not set: set it.")
    return value


def _described(given: str) -> RunningServer | None:
    """An embedded namespace, by its ready file, data folder or name; perhaps one that was killed: it may come back."""
    from pairbus.embedded.running import DATA_FOLDER_FILE, RunningServer, known_servers

    path = Path(given)
    if path.is_dir() and (path / DATA_FOLDER_FILE).exists():
        path = path / DATA_FOLDER_FILE
    if path.is_file():
        try:
            return RunningServer.read(path)
        except (ValueError, json.JSONDecodeError):
            return None  # a file that holds a connection string
    return next((server for server in known_servers() if server.name.casefold() == given.casefold()), None)


def _is_stopped_folder(folder: Path) -> bool:
    """Whether an embedded namespace kept its data here and the process that held the folder last is gone."""
    from pairbus.embedded.server import LOCK_FILE
    from pairbus.embedded.store import FILE_NAME

    if not (folder / FILE_NAME).is_file():
        return False
    try:
        # Read, not locked: a server that starts just now must find the folder free.
        os.kill(int((folder / LOCK_FILE).read_text(encoding="ascii")), 0)
    except (ProcessLookupError, FileNotFoundError):
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False


def _azure_credential(option: str) -> object:
    try:
        from azure.identity.aio import DefaultAzureCredential
    except ImportError as error:
        raise Refusal(
            f"{option} is a host name, which needs azure-identity: pip install 'pairbus[identity]'."
        ) from error
    return DefaultAzureCredential()


def numbers(option: str, text: str) -> list[int]:
    """`0-9`, `0,2,5-7` as a list of numbers."""
    found: list[int] = []
    for piece in text.split(","):
        low, dash, high = piece.strip().partition("-")
        if not low.isascii() or not low.isdigit() or (dash and not (high.isascii() and high.isdigit())):
            raise Refusal(f"{option} '{text[:60]}' is no list of numbers: give something like 0-9 or 0,2,5-7.")
        last = high if dash else low
        if max(len(low), len(last)) > _MOST_DIGITS or int(low) > int(last):
            raise Refusal(f"{option} '{text[:60]}' is out of range: numbers go from 0 to 9999, the lower one first.")
        found += range(int(low), int(last) + 1)
    return sorted(set(found))
