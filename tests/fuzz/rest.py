"""HTTP requests with corrupted JSON and binary tensors, and with unusual heads."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import zlib
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fuzz import goods
from tests.fuzz.spoiling import spoiled
from tests.fuzz.tally import Tally
from tests.integration import web

if TYPE_CHECKING:
    from tests.fuzz.live import FuzzedDaemon

# Statuses that edged may return. Never 500, which would be a bug in edged.
_ALLOWED = {200, 204, 400, 403, 404, 405, 408, 409, 411, 413, 414, 417, 429, 431, 501, 503, 504}
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1e400,
        2**63,
        2**64,
        0.5,
        "",
        "x",
        "FP32",
        "\0",
        [],
        {},
        [[1, 2], [3, 4]],
        [1, [2]],
        "a" * 5000,
    ),
)
_PATHS = (
    *("v2", "v2/health/live", "v2/health/ready", "v2/models/stats", "v2/models/numbers", "v2/models/numbers/config"),
    *("v2/models/nobody/ready", "v2/models/numbers/versions/9/infer", "v2/repository/index", "v2/trace/setting"),
    *("v2/logging", "v2/systemsharedmemory/status", "v2/systemsharedmemory/region/region/register"),
    *("v2/cudasharedmemory/status", "v2/models/numbers/infer", "edged/v1/detect/shapes", "edged/v1/detect", "v2/a/b/c"),
)
_HEAD_GAMES = (
    *(b"content-length: -1", b"content-length: 5\r\ncontent-length: 6", b"transfer-encoding: chunked", b"x" * 20_000),
    *(b"transfer-encoding: gzip, chunked\r\ncontent-length: 3", b"expect: 100-continue", b"host: evil.example"),
    *(b"origin: http://evil.example", b"content-encoding: br", b"connection: close, x", b": empty", b" folded: x"),
    *(b"inference-header-content-length: 99999999999999999999", b"a: \xff\xfe", b"upgrade: h2c", b"range: bytes=0-1"),
)


def requests(daemon: FuzzedDaemon, random: Random, count: int, tally: Tally) -> None:
    """Send requests of every kind, one after another."""
    connection = web.connection(f"http+unix:{daemon.http}")
    for _ in range(count):
        tally.messages["HTTP"] += 1
        if random.random() < 0.25:
            _raw(daemon, random, tally)
            continue
        path, body, headers = _request(random)
        method = random.choice(("POST", "POST", "POST", "POST", "GET", "PUT", "OPTIONS", "HEAD"))
        try:
            connection.request(method, f"/{path}", body, headers)
            response = connection.getresponse()
            reported = response.read()
        except (OSError, http.client.HTTPException) as error:
            tally.statuses["HTTP"][type(error).__name__] += 1
            connection.close()
            continue
        _see(tally, response.status, reported, f"{method} /{path} {headers} {body[:600]!r}", method)
        if response.will_close:
            connection.close()
    connection.close()


def _request(random: Random) -> tuple[str, bytes, dict[str, str]]:
    path = random.choice(_PATHS) if random.random() < 0.4 else "v2/models/numbers/infer"
    if path.startswith("edged/"):
        body = goods.PICTURE if random.random() < 0.3 else spoiled(random, goods.PICTURE)
        return path, body, {"content-type": "image/jpeg"}
    body, headers = _inference(random)
    if random.random() < 0.5:
        body = spoiled(random, body)
    if random.random() < 0.1:
        packed = zlib.compress(body)
        body, headers["content-encoding"] = random.choice((packed, spoiled(random, packed))), "deflate"
    return path, body, headers


def _inference(random: Random) -> tuple[bytes, dict[str, str]]:
    """Return an inference request in JSON, with or without binary tensors, with some values replaced."""
    raw = np.arange(4, dtype=np.float32).tobytes()
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 1, 2, 3]}
    is_binary = random.random() < 0.5
    if is_binary:
        del tensor["data"]
        tensor["parameters"] = {"binary_data_size": 16}
    asked: dict[str, Any] = {"id": "1", "inputs": [tensor], "outputs": [{"name": "y"}], "parameters": {"priority": 1}}
    for _ in range(random.choice((0, 1, 1, 2))):
        holder = random.choice(
            (asked, tensor, tensor.get("parameters", asked), asked["outputs"][0] if asked.get("outputs") else asked)
        )
        if isinstance(holder, dict):
            holder[random.choice([*holder, "classification", "shared_memory_region"])] = random.choice(_VALUES)
        if (
            not isinstance(asked.get("outputs"), list)
            or not asked["outputs"]
            or not isinstance(asked["outputs"][0], dict)
        ):
            asked["outputs"] = [{"name": "y"}]
    output = json.dumps(asked).encode()
    if random.random() < 0.03:
        output = b'{"inputs":' + b"[" * 50_000
    headers = {}
    if is_binary:
        headers["inference-header-content-length"] = str(len(output) + random.choice((0, 0, 0, 1, -1, 1 << 20)))
    return output + (raw if is_binary else b""), headers


def _raw(daemon: FuzzedDaemon, random: Random, tally: Tally) -> None:
    """Send a request with a head that no library sends; read one answer if there is any."""
    body, _ = _inference(random)
    lines = [b"POST /v2/models/numbers/infer HTTP/1.1", b"host: localhost", b"content-length: %d" % len(body)]
    lines.insert(random.randrange(1, 4), random.choice(_HEAD_GAMES))
    data = b"\r\n".join(lines) + b"\r\n\r\n" + body
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.3)
        connection.connect(str(daemon.http))
        connection.sendall(data if random.random() < 0.7 else spoiled(random, data))
        reported = connection.recv(1 << 16)
        if reported.startswith(b"HTTP/1.1 100 "):
            reported = reported.partition(b"\r\n\r\n")[2] or connection.recv(1 << 16)
        first = reported.split(b"\r\n", 1)[0].split()
        if len(first) > 1 and first[1].isdigit():
            _see(tally, int(first[1]), reported, repr(data[:600]), "HEAD")


def _see(tally: Tally, status: int, reported: bytes, how: str, method: str) -> None:
    tally.statuses["HTTP"][str(status)] += 1
    if status not in _ALLOWED:
        tally.fail(f"HTTP {status}: {reported[:300]!r}", how)
    elif status >= 400 and method != "HEAD" and b'"error"' not in reported:
        tally.fail(f"HTTP {status} without an error message: {reported[:200]!r}", how)
