"""A sink that shows the newest annotated picture in a browser: Motion JPEG over HTTP."""

from __future__ import annotations

import html
import logging
import socket
import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from edged.client.address import is_loopback
from edged.client.sinks.sink import Answered, Sink
from edged.errors import EdgedError, InvalidInput

_VIEWERS = 16
_PATIENCE_S = 10.0  # seconds until a viewer that does not read is disconnected
_BOUNDARY = "edged-frame"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{name}</title><style>body{{margin:0;background:#111;color:#ddd;font:16px system-ui}}
img{{display:block;max-width:100%;max-height:95vh;margin:auto}}p{{text-align:center;margin:.4em}}</style>
<img src="stream.mjpg" alt="The camera {name} with what was found in it"><p>{name} &middot; <a style="color:inherit"
href="still.jpg">one picture</a></p></html>"""

_log = logging.getLogger("edged.client")


def parse_address(text: str) -> tuple[int, str]:
    """Parse `PORT`, `HOST:PORT` or `[::]:PORT`; return port and host. Raises InvalidInput for any other text."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(f"{text!r} is not an address for a preview; give a port, such as 8090, or 0.0.0.0:8090")
    return int(port), host.strip("[]") or "127.0.0.1"


class Preview(Sink):
    """Serves a page with the live picture at `url`, the live picture alone at `/stream.mjpg`, and a single picture at
    `/still.jpg`.

    Listens on loopback if no `host` is given, because anyone who can connect sees the camera. Port 0 selects a free
    port. Pictures are annotated on demand; slow viewers skip pictures. Raises InvalidInput if the address cannot be
    used.
    """

    wants_pictures = True

    def __init__(self, port: int, host: str = "127.0.0.1", title: str = "camera") -> None:
        self.name = "preview"
        self.newest = Newest()
        try:
            self._server = _Server(self.newest, title, host, port)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise InvalidInput(
                f"the preview cannot listen on {host}:{port}: {why}; choose another port or host"
            ) from None
        address = f"[{host}]" if ":" in host else host
        self.url = f"http://{address}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="edged-preview", daemon=True
        )
        self._thread.start()

    def on_answer(self, answered: Answered) -> None:
        if answered.image is not None:
            self.newest.put(answered)

    def close(self) -> None:
        self.newest.end()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Newest:
    """Holds the newest answered picture. Several threads can wait for the next picture at the same time."""

    def __init__(self) -> None:
        self._answered: Answered | None = None
        self._number = 0
        self._ended = False
        self._changed = threading.Condition()
        self._encoding = threading.Lock()

    def put(self, answered: Answered) -> None:
        with self._changed:
            self._answered, self._number = answered, self._number + 1
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def after(self, number: int, patience: float) -> tuple[int, bytes] | None:
        """Wait for a picture newer than `number`; return its number and JPEG. Return None at the end, or if no picture
        arrives for `patience` seconds."""
        while (found := self._wait(number, patience)) is not None:
            number, answered = found
            with self._encoding:  # once for all viewers
                try:
                    jpeg = answered.jpeg
                except EdgedError:  # a picture that cannot be decoded
                    jpeg = None
            if jpeg is not None:
                return number, jpeg
        return None

    def _wait(self, number: int, patience: float) -> tuple[int, Answered] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self._ended, patience)
            if self._ended or self._answered is None or self._number <= number:
                return None
            return self._number, self._answered


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, newest: Newest, title: str, host: str, port: int) -> None:
        self.newest, self.title = newest, title
        self.viewers = threading.BoundedSemaphore(_VIEWERS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.is_local = is_loopback(host)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of this machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        _log.debug("a viewer of the preview went away", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "edged"
    sys_version = ""
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        # Against DNS rebinding: a page of another site must not read the camera.
        if self.server.is_local and not is_loopback(_hostname(self.headers.get("Host", ""))):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        match self.path.partition("?")[0]:
            case "/":
                page = _PAGE.format(name=html.escape(self.server.title))
                self._send("text/html; charset=utf-8", page.encode())
            case "/still.jpg":
                found = self.server.newest.after(0, _PATIENCE_S)
                if found is None:
                    self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "There is no picture yet")
                else:
                    self._send("image/jpeg", found[1])
            case "/stream.mjpg" if self.server.viewers.acquire(blocking=False):
                try:
                    self._stream()
                finally:
                    self.server.viewers.release()
            case "/stream.mjpg":
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "There are too many viewers")
            case _:
                self.send_error(HTTPStatus.NOT_FOUND)

    def _stream(self) -> None:
        self._begin(f"multipart/x-mixed-replace; boundary={_BOUNDARY}")
        number = 0
        while (found := self.server.newest.after(number, 3600.0)) is not None:
            number, jpeg = found
            head = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
            self.wfile.write(head.encode() + jpeg + b"\r\n")

    def _send(self, kind: str, body: bytes) -> None:
        self._begin(kind, len(body))
        self.wfile.write(body)

    def _begin(self, kind: str, length: int | None = None) -> None:
        self.send_response(HTTPStatus.OK)
        headers = {"Content-Type": kind, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        if length is not None:
            headers["Content-Length"] = str(length)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        _log.debug(format, *args)


def _hostname(header: str) -> str:
    """Return the host in a Host header, which is `name:port`, `[::1]:port` or a name alone."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
