"""The HTTP listener: malformed requests, slow clients, and clients that disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import threading
from collections.abc import AsyncIterator

import pytest

from edged.api.auth.policy import ALL
from edged.api.auth.tokens import make
from edged.api.http import app, bodies
from edged.api.http.server import Connection
from edged.config import Http
from edged.errors import ConfigError, ErrorCode
from tests.unit.http_world import World, answer_of, get, inference, post, world
from tests.waiting import run, until, within

LIVE = get("/v2/health/live")
CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[World]:
    """A listener. At the end, check that it still answers."""
    async with world() as there:
        yield there
        if there.path.exists():
            status, _, body = await there.ask(post(inference()))
            assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [0, 1])


def code_of(body: bytes) -> str:
    fields = json.loads(body)
    assert list(fields) == ["error", "code"]
    assert fields["code"] in ErrorCode.__members__
    assert "\n" not in fields["error"]
    return str(fields["code"])


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


def encoded(data: bytes, encoding: str = "gzip") -> bytes:
    return post(data, headers=f"content-encoding: {encoding}\r\n")


def with_length(length: int) -> bytes:
    return post(inference(), headers=f"Inference-Header-Content-Length: {length}\r\n")


def padded() -> bytes:
    """Return a request of 900 KiB. The listener accepts four at a time."""
    return post(inference() + b" " * (900 << 10))


@within(serving)
async def test_requests_on_one_connection_are_answered_in_their_order(there: World) -> None:
    reader, writer = await there.connect()
    writer.write(b"".join(post(inference(id=str(number))) for number in range(20)))  # pipelined
    ids = [json.loads((await answer_of(reader))[2])["id"] for _ in range(20)]
    assert ids == [str(number) for number in range(20)]
    writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        *((get(path), 404) for path in ("/", "/v2/models", "/v2/models//ready")),
        (get("/v2/models/m/infer"), 405),
        (post(b"", "/v2/health/live"), 405),
        (get("/v2/health/live", method="BREW"), 405),
        *((post(body), 400) for body in (b"{", b"{}")),
        *((with_length(length), 400) for length in (-1, 9999)),
        (encoded(b"zzz"), 400),
        (encoded(b"zzz", "br"), 501),
        (encoded(gzip.compress(bytes(3 << 20), mtime=0)), 413),  # mtime: every pytest worker must see the same test id
        (get("/v2/health/live?" + "a=1&" * 40), 400),
        (get("/v2/logging"), 501),
        (get("/v2/health/live", "Origin: https://elsewhere.example\r\n"), 403),
        (get("/v2"), 500),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\n\r\n", 400),  # no host
        (post(b"", headers="content-length: 7\r\n"), 400),
        (get("/v2", "content-length: -5\r\n"), 400),
        *((get("/v2", "a: " + "b" * size + "\r\n"), 400) for size in (20_000, 2_000_000)),
        (post(bytes(3 << 20)), 413),
        (CHUNKED + b"\r\n" + chunks(bytes(3 << 20)), 413),
    ],
)
@within(serving)
async def test_request_that_is_invalid_gets_a_status_and_a_code(there: World, sent: bytes, status: int) -> None:
    found, headers, body = await there.ask(sent)
    assert (found, headers["content-type"]) == (status, "application/json"), body
    assert code_of(body)
    assert b"a secret" not in body


@within(serving)
async def test_head_and_options_describe_get(there: World) -> None:
    reader, writer = await there.connect()
    writer.write(get("/v2/health/live", method="HEAD") + get("/v2/health/live", method="OPTIONS"))
    assert (await answer_of(reader))[0] == 200
    status, headers, _ = await answer_of(reader)
    assert (status, headers["allow"]) == (204, "HEAD, GET, OPTIONS")
    writer.close()


@within(serving)
async def test_body_in_chunks_and_compressed_is_answered_compressed(there: World) -> None:
    packed = gzip.compress(inference(2000))
    head = CHUNKED + b"content-encoding: gzip\r\naccept-encoding: gzip\r\n\r\n"
    status, headers, body = await there.ask(head + chunks(packed[:50], packed[50:]))
    assert (status, headers["content-encoding"]) == (200, "gzip")
    assert json.loads(gzip.decompress(body))["outputs"][0]["data"] == list(range(2000))


@within(serving)
async def test_body_that_may_grow_large_is_unpacked_in_another_thread(
    there: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    unpacked = bodies.unpacked

    def watched(body: bytes, encoding: str, limit: int) -> bytes:
        threads.append(threading.current_thread())
        return unpacked(body, encoding, limit)

    monkeypatch.setattr(bodies, "unpacked", watched)
    for size in (100, 3 << 20):
        await there.ask(encoded(gzip.compress(bytes(size))))
    assert [each is threading.main_thread() for each in threads] == [True, False]


@within(serving)
async def test_connection_after_a_body_with_two_lengths_is_closed(there: World) -> None:
    reader, writer = await there.connect()
    writer.write(CHUNKED + b"content-length: 9\r\n\r\n" + chunks(inference()) + LIVE)
    status, headers, _ = await answer_of(reader)
    assert (status, headers["connection"]) == (200, "close")
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


@within(serving)
async def test_expect_continue_is_answered_before_the_body(there: World) -> None:
    reader, writer = await there.connect()
    head, _, body = post(inference(), headers="expect: 100-continue\r\n").partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    assert b"100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    writer.write(body)
    assert (await answer_of(reader))[0] == 200
    writer.close()
    too_large = post(b"", headers="expect: 100-continue\r\n").replace(b"length: 0", b"length: 9999999")
    status, headers, _ = await there.ask(too_large)  # the body is not sent
    assert (status, headers["connection"]) == (413, "close")


@within(serving)
async def test_bodies_over_the_total_limit_are_refused_until_others_are_answered(there: World) -> None:
    there.echo.gate.clear()
    many = [asyncio.create_task(there.ask(padded())) for _ in range(4)]
    await until(lambda: there.echo.waiting == 4)
    status, _, body = await there.ask(padded())
    assert (status, code_of(body)) == (503, "OVERLOADED")
    there.echo.gate.set()
    assert [(await task)[0] for task in many] == [200] * 4
    assert (await there.ask(padded()))[0] == 200


@within(serving)
async def test_bodies_that_were_only_announced_do_not_count(there: World) -> None:
    silent = [await there.connect() for _ in range(8)]
    for _, writer in silent:
        writer.write(b"POST /v2/models/m/infer HTTP/1.1\r\nhost: here\r\ncontent-length: 1000000\r\n\r\n[")
    await asyncio.gather(*(writer.drain() for _, writer in silent))
    assert (await there.ask(padded()))[0] == 200
    for _, writer in silent:
        writer.close()


@within(serving)
async def test_bodies_over_the_total_limit_drop_the_slowest(there: World) -> None:
    stopped = [await there.connect() for _ in range(4)]
    for _, writer in stopped:
        writer.write(padded()[:-5])
        await writer.drain()
    await asyncio.sleep(1.0)  # so that the next request is faster
    assert (await there.ask(padded()))[0] == 200
    ended = [asyncio.create_task(answer_of(reader)) for reader, _ in stopped]
    done, others = await asyncio.wait(ended, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result()[0] for task in done] == [503]
    for task in others:
        task.cancel()
    for _, writer in stopped:
        writer.close()


@within(serving)
async def test_call_whose_token_is_revoked_ends_as_unauthenticated(there: World) -> None:
    token, secret = make("doomed", ALL, 0.0)
    there.tokens.add(token)
    there.guard.look()
    there.echo.gate.clear()
    asked = asyncio.create_task(there.ask(post(inference(), headers=f"authorization: Bearer {secret}\r\n")))
    await until(lambda: there.echo.waiting == 1)
    there.tokens.revoke("doomed")
    while not asked.done():
        there.guard.look()
        await asyncio.sleep(0.05)
    assert (await asked)[0] == 401
    assert there.echo.cancelled == 1
    there.echo.gate.set()


@within(serving)
async def test_request_of_a_client_that_disconnects_is_cancelled(there: World) -> None:
    there.echo.gate.clear()
    for sent in (post(inference()), post(inference())[:-5]):
        _, writer = await there.connect()
        writer.write(sent)
        await until(lambda: there.echo.waiting + there.echo.cancelled == 1)
        writer.close()
        await until(lambda: there.echo.cancelled == 1)
    there.echo.gate.set()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(100), 20) == b""
    except ConnectionError:
        return True


@within(serving)
async def test_connection_with_a_slow_head_is_closed(there: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.3)
    used = await there.connect()
    used[1].write(LIVE)
    assert (await answer_of(used[0]))[0] == 200
    for reader, writer in (await there.connect(), used, await there.connect()):
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nx: ")
        assert await is_closed(reader)
        writer.close()


@within(serving)
async def test_body_that_stops_ends_with_a_timeout(there: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies.Bodies, "idle_seconds", 0.2)
    assert (await there.ask(post(inference())[:-5]))[0] == 408


@within(serving)
async def test_response_that_is_not_read_is_dropped(there: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "unread_seconds", 0.2)
    reader, writer = await asyncio.open_unix_connection(there.path, limit=1024)
    for _ in range(30):
        writer.write(post(inference(100_000)))
    await until(lambda: writer.is_closing() or reader.at_eof() or reader.exception() is not None)
    writer.close()


@within(serving)
async def test_connection_beyond_the_limit_is_refused(there: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "most", 3)
    kept = [await there.connect() for _ in range(3)]
    for reader, writer in kept:
        writer.write(LIVE)
        assert (await answer_of(reader))[0] == 200
    status, _, body = await there.ask(LIVE)
    assert (status, code_of(body)) == (503, "OVERLOADED")
    for reader, writer in kept:
        writer.close()
        await is_closed(reader)


@pytest.mark.parametrize(("grace", "status"), [(20.0, 200), (0.2, 503)])
@within(serving)
async def test_stop_answers_running_requests_within_its_grace(there: World, grace: float, status: int) -> None:
    there.echo.gate.clear()
    running = asyncio.create_task(there.ask(post(inference())))
    await until(lambda: there.echo.waiting == 1)
    _, idle = await there.connect()
    stopping = asyncio.create_task(there.listener.stop(grace))
    await asyncio.sleep(0.3)
    if status == 200:
        there.echo.gate.set()
    assert (await running)[0] == status
    await stopping
    assert not there.path.exists()
    idle.close()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:{taken}", "0.0.0.0:8000", "nonsense", "unix:/proc/edged/http.sock", "unix:/tmp/" + "x" * 120]
)
def test_start_at_an_unusable_address_is_refused(address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = app.HttpListener(Http(listen=address.format(taken=taken.getsockname()[1])), None, None)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            run(listener.start())
