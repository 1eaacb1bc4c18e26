"""Lines that no writer writes because of their length: replaced, at every position and boundary."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.ledger.files import MOST_LINE_BYTES, with_short_lines

MOST = MOST_LINE_BYTES


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize(
    "sizes",
    [
        [MOST],
        [MOST + 1],
        [1, MOST, 1],
        [1, MOST + 1, 1],
        [MOST - 1, 3 * MOST, MOST, 1],
        [5, 2 * MOST, 2 * MOST + 1, 5],
        [100] * 30_000 + [MOST + 1] + [100] * 30_000,
    ],
)
def test_only_lines_above_the_limit_are_replaced(tmp_path: Path, sizes: list[int], end: bytes) -> None:
    lines = [b"x" * (size - 1) for size in sizes]
    file = tmp_path / "p.000001.jsonl"
    file.write_bytes(b"\n".join(lines) + b"x" * (not end) + end)
    (read,) = with_short_lines([file], tmp_path / "copies")
    is_long = [size > MOST for size in sizes]
    assert (read == file) == (not any(is_long))
    assert read.name == file.name
    result = read.read_bytes().splitlines()
    assert len(result) == len(lines)
    for size, line, shown in zip(sizes, lines, result, strict=True):
        assert shown == (
            b"(a line of %d bytes) %s" % (size, b"x" * 1000) if size > MOST else line + b"x" * (len(shown) - len(line))
        )
