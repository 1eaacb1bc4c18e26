"""What a namespace's administration answers when it does not do what it was asked for, in one line."""

from __future__ import annotations

import re

from azure.core.exceptions import HttpResponseError

_DETAIL = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)
_TLS = re.compile(r" ssl:(?:<[^>]*>|\w+)")
_REFUSED = (401, 403)


def is_refused(error: BaseException) -> bool:
    """Whether the credential was not accepted, or has not the right."""
    return isinstance(error, HttpResponseError) and error.status_code in _REFUSED


def told(error: BaseException) -> str:
    """The detail of the service's answer, or the error's text without what only its program understands."""
    text = str(error)
    found = _DETAIL.search(text)
    line = found[1] if found is not None else _TLS.sub("", text)
    return " ".join(line.split()).rstrip(".") or type(error).__name__
