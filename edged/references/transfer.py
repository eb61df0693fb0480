"""Downloads files over HTTPS, and from object stores with `obstore`.

Passwords and tokens are sent only to the host for which they are meant, not to the target of a redirect. Messages
contain no passwords or tokens, and show URLs without the query.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from email.message import Message
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from edged import packages
from edged.errors import DaemonUnavailable, NotFound, OutOfSpace, Refused, TooLarge, Unauthenticated, Unsupported
from edged.files import disk_fault
from edged.references.reference import is_private
from edged.version import __version__

_QUIET_S = 30.0  # the longest time without a byte
_ANSWER_S = 40.0  # the longest time until all headers are there, and for an answer that describes a model
T = TypeVar("T")
_SLOWEST = 10_000  # bytes a second
_PIECE = 1 << 20
_LARGEST_ANSWER = 4 << 20  # bytes of an answer that describes a model
_AWS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
_SPARE = 64 << 20  # bytes that a download leaves free


class Challenged(Unauthenticated):
    """The source requires credentials. `challenge` is the value of its header WWW-Authenticate."""

    def __init__(self, message: str, challenge: str) -> None:
        super().__init__(message)
        self.challenge = challenge


class Location(NamedTuple):
    """The location of a file. `headers` are sent only to the host of `url`. `digest` is the SHA-256 that the source
    announces, in hexadecimal digits; empty if unknown. `is_optional`: it is no error if the source does not have the
    file."""

    url: str
    headers: Mapping[str, str] = {}
    digest: str = ""
    is_optional: bool = False


def shown(url: str) -> str:
    """Return a URL for messages, without query and password."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an invalid address"
    text = f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:300])


def answer(url: str, headers: Mapping[str, str] = {}) -> tuple[bytes, Mapping[str, str]]:
    """Send a GET request. Return the body, and the headers by lower-case name. Raises TooLarge for a body of more than
    4 MiB, and the errors of `save` except the errors of the disk."""
    with _opened(Location(url, headers)) as response:
        data = _within(lambda: _read(response.read, url, _LARGEST_ANSWER + 1), url)
        if len(data) > _LARGEST_ANSWER:
            raise TooLarge(f"{shown(url)} answers with more than {_LARGEST_ANSWER >> 20} MiB")
        return data, {name.lower(): value for name, value in response.headers.items()}


def answered_json(url: str, headers: Mapping[str, str] = {}) -> object:
    """Send a GET request and return the decoded JSON of the body. Raises the errors of `answer`, and Refused if the
    body is not JSON."""
    data, _ = answer(url, headers)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{shown(url)} does not answer in JSON: {error}") from None


def save(location: Location, file: Path, moved: Callable[[int], None]) -> None:
    """Download a file. `moved` is called with the number of bytes so far. Raises:

    - NotFound if the source does not have the file
    - Unauthenticated if the source requires credentials, or refuses the given ones
    - Refused if the source refuses the request for another reason, or if the file cannot be written
    - DaemonUnavailable if the source cannot be reached, is too slow, or stops early
    - OutOfSpace or DiskFailing if the disk is full or fails
    - Unsupported if the package `obstore` is missing
    """
    done, began = 0, time.monotonic()
    try:
        with file.open("xb") as out:
            for piece in _pieces(location, file.parent):
                out.write(piece)
                done += len(piece)
                moved(done)
                if shutil.disk_usage(file.parent).free < _SPARE:
                    raise OutOfSpace(f"{file.parent} has no space for {shown(location.url)}; free some space")
                if time.monotonic() - began > _QUIET_S + done / _SLOWEST:
                    raise DaemonUnavailable(f"{shown(location.url)} is too slow; try again")
    except OSError as error:
        raise disk_fault(file.parent, error) or Refused(
            f"{file} cannot be written: {error.strerror or error}"
        ) from None


def _pieces(location: Location, folder: Path) -> Iterator[bytes]:
    if urlsplit(location.url).scheme in ("s3", "gs", "az"):
        yield from _stored(location.url)
        return
    with _opened(location) as response:
        expected = response.length or 0
        if expected + _SPARE > shutil.disk_usage(folder).free:
            raise OutOfSpace(f"{folder} has no space for the {expected >> 20} MiB of {shown(location.url)}; free some")
        left = expected
        while piece := _read(response.read1, location.url, _PIECE):
            left -= len(piece)
            yield piece
        if expected and left:
            raise DaemonUnavailable(f"{shown(location.url)} stopped sending {left} bytes too early; try again")


def _read(read: Callable[[int], bytes], url: str, most: int) -> bytes:
    try:
        return read(most)
    except (OSError, http.client.HTTPException) as error:
        raise DaemonUnavailable(f"{shown(url)} stopped sending: {error}; try again") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects that lead from HTTPS, or from this machine, to an unencrypted address."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme
        is_weaker = scheme != "https" if req.type == "https" else is_private(req.full_url) and not is_private(newurl)
        if is_weaker or scheme not in ("https", "http"):
            raise Refused(f"{shown(req.full_url)} redirects to {shown(newurl)}; this address is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


@contextmanager
def _opened(location: Location) -> Iterator[http.client.HTTPResponse]:
    place = shown(location.url)
    # A digest protects the file, but not the headers of the request.
    if not is_private(location.url) and (location.headers or not location.digest):
        raise Refused(f"{place} is not https: others could alter the file and read passwords; use https")
    try:
        request = urllib.request.Request(location.url, headers={"User-Agent": f"edged/{__version__}"})  # noqa: S310
        for name, value in location.headers.items():
            request.add_unredirected_header(name, value)
        opener = urllib.request.build_opener(_Redirects)
        response: http.client.HTTPResponse = _within(lambda: opener.open(request, timeout=_QUIET_S), location.url)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            challenge = error.headers.get("WWW-Authenticate", "")
            raise Challenged(
                f"{place} requires credentials, or different ones (HTTP {error.code}); see docs/references.md",
                challenge,
            ) from None
        kind = NotFound if error.code in (404, 410) else Refused
        raise kind(f"{place} answers HTTP {error.code}") from None
    except OSError as error:
        reason = str(getattr(error, "reason", None) or error)[:200]
        raise DaemonUnavailable(f"{place} cannot be reached: {reason}") from None
    except (http.client.HTTPException, ValueError) as error:  # the errors' texts may have parts of the request
        raise Refused(f"{place} is not an HTTP server, or its address is invalid ({type(error).__name__})") from None
    with response:
        if response.status != 200:
            raise Refused(f"{place} answers HTTP {response.status} instead of 200 with the file")
        yield response


def _within(call: Callable[[], T], url: str) -> T:
    """Call a function in a thread and return its result. After 40 s, abandon the thread and raise DaemonUnavailable: a
    socket's timeout does not limit a server that sends a byte now and then. Raises the errors of the call."""
    done: queue.SimpleQueue[tuple[bool, T | BaseException]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((True, call()))
        except BaseException as error:
            done.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        is_good, found = done.get(timeout=_ANSWER_S)
    except queue.Empty:
        raise DaemonUnavailable(f"{shown(url)} does not answer within {_ANSWER_S:g} s; try again") from None
    if not is_good:
        raise cast("BaseException", found)
    return cast("T", found)


def signing(scheme: str) -> dict[str, Any]:
    """Return the options with which `obstore` opens a store of this scheme. If the environment has no credentials,
    requests to S3 are not signed, because the library would ask the metadata service of Amazon's cloud for
    credentials."""
    return {"skip_signature": True} if scheme == "s3" and not any(map(os.environ.get, _AWS)) else {}


def _stored(url: str) -> Iterator[bytes]:
    """Yield the pieces of an object. Credentials, region and endpoint come from the environment variables that the
    store's own tools read, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL."""
    try:
        import obstore
        from obstore import exceptions
        from obstore.store import from_url
    except ImportError:
        raise Unsupported(
            f"{shown(url)} needs the package obstore; install it: {packages.install_extra('fleet')}"
        ) from None
    parts = urlsplit(url)
    options: dict[str, Any] = {"client_options": {"allow_http": is_private(os.environ.get("AWS_ENDPOINT_URL", ""))}}
    options["retry_config"] = {"max_retries": 2, "retry_timeout": timedelta(seconds=_QUIET_S)}
    try:
        store = from_url(f"{parts.scheme}://{parts.netloc}", **options, **signing(parts.scheme))
        for piece in obstore.get(store, parts.path.lstrip("/")).stream(_PIECE):
            yield bytes(piece)
    except (exceptions.NotFoundError, FileNotFoundError):
        raise NotFound(f"{shown(url)} does not exist") from None
    except (exceptions.UnauthenticatedError, exceptions.PermissionDeniedError, PermissionError) as error:
        raise Unauthenticated(
            f"{shown(url)} requires credentials, or different ones: {_first_line(error)}; see docs/references.md"
        ) from None
    except (exceptions.BaseError, OSError) as error:
        raise DaemonUnavailable(f"{shown(url)} cannot be read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
