"""Reads a ledger."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pairbus.ledger import Record, closed_files


def records_in(folder: Path) -> list[Record]:
    """All records of a folder's closed files, in order."""
    decoder = msgspec.json.Decoder(Record)
    return [decoder.decode(line) for path in closed_files(folder) for line in path.read_bytes().splitlines()]
