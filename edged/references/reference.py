"""Parses references to models, such as `https://HOST/PATH#sha256=HEX`. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from edged.errors import InvalidInput

SCHEMES = ("https", "http", "s3", "gs", "az", "oci", "hf", "roboflow")
_FORM = re.compile(rf"({'|'.join(SCHEMES)})://(\S+)", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_DIGEST = re.compile(r"sha256[=:]([0-9a-f]{64})", re.IGNORECASE)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Reference(NamedTuple):
    """A parsed reference. `place` is the text after `SCHEME://`, without the digest. `digest` is the SHA-256 of the
    model file in hexadecimal digits. If the reference has no digest, `digest` is empty, and later downloads of the
    model must equal the first download."""

    scheme: str
    place: str
    digest: str = ""

    @property
    def text(self) -> str:
        """The reference without the digest and without the query, which may have secrets."""
        return f"{self.scheme}://{self.place.partition('?')[0]}"

    @property
    def identity(self) -> str:
        """The reference without the digest, but with a query. It identifies the source of the file."""
        return f"{self.scheme}://{self.place}"


def parse(text: str) -> Reference | None:
    """Parse an argument. Return None for a path. Raises InvalidInput for a reference that cannot be used."""
    found = _FORM.fullmatch(text)
    if found is None:
        if _URL.match(text):
            raise InvalidInput(
                f"the scheme {text.partition(':')[0]!r} of the reference is not supported; use {', '.join(SCHEMES)}"
            )
        return None
    place, _, fragment = found[2].partition("#")
    try:
        parts = urlsplit(f"{found[1]}://{place}")
        is_usable = parts.port != 0 and text.isascii() and text.isprintable()
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InvalidInput("the reference is not a valid address; write special characters as %XX")
    if "@" in parts.netloc:
        raise InvalidInput(
            "a reference cannot have a user or password; use a server without login, or a signed address"
        )
    digest = _DIGEST.fullmatch(fragment)
    if fragment and digest is None:
        raise InvalidInput(f"#{fragment[:40]} is not a digest; append #sha256= and 64 hexadecimal digits")
    reference = Reference(found[1].lower(), place, digest[1].lower() if digest else "")
    if reference.scheme == "http" and not digest and not is_private(text):
        raise InvalidInput(f"a file from {reference.text} can be altered on its way; use https, or append #sha256=HEX")
    return reference


def is_private(url: str) -> bool:
    """Whether a URL has the scheme https, or has the scheme http and a host name of this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def file_name(url: str) -> str:
    """Return the last part of a URL's path if it can be the name of a file, otherwise "model.onnx"."""
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    return name if name and name not in (".", "..") and "\0" not in name else "model.onnx"
