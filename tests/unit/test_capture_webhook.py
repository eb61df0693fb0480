"""Events as HTTP requests: order, retries, dropped events, and no delay for the camera."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from edged.capture.webhook import Webhook
from edged.errors import InvalidInput
from edged.ipc.capture_messages import Happened
from tests.waiting import wait


class Receiver:
    """An HTTP server that answers with these statuses in turn, then with 200."""

    def __init__(self, statuses: list[int], delay: float = 0.0) -> None:
        self.bodies: list[dict[str, object]] = []
        self.authorization: list[str | None] = []
        self.gets = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(delay)
                status = statuses.pop(0) if statuses else 200
                outer.authorization.append(self.headers.get("Authorization"))
                if status == 200:
                    outer.bodies.append(json.loads(body))
                self.send_response(status)
                if status in (301, 307):
                    self.send_header("Location", f"http://me:secret@127.0.0.1:{outer.port}/new")
                self.end_headers()

            def do_GET(self) -> None:
                outer.gets += 1

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@contextmanager
def receiver(*statuses: int, delay: float = 0.0) -> Iterator[Receiver]:
    made = Receiver(list(statuses), delay)
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()


def happened(number: int) -> Happened:
    return Happened("occupied", f"zone{number}", "person", float(number), "")


def no_wait(seconds: float) -> bool:
    return False


def test_put_events_arrive_in_order_with_credentials_as_a_header() -> None:
    with receiver() as at:
        hook = Webhook(f"http://user:p%40ss@127.0.0.1:{at.port}/x", "hall", "doors")
        for number in range(3):
            hook.put(happened(number))
        wait(lambda: len(at.bodies) == 3)
        hook.close()
    assert [body["place"] for body in at.bodies] == ["zone0", "zone1", "zone2"]
    assert at.bodies[0]["camera"] == "hall"
    assert at.authorization[0] == "Basic dXNlcjpwQHNz"
    assert (hook.dropped, hook.problem) == (0, "")


def test_put_event_that_fails_is_retried() -> None:
    with receiver(500, 503) as at:
        hook = Webhook(f"http://127.0.0.1:{at.port}/x", "hall", "doors", no_wait)
        hook.put(happened(1))
        wait(lambda: len(at.bodies) == 1)
        hook.close()
    assert (hook.dropped, hook.problem) == (0, "")


def test_put_event_that_is_always_refused_is_dropped_and_the_next_arrives() -> None:
    with receiver(500, 500, 500, 500) as at:
        hook = Webhook(f"http://127.0.0.1:{at.port}/x", "hall", "doors", no_wait)
        hook.put(happened(1))
        wait(lambda: hook.dropped == 1)
        assert "500" in hook.problem
        hook.put(happened(2))
        wait(lambda: len(at.bodies) == 1)
        hook.close()
    assert at.bodies[0]["place"] == "zone2"


@pytest.mark.parametrize("status", [301, 307])
def test_put_redirect_is_a_problem_and_not_followed(status: int) -> None:
    with receiver(*[status] * 4) as at:
        hook = Webhook(f"http://me:secret@127.0.0.1:{at.port}/hook", "hall", "m", no_wait)
        hook.put(happened(1))
        wait(lambda: hook.dropped == 1)
        hook.close()
        assert "redirects to" in hook.problem
        assert "give that address" in hook.problem
        assert "secret" not in hook.problem
        assert (at.gets, at.bodies) == (0, [])


def test_put_event_with_an_invalid_answer_is_dropped_and_the_next_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    """The receiver is not an HTTP server. The log does not contain the address's token."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(b"SSH-2.0-other\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        hook = Webhook(f"http://127.0.0.1:{server.server_address[1]}/x?token=s3cret", "hall", "doors", no_wait)
        for number in (1, 2):
            hook.put(happened(number))
        wait(lambda: hook.dropped == 2)
        hook.close()
        server.shutdown()
    assert hook.problem
    assert "s3cret" not in caplog.text


def test_put_with_a_slow_receiver_does_not_block() -> None:
    with receiver(delay=0.2) as at:
        hook = Webhook(f"http://127.0.0.1:{at.port}/x", "hall", "doors")
        began = time.monotonic()
        for number in range(500):
            hook.put(happened(number))
        assert time.monotonic() - began < 5.0  # it would be 100 s if each waited for the one before
        assert hook.dropped > 400
        hook.close()


@pytest.mark.parametrize("url", ["ftp://host/x", "http:///x", "host/x", ""])
def test_webhook_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        Webhook(url, "hall", "doors")
