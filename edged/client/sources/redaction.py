"""Addresses without their secrets, for messages and logs."""

from __future__ import annotations

import re

_USER = re.compile(
    r"//[^\s/?#]*@"  # as a URL should have it
    r"|//[^\s/:@]+:(?!\d+/)\S*@"  # a password with a slash or the like in it, which people type
)
_QUERY = re.compile(
    r"(?i)([?&](?:user(?:name)?|usr|login|pass(?:word|wd)?|pwd|token|auth|(?:api)?key|secret)=)[^&#\s'\"]*"
)


def redact(text: str) -> str:
    """A URL, or a text with URLs in it, without users, passwords, and what a query calls by such a name."""
    return _QUERY.sub(r"\1***", _USER.sub("//", text))
