"""Searches what a program leaves behind for the secrets of its namespaces."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote_plus

import msgspec

HOMES = frozenset({"namespace.db", "namespace.db-wal", "server.pem", "server.json"})
"""The private files that hold a namespace's keys."""


def secrets_of(data: Path) -> set[bytes]:
    """The access keys and the private key of the namespace in this folder."""
    with closing(sqlite3.connect(f"file:{data / 'namespace.db'}?mode=ro", uri=True)) as database:
        (text,) = database.execute("SELECT value FROM setting WHERE name = 'authorization_rules'").fetchone()
    keys = [rule[name] for rule in msgspec.json.decode(text) for name in ("primary_key", "secondary_key")]
    pem = (data / "server.pem").read_bytes()
    private = pem[pem.index(b"PRIVATE KEY-----") :].splitlines()[1]
    return {private, *(form.encode() for key in keys for form in (key, quote_plus(key)))}


def leaks(secrets: set[bytes], *folders: Path) -> Iterator[Path]:
    """The files below these folders that have a secret and are not its home, or a home that others can read."""
    for folder in folders:
        for path in folder.rglob("*"):
            if (
                path.is_file()
                and not path.is_symlink()
                and not (path.name in HOMES and path.stat().st_mode & 0o77 == 0)
            ):
                content = path.read_bytes()
                if any(secret in content for secret in secrets):
                    yield path
