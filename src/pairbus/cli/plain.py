"""Texts that strangers chose (ids, reasons, errors of a namespace), for a terminal or a file.

They are shown as they are, on one line, and can do nothing: what is not printable is written as its escape.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """The text without anything that a terminal would obey or hide: `a\\x1b[31m` for an escape sequence."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _escaped(one) for one in text)


def counted(number: int, thing: str) -> str:
    """`1 day`, `2 days`, `1,000 records`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
