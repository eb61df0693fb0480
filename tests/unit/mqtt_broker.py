"""A small broker on the loopback: MQTT 3.1.1 (OASIS standard, 3.1 to 3.14). Subscribers get messages with QoS 0.

It records published and retained messages, and publishes the will of a client that leaves without a DISCONNECT.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

_CONNECT, _PUBLISH, _SUBSCRIBE, _PINGREQ, _DISCONNECT = 1, 3, 8, 12, 14


@dataclass(frozen=True)
class Published:
    topic: str
    payload: bytes
    qos: int
    retain: bool


class Broker:
    """A broker. `refuse` is the return code of CONNACK. While `stalled` is set, it does not read."""

    def __init__(self, port: int = 0, *, refuse: int = 0) -> None:
        self.published: list[Published] = []
        self.retained: dict[str, bytes] = {}
        self.logins: list[tuple[str | None, str | None]] = []
        self.stalled, self._over = threading.Event(), threading.Event()
        self._refuse = refuse
        self._connections: list[socket.socket] = []
        self._subscribed: list[tuple[socket.socket, str]] = []
        self._sending = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Broker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.drop()
        self._thread.join(10)

    def drop(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def wait_for(self, topic: str, payload: bytes | None = None, count: int = 1, seconds: float = 20) -> Published:
        """Wait for `count` messages with this topic, and payload if given. Return the newest."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = [m for m in self.published if m.topic == topic and payload in (None, m.payload)]
            if len(found) >= count:
                return found[-1]
            time.sleep(0.01)
        raise AssertionError(f"no {topic} {payload!r} among {[(m.topic, m.payload[:40]) for m in self.published]}")

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        will: Published | None = None
        with connection, connection.makefile("rb") as reader:
            try:
                while head := reader.read(1):
                    if self.stalled.is_set():
                        self._over.wait()
                    kind, flags, body = head[0] >> 4, head[0] & 15, reader.read(_length(reader))
                    if kind == _CONNECT:
                        will = self._on_connect(body)
                        connection.sendall(bytes([0x20, 2, 0, self._refuse]))
                    elif kind == _PUBLISH:
                        self._on_publish(connection, flags, body)
                    elif kind == _SUBSCRIBE:
                        self._on_subscribe(connection, body)
                    elif kind == _PINGREQ:
                        self._send(connection, b"\xd0\0")
                    elif kind == _DISCONNECT:
                        will = None
                        return
            except (OSError, IndexError):
                pass
            finally:
                if will is not None:
                    self._keep(will)

    def _on_connect(self, body: bytes) -> Published | None:
        flags, at = body[7], 10
        _, at = _text(body, at)
        will = None
        if flags & 4:
            topic, at = _text(body, at)
            payload, at = _text(body, at)
            will = Published(topic.decode(), payload, (flags >> 3) & 3, bool(flags & 32))
        user = password = None
        if flags & 128:
            user, at = _text(body, at)
        if flags & 64:
            password, at = _text(body, at)
        self.logins.append((user and user.decode(), password and password.decode()))
        return will

    def _on_publish(self, connection: socket.socket, flags: int, body: bytes) -> None:
        topic, at = _text(body, 0)
        qos = (flags >> 1) & 3
        if qos:
            self._send(connection, b"\x40\x02" + body[at : at + 2])
            at += 2
        self._keep(Published(topic.decode(), body[at:], qos, bool(flags & 1)))

    def _on_subscribe(self, connection: socket.socket, body: bytes) -> None:
        """Accept a subscription to one topic filter, and send the retained messages."""
        wanted = _text(body, 2)[0].decode()
        self._subscribed.append((connection, wanted))
        self._send(connection, b"\x90\x03" + body[:2] + b"\0")
        for topic, payload in list(self.retained.items()):
            if _matches(wanted, topic):
                self._send(connection, _packed(topic, payload, retain=True))

    def _send(self, connection: socket.socket, data: bytes) -> None:
        with self._sending:
            connection.sendall(data)

    def _keep(self, message: Published) -> None:
        self.published.append(message)
        if message.retain and message.payload:
            self.retained[message.topic] = message.payload
        elif message.retain:
            self.retained.pop(message.topic, None)
        for connection, wanted in list(self._subscribed):
            if _matches(wanted, message.topic):
                with contextlib.suppress(OSError):  # the subscriber has gone
                    self._send(connection, _packed(message.topic, message.payload))


def _matches(wanted: str, topic: str) -> bool:
    """Whether a topic matches a filter, which may have the sign for any level (+)."""
    levels, parts = wanted.split("/"), topic.split("/")
    return len(levels) == len(parts) and all(a in ("+", b) for a, b in zip(levels, parts, strict=True))


def _packed(topic: str, payload: bytes, *, retain: bool = False) -> bytes:
    body, size = len(topic).to_bytes(2, "big") + topic.encode() + payload, b""
    left = len(body)
    while left or not size:
        size += bytes([left % 128 + 128 * (left >= 128)])
        left //= 128
    return bytes([_PUBLISH << 4 | retain]) + size + body


def _length(reader: object) -> int:
    value = shift = 0
    while True:
        byte = reader.read(1)[0]  # type: ignore[attr-defined]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
        shift += 7


def _text(body: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    return body[at + 2 : end], end
