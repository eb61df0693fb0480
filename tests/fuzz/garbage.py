"""Bytes that are not HTTP/2, or are HTTP/2 that no client sends: false lengths, streams reset at once, noise."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from tests.fuzz import goods, http2
from tests.fuzz.spoiling import spoiled
from tests.fuzz.tally import Tally

if TYPE_CHECKING:
    from tests.fuzz.live import FuzzedDaemon

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAMS = 100  # resets of one connection
_SHORT = 0.05  # seconds to wait for an answer that may never come


def frames(daemon: FuzzedDaemon, random: Random, count: int, tally: Tally) -> None:
    """Open connections and send a few frames on each: good ones mixed with bad ones."""
    body = goods.truth().SerializeToString()
    for _ in range(count):
        address = random.choice((daemon.unix, daemon.tcp))
        output = [*_good(body), *(random.choice(_BAD)(random) for _ in range(random.randrange(1, 4)))]
        random.shuffle(output)
        data = b"".join(output)
        if random.random() < 0.3:
            data = spoiled(random, data)
        beginning = http2.PREFACE if random.random() < 0.95 else spoiled(random, http2.PREFACE)
        _say(address, beginning + http2.settings() + data)
        tally.messages["raw frames"] += 1


def resets(daemon: FuzzedDaemon, random: Random, count: int, tally: Tally) -> None:
    """Open streams and reset them at once, many per connection, as in CVE-2023-44487."""
    body = goods.truth().SerializeToString()
    for _ in range(max(1, count // _STREAMS)):
        output = bytearray(http2.PREFACE + http2.settings())
        for number in range(_STREAMS):
            stream = 2 * number + 1
            path = random.choice((_INFER, "/edged.v1.Cameras/Detect", "/edged.v1.Operations/WatchEvents"))
            output += http2.call(stream, path)
            if random.random() < 0.5:
                output += http2.message(stream, body, ends=random.random() < 0.5)
            output += http2.reset(stream)
        _say(random.choice((daemon.unix, daemon.tcp)), bytes(output))
        tally.messages["raw frames"] += _STREAMS


def everywhere(daemon: FuzzedDaemon, random: Random, count: int, tally: Tally) -> None:
    """Send noise, nothing, and other protocols to every address."""
    listeners = (daemon.unix, daemon.tcp, f"unix:{daemon.http}", f"unix:{daemon.metrics}")
    sockets = tuple(f"unix:{each.removeprefix('ipc://')}" for each in (daemon.frames, daemon.frigate))
    other = (
        *(b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\xff\0\0\0\0\0\0\0\x01\x7f"),
        *(b"SSH-2.0-x\r\n", b"PRI * HTTP/2.0\r\n", b"\0" * 4096, b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 3000),
        *(b"GET /" + b"a" * 70_000, b"POST /metrics HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n"),
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48) + b"\x02\xff\xff\xff\xff\xff\xff\xff\xff",
    )
    for _ in range(count):
        data = random.choice(other) if random.random() < 0.7 else random.randbytes(random.randrange(2000))
        _say(random.choice(listeners + sockets), data)
        tally.messages["noise"] += 1


def _say(address: str, data: bytes) -> None:
    """Send bytes and read the reply for a moment. The other end may hang up."""
    with contextlib.suppress(OSError), http2.connect(address) as connection:
        connection.sendall(data)
        connection.settimeout(_SHORT)
        end = time.monotonic() + _SHORT
        while time.monotonic() < end and connection.recv(1 << 16):
            pass


def _good(body: bytes) -> list[bytes]:
    return [http2.call(1, _INFER) + http2.message(1, body), http2.ping(7), http2.update(0, 1 << 20)]


_BAD: Sequence[Callable[[Random], bytes]] = (
    lambda r: http2.frame(r.randrange(256), r.randrange(256), r.randrange(1 << 31), r.randbytes(r.randrange(200))),
    lambda r: http2.frame(http2.DATA, 0, r.choice((0, 1, 2, 99)), b"\0\0\0\0\5hello"),
    lambda r: http2.frame(http2.HEADERS, r.randrange(256), r.choice((0, 1, 3, 5)), r.randbytes(40)),
    lambda r: http2.frame(http2.SETTINGS, r.choice((0, 1)), 0, r.randbytes(r.choice((5, 6, 12, 600)))),
    lambda r: http2.settings(s4=r.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF)), s5=r.choice((0, 16384, 0xFFFFFF)), s3=0),
    lambda r: http2.update(r.choice((0, 1, 3)), r.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF))),
    lambda r: http2.reset(r.choice((0, 1, 3)), r.randrange(1 << 32)),
    lambda r: http2.frame(http2.PING, 0, r.choice((0, 1)), r.randbytes(r.choice((7, 8, 9)))),
    lambda r: b"".join(http2.ping(number) for number in range(200)),
    lambda r: http2.frame(http2.GOAWAY, 0, 0, r.randbytes(8)),
    lambda r: http2.frame(http2.PUSH_PROMISE, 4, 1, r.randbytes(20)),
    lambda r: http2.frame(http2.CONTINUATION, 0, 1, r.randbytes(20)),
    lambda r: http2.frame(http2.DATA, 0, 1, b"x", length=0xFFFFFF),
    lambda r: http2.call(3, _INFER, [(b"x" * r.choice((1, 9000)), b"v" * r.choice((1, 30_000)))]),
    lambda r: http2.call(3, r.choice(("", "/", "nothing", "/a/b/c", "/\0", "x" * 5000))),
    lambda r: http2.call(3, _INFER, [(b":path", b"/twice"), (b"Upper", b"case"), (b"te", b"nothing")]),
    lambda r: http2.call(3, _INFER, [(b"x-bin", r.choice((b"*", b"=,=", b"\xff", r.randbytes(50))))]),
    lambda r: http2.call(3, _INFER, [(b"grpc-timeout", r.choice((b"0n", b"1S", b"-1S", b"x", b"9" * 40 + b"H")))]),
    lambda r: (
        http2.call(3, _INFER, [(b"grpc-encoding", r.choice((b"gzip", b"deflate", b"snappy", b"")))])
        + http2.message(3, r.randbytes(50), compressed=r.choice((0, 1, 2, 255)))
    ),
    lambda r: http2.call(3, _INFER) + http2.message(3, b"short", announced=r.choice((0, 1, 6, 0xFFFFFFFF))),
    lambda r: (
        http2.call(3, _INFER, flags=0)
        + b"".join(http2.frame(http2.CONTINUATION, 0, 3, http2.block([(b"a", b"b" * 100)])) for _ in range(300))
    ),
)
