"""HTTP requests to addresses that a daemon prints."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Mapping

Told = tuple[int, dict[str, str], bytes]


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path, self._seconds = path, timeout

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self._seconds)
        self.sock.connect(self._path)


def connection(url: str, timeout: float = 30.0, context: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
    """Return a connection to `http://HOST:PORT`, `https://HOST:PORT` or `http+unix:PATH`; it opens on first use."""
    scheme, _, place = url.partition(":")
    if scheme == "http+unix":
        return _UnixConnection(place, timeout)
    if scheme == "https":
        return http.client.HTTPSConnection(place.removeprefix("//"), timeout=timeout, context=context)
    return http.client.HTTPConnection(place.removeprefix("//"), timeout=timeout)


def ask(
    url: str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Told:
    """Make a request; return the status, the headers by lower-case name, and the body."""
    with contextlib.closing(connection(url, context=context)) as opened:
        opened.request(method, path, body, dict(headers or {}))
        answer = opened.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
