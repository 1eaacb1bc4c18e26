"""TOML that somebody wrote by hand. PURE.

Whatever is in a file, reading it ends with its content or with a ValueError that says in one line what is wrong: the
standard library's reader also ends with RecursionError, and gives numbers that Python then refuses to print.
"""

from __future__ import annotations

import tomllib
from typing import Any

_DEEPEST = 50
_TOO_DEEP = "it is nested too deeply"
_TOO_LARGE = "it has a whole number of more than 64 bits"
_LARGEST = 2**63 - 1  # as far as TOML asks readers to go


def read_toml(raw: bytes | str) -> dict[str, Any]:
    """The content of a file; ValueError if it is no TOML, nested too deeply, or has a number of more than 64 bits."""
    try:
        content = tomllib.loads(raw if isinstance(raw, str) else raw.decode("utf-8"))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python does not read numbers of thousands of digits
        raise ValueError(_TOO_LARGE) from None
    _check(content, 1)
    return content


def _check(value: Any, depth: int) -> None:
    if isinstance(value, dict | list):
        if depth > _DEEPEST:
            raise ValueError(_TOO_DEEP)
        for one in value.values() if isinstance(value, dict) else value:
            _check(one, depth + 1)
    elif isinstance(value, int) and not -_LARGEST - 1 <= value <= _LARGEST:
        raise ValueError(_TOO_LARGE)
