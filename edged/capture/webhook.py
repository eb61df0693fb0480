"""Sends events of zones and lines as HTTP POST requests."""

from __future__ import annotations

import base64
import contextlib
import http.client
import logging
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from edged.errors import InvalidInput, redact
from edged.ipc.capture_messages import Happened

_WAITING = 64  # events in the queue; a further event replaces the oldest
_PATIENCE_S = 10.0  # limit for one request
_PAUSES = (1.0, 5.0, 20.0)  # between attempts for one event, in seconds
_REDIRECTS = (301, 302, 303, 307, 308)

_log = logging.getLogger("edged.capture")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: urllib would follow them without the body, and send the password to another server."""

    def redirect_request(self, *_: object) -> None:
        return None


class Webhook:
    """Posts each event as JSON from its own thread, in up to four attempts. `problem` says why the last attempt failed;
    it is empty after a success. `dropped` counts events that were not delivered."""

    def __init__(self, url: str, camera: str, model: str, wait: Callable[[float], bool] | None = None) -> None:
        """`wait` waits for the given seconds; if it returns True, the attempts for the current event end. Raises
        InvalidInput if the URL does not begin with http:// or https://."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise InvalidInput(
                f"{redact(url)!r} is not the address of a webhook; write http://HOST/PATH or https://HOST/PATH"
            )
        self.problem, self.dropped = "", 0
        self._url, self._headers = _credentials(url)
        self._about = {"camera": camera, "model": model}
        # The variable http_proxy is meant for other programs, so its proxy is not used.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._waiting: queue.Queue[Happened | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="edged-webhook", daemon=True)
        self._thread.start()

    def put(self, happened: Happened) -> None:
        """Queue an event without waiting. If the queue is full, drop the oldest event."""
        while True:
            try:
                return self._waiting.put_nowait(happened)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._waiting.get_nowait()
                    self.dropped += 1

    def close(self) -> None:
        """Send the queued events, with one attempt each; wait a few seconds at most."""
        self._stopped.set()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(_PATIENCE_S / 4)

    def _run(self) -> None:
        while (happened := self._waiting.get()) is not None:
            self._deliver(happened)

    def _deliver(self, happened: Happened) -> None:
        body = msgspec.json.encode({**self._about, **msgspec.to_builtins(happened)})
        for pause in (*_PAUSES, None):
            self.problem = self._post(body)
            if not self.problem:
                return
            if pause is None or self._wait(pause):
                break
        self.dropped += 1
        _log.warning("an event for webhook %s is dropped: %s", redact(self._url), self.problem)

    def _post(self, body: bytes) -> str:
        """Send a request; return why it failed, or an empty string."""
        request = urllib.request.Request(self._url, body, self._headers)  # noqa: S310 - checked
        try:
            with self._opener.open(request, timeout=_PATIENCE_S):
                return ""
        except urllib.error.HTTPError as error:
            if (place := error.headers.get("Location")) and error.code in _REDIRECTS:
                return f"the server redirects to {redact(place)!r}; give that address"
            return f"the server answered with HTTP status {error.code}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            return redact(str(getattr(reason, "strerror", None) or reason) or type(error).__name__)


def _credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without user and password, and the headers of a request, with the user and password in them."""
    parts, headers = urlsplit(url), {"Content-Type": "application/json"}
    if parts.username is None:
        return url, headers
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), headers
