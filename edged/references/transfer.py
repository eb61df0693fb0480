"""Downloads over HTTPS, and from object stores by `obstore`.

Passwords and tokens are sent only to the host that they are for, not to one that it redirects to. They are in no
message: a message shows a URL without its query.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import urlsplit

from edged import packages
from edged.errors import DaemonUnavailable, NotFound, OutOfSpace, Refused, TooLarge, Unauthenticated, Unsupported
from edged.files import disk_fault
from edged.references.reference import is_private
from edged.version import __version__

_QUIET_S = 30.0  # the longest time without a byte
_SLOWEST = 10_000  # bytes a second
_PIECE = 1 << 20
_LARGEST_ANSWER = 4 << 20  # bytes of an answer that describes a model
_SPARE = 64 << 20  # bytes that a download leaves free


class Challenged(Unauthenticated):
    """The source wants credentials. `challenge` is its header WWW-Authenticate."""

    def __init__(self, message: str, challenge: str) -> None:
        super().__init__(message)
        self.challenge = challenge


class Location(NamedTuple):
    """Where a file is. `headers` are sent to the host of `url` only. `digest` is the SHA-256 that the source names, in
    hexadecimal digits. `is_optional`: the source may not have the file."""

    url: str
    headers: Mapping[str, str] = {}
    digest: str = ""
    is_optional: bool = False


def shown(url: str) -> str:
    """Return a URL without query and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def answer(url: str, headers: Mapping[str, str] = {}) -> tuple[bytes, Mapping[str, str]]:
    """Return a small answer and its headers, by lower-case name. Raises as `save`."""
    with _opened(Location(url, headers)) as response:
        data = _read(response.read, url, _LARGEST_ANSWER + 1)
        if len(data) > _LARGEST_ANSWER:
            raise TooLarge(f"{shown(url)} answers with more than {_LARGEST_ANSWER >> 20} MiB")
        return data, {name.lower(): value for name, value in response.headers.items()}


def answered_json(url: str, headers: Mapping[str, str] = {}) -> object:
    """Return an answer in JSON. Raises as `save`, and Refused if it is no JSON."""
    data, _ = answer(url, headers)
    try:
        return json.loads(data)
    except ValueError as error:
        raise Refused(f"{shown(url)} does not answer in JSON: {error}") from None


def save(location: Location, file: Path, moved: Callable[[int], None]) -> None:
    """Write a file. `moved` is called with the number of bytes so far.

    Raises NotFound, Unauthenticated, or Refused as the source answers, DaemonUnavailable if it cannot be reached or
    stops, OutOfSpace or DiskFailing for the disk, and Unsupported if a package is missing.
    """
    done, began = 0, time.monotonic()
    try:
        with file.open("xb") as out:
            for piece in _pieces(location, file.parent):
                out.write(piece)
                done += len(piece)
                moved(done)
                if time.monotonic() - began > _QUIET_S + done / _SLOWEST:
                    raise DaemonUnavailable(f"{shown(location.url)} is too slow; try again")
    except OSError as error:
        raise disk_fault(file.parent, error) or Refused(f"{file} cannot be written: {error.strerror}") from None


def _pieces(location: Location, folder: Path) -> Iterator[bytes]:
    if urlsplit(location.url).scheme in ("s3", "gs", "az"):
        yield from _stored(location.url)
        return
    with _opened(location) as response:
        expected = response.length or 0
        if expected + _SPARE > shutil.disk_usage(folder).free:
            raise OutOfSpace(f"{shown(location.url)} has {expected >> 20} MiB, for which {folder} has no space")
        left = expected
        while piece := _read(response.read1, location.url, _PIECE):
            left -= len(piece)
            yield piece
        if expected and left:
            raise DaemonUnavailable(f"{shown(location.url)} ended {left} bytes too early; try again")


def _read(read: Callable[[int], bytes], url: str, most: int) -> bytes:
    try:
        return read(most)
    except (OSError, http.client.HTTPException) as error:
        raise DaemonUnavailable(f"{shown(url)} stopped: {error}; try again") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Refuses to leave HTTPS."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if is_private(req.full_url) and not is_private(newurl):
            raise Refused(f"{shown(req.full_url)} redirects to {shown(newurl)}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


@contextmanager
def _opened(location: Location) -> Iterator[http.client.HTTPResponse]:
    request = urllib.request.Request(location.url, headers={"User-Agent": f"edged/{__version__}"})  # noqa: S310
    for name, value in location.headers.items():
        request.add_unredirected_header(name, value)
    place = shown(location.url)
    if request.type not in ("https", "http"):
        raise Refused(f"{place} is no address of HTTP")
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=_QUIET_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            challenge = error.headers.get("WWW-Authenticate", "")
            raise Challenged(f"{place} needs other credentials (HTTP {error.code})", challenge) from None
        kind = NotFound if error.code in (404, 410) else Refused
        raise kind(f"{place} answers HTTP {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DaemonUnavailable(f"{place} cannot be reached: {reason}") from None
    with response:
        yield response


def _stored(url: str) -> Iterator[bytes]:
    """Read an object. Credentials, region and endpoint are those of the variables that the store's own tools read, such
    as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL."""
    try:
        import obstore
        from obstore import exceptions
        from obstore.store import from_url
    except ImportError:
        raise Unsupported(f"{url} needs obstore; install it: {packages.install_extra('fleet')}") from None
    parts = urlsplit(url)
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    try:
        store = from_url(f"{parts.scheme}://{parts.netloc}", client_options={"allow_http": plain})
        for piece in obstore.get(store, parts.path.lstrip("/")).stream(_PIECE):
            yield bytes(piece)
    except (exceptions.NotFoundError, FileNotFoundError):
        raise NotFound(f"{url} does not exist") from None
    except (exceptions.UnauthenticatedError, exceptions.PermissionDeniedError, PermissionError) as error:
        raise Unauthenticated(f"{url} needs other credentials: {_first_line(error)}") from None
    except (exceptions.BaseError, OSError) as error:
        raise DaemonUnavailable(f"{url} cannot be read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
