"""HTTP bodies that never complete, expand, or are costly to parse."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import zlib
from collections.abc import Callable

from tests.attack.abuse import NUMBERS, Abuse, Target
from tests.waiting import together

_MIB = 1 << 20
_PATH = f"/v2/models/{NUMBERS}/infer"


def _trickle(target: Target, until: float) -> None:
    """Open sockets that announce large bodies and send a few bytes at a time."""
    with contextlib.ExitStack() as ends:
        sockets = [ends.enter_context(_post(target, 60 * _MIB)) for _ in range(16)]
        while time.monotonic() < until:
            for each in sockets:
                with contextlib.suppress(OSError):
                    each.sendall(bytes(100))
            time.sleep(0.2)


def _bodies(body: Callable[[], bytes], headers: str = "") -> Callable[[Target, float], None]:
    """Post one body on several connections, as fast as the daemon answers."""

    def work(target: Target, until: float) -> None:
        data = body()

        def client(number: int) -> None:
            while time.monotonic() < until:
                with contextlib.suppress(OSError), _post(target, len(data), headers) as connection:
                    connection.settimeout(max(0.1, until - time.monotonic()))
                    connection.sendall(data)
                    connection.recv(1 << 16)

        together(client, 4)

    return work


def _post(target: Target, size: int, headers: str = "") -> socket.socket:
    host, _, port = target.http.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), 10)
    head = f"POST {_PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n{headers}\r\n"
    connection.sendall(head.encode())
    return connection


def _numbers() -> bytes:
    rows = 1 << 20
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": "@"}
    return json.dumps({"inputs": [tensor]}).replace('"@"', "[" + ",".join(["1.5"] * 4 * rows) + "]").encode()


def _packed() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(_MIB)) for _ in range(60)) + packer.flush()


ABUSES = (
    Abuse("HTTP bodies announced and trickled", _trickle),
    Abuse("HTTP, 16 MiB of numbers as text", _bodies(_numbers)),
    Abuse("HTTP, gzip that unpacks to 60 MiB", _bodies(_packed, "content-encoding: gzip\r\n")),
)
