"""A stand-in for servers of models, on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Page = bytes | tuple[int, dict[str, str], bytes]


class StandIn(ThreadingHTTPServer):
    """Answers with `pages`: a body, or status, headers and body, by path. `asked` has the path and headers of each
    request. If `token` is set, every page but `/token` needs it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages: dict[str, Page] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.token = ""
        self.slow = False  # whether the headers take two seconds
        self.address = f"http://127.0.0.1:{self.server_port}"

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        found = self.server.pages.get(self.path.partition("?")[0], (404, {}, b""))
        status, headers, body = found if isinstance(found, tuple) else (200, {}, found)
        is_known = self.headers["Authorization"] == f"Bearer {self.server.token}" or "/token" in self.path
        if self.server.token and not is_known:
            realm = f'Bearer realm="{self.server.address}/token",service="box",scope="repository:a/b:pull"'
            status, headers, body = 401, {"WWW-Authenticate": realm}, b""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        if self.server.slow:
            time.sleep(2)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """A context in which a stand-in answers."""
    with StandIn() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
