"""What somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

FEW = 20


def meant(given: str, known: Iterable[str], *, otherwise: str = "known are") -> str:
    """The end of a sentence: the likeliest of the known words; without one, all of them if they are few."""
    words = sorted(known)
    close = get_close_matches(given.lower(), [word.lower() for word in words], n=1, cutoff=0.6)
    if close:
        found = next(word for word in words if word.lower() == close[0])
        return f"did you mean '{found}'?"
    if words and len(words) <= FEW:
        return f"{otherwise} {', '.join(words)}."
    return f"there are {len(words)} of them."
