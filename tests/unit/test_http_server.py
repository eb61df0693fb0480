"""The HTTP listener against clients of every kind: polite, slow, rude and gone."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from edged.api.auth.policy import ALL
from edged.api.auth.tokens import make
from edged.api.http import app, bodies, server
from edged.config import Http
from edged.errors import ConfigError, ErrorCode
from tests.unit.http_world import World, answer_of, get, inference, post, world


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 60))


async def soon(probe: Any) -> None:
    """Waits until something is true."""
    for _ in range(2000):
        if probe():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


def error_of(body: bytes) -> str:
    told = json.loads(body)
    assert list(told) == ["error", "code"]
    assert told["code"] in ErrorCode.__members__
    assert "\n" not in told["error"]
    return str(told["error"])


async def is_well(there: World) -> None:
    status, _, body = await there.ask(post(inference()))
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [0, 1])


def test_requests_on_one_connection_are_answered_in_their_order() -> None:
    async def scene() -> None:
        async with world() as there:
            reader, writer = await there.connect()
            writer.write(b"".join(post(inference(id=str(number))) for number in range(20)))  # pipelined
            ids = [json.loads((await answer_of(reader))[2])["id"] for _ in range(20)]
            assert ids == [str(number) for number in range(20)]
            writer.close()

    run(scene())


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (get("/"), 404, "path '/' does not exist"),
        (get("/v2/models"), 404, "does not exist"),
        (get("/v2/models//ready"), 404, "does not exist"),
        (get("/v2/models/m/infer"), 405, "use POST"),
        (post(b"", "/v2/health/live"), 405, "use GET"),
        (get("/v2/health/live", method="BREW"), 405, "BREW"),
        (post(b"{"), 400, "JSON cannot be used"),
        (post(b"{}"), 400, "inputs"),
        (post(inference(), headers="Inference-Header-Content-Length: -1\r\n"), 400, "bytes of the JSON"),
        (post(inference(), headers="Inference-Header-Content-Length: 9999\r\n"), 400, "9999"),
        (post(b"zzz", headers="content-encoding: gzip\r\n"), 400, "no gzip"),
        (post(b"zzz", headers="content-encoding: br\r\n"), 501, "not known"),
        (post(gzip.compress(bytes(3 << 20)), headers="content-encoding: gzip\r\n"), 413, "unpacks to more"),
        (get("/v2/health/live?" + "a=1&" * 40), 400, "more than 32 parts"),
        (get("/v2/logging"), 501, "LogSettings"),
        (get("/v2/health/live", "Origin: https://elsewhere.example\r\n"), 403, "web pages"),
        (get("/v2"), 500, "see its log"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "no HTTP"),
        (b"GET /v2 HTTP/1.1\r\n\r\n", 400, "no HTTP"),  # no host
        (post(b"", headers="content-length: 7\r\n"), 400, "no HTTP"),
        (get("/v2", "content-length: -5\r\n"), 400, "no HTTP"),
        (get("/v2", "a: " + "b" * 20_000 + "\r\n"), 400, "at most 16384"),
        (get("/v2", "a: " + "b" * 2_000_000 + "\r\n"), 400, "too long"),
    ],
)
def test_what_cannot_be_answered_gets_a_status_and_one_line(request_: bytes, status: int, words: str) -> None:
    async def scene() -> None:
        async with world() as there:
            told, headers, body = await there.ask(request_)
            assert (told, headers["content-type"]) == (status, "application/json"), body
            assert words in error_of(body)
            assert b"a secret" not in body
            await is_well(there)

    run(scene())


def test_head_and_options_tell_what_get_would() -> None:
    async def scene() -> None:
        async with world() as there:
            reader, writer = await there.connect()
            writer.write(get("/v2/health/live", method="HEAD") + get("/v2/health/live", method="OPTIONS"))
            assert (await answer_of(reader))[0] == 200
            status, headers, _ = await answer_of(reader)
            assert (status, headers["allow"]) == (204, "HEAD, GET, OPTIONS")
            writer.close()

    run(scene())


def test_a_body_may_come_in_chunks_and_packed_and_the_answer_too() -> None:
    async def scene() -> None:
        async with world() as there:
            packed = gzip.compress(inference(2000))
            half = len(packed) // 2
            head = (
                b"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"
                b"content-encoding: gzip\r\naccept-encoding: gzip\r\n\r\n"
            )
            chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in (packed[:half], packed[half:], b"")]
            status, headers, body = await there.ask(head + b"".join(chunks))
            assert (status, headers["content-encoding"]) == (200, "gzip")
            assert json.loads(gzip.decompress(body))["outputs"][0]["data"] == list(range(2000))

    run(scene())


def test_unpack_of_a_small_body_that_grows_large_is_not_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    unpacked = bodies.unpacked

    def watched(body: bytes, encoding: str, limit: int) -> bytes:
        threads.append(threading.current_thread())
        return unpacked(body, encoding, limit)

    async def scene() -> None:
        async with world() as there:
            for size in (100, 3 << 20):
                await there.ask(post(gzip.compress(bytes(size)), headers="content-encoding: gzip\r\n"))

    monkeypatch.setattr(bodies, "unpacked", watched)
    run(scene())
    assert [each is threading.main_thread() for each in threads] == [True, False]


def test_nothing_is_taken_for_a_request_behind_a_body_whose_end_may_be_disputed() -> None:
    async def scene() -> None:
        async with world() as there:
            reader, writer = await there.connect()
            head = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\n"
            head += b"content-length: 9\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(inference()), inference()) + get("/v2/health/live"))
            status, headers, _ = await answer_of(reader)
            assert (status, headers["connection"]) == (200, "close")
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()

    run(scene())


def test_who_asks_whether_to_go_on_is_told_to() -> None:
    async def scene() -> None:
        async with world() as there:
            reader, writer = await there.connect()
            request = post(inference(), headers="expect: 100-continue\r\n")
            head, _, body = request.partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            assert b"100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            writer.write(body)
            assert (await answer_of(reader))[0] == 200
            writer.close()
            too_large = post(b"", headers="expect: 100-continue\r\n").replace(b"length: 0", b"length: 9999999")
            status, headers, told = await there.ask(too_large)  # without the body
            assert (status, headers["connection"]) == (413, "close")
            assert "more than" in error_of(told)

    run(scene())


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_large_is_not_kept(is_chunked: bool) -> None:
    async def scene() -> None:
        async with world() as there:
            data = bytes(3 << 20)
            request = post(data)
            if is_chunked:
                chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
                request = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + chunk
            status, _, body = await there.ask(request)
            assert (status, "body_mb" in error_of(body)) == (413, True)
            await is_well(there)

    run(scene())


def test_all_bodies_together_are_bounded_and_the_room_comes_back() -> None:
    async def scene() -> None:
        async with world() as there:
            there.echo.gate.clear()
            pad = " " * (900 << 10)
            many = [asyncio.create_task(there.ask(post(inference() + pad.encode()))) for _ in range(4)]
            await soon(lambda: there.echo.waiting == 4)
            status, _, body = await there.ask(post(inference() + pad.encode()))
            assert (status, "under way" in error_of(body)) == (503, True)
            there.echo.gate.set()
            assert [(await task)[0] for task in many] == [200] * 4
            assert (await there.ask(post(inference() + pad.encode())))[0] == 200

    run(scene())


def test_read_with_bodies_that_were_only_announced_answers_others() -> None:
    async def scene() -> None:
        async with world() as there:
            silent = [await there.connect() for _ in range(8)]
            for _, writer in silent:
                writer.write(b"POST /v2/models/m/infer HTTP/1.1\r\nhost: here\r\ncontent-length: 1000000\r\n\r\n[")
            await asyncio.gather(*(writer.drain() for _, writer in silent))
            pad = b" " * (900 << 10)
            assert (await there.ask(post(inference() + pad)))[0] == 200
            for _, writer in silent:
                writer.close()

    run(scene())


def test_read_without_room_ends_the_slowest_body() -> None:
    async def scene() -> None:
        async with world() as there:
            body = post(inference() + b" " * (900 << 10))
            stopped = [await there.connect() for _ in range(4)]
            for _, writer in stopped:
                writer.write(body[:-5])
                await writer.drain()
            await asyncio.sleep(1.0)  # so that whoever comes now is faster
            assert (await there.ask(body))[0] == 200
            ended = [asyncio.create_task(answer_of(reader)) for reader, _ in stopped]
            done, others = await asyncio.wait(ended, timeout=5, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result()[0] for task in done] == [503]
            for task in others:
                task.cancel()
            for _, writer in stopped:
                writer.close()

    run(scene())


def test_call_whose_token_is_revoked_ends_as_unauthenticated() -> None:
    async def scene() -> None:
        async with world() as there:
            token, secret = make("doomed", ALL, 0.0)
            there.tokens.add(token)
            there.guard.look()
            there.echo.gate.clear()
            asked = asyncio.create_task(
                there.ask(post(inference(), headers=f"authorization: Bearer {secret}\r\n")),
            )
            await soon(lambda: there.echo.waiting == 1)
            there.tokens.revoke("doomed")
            while not asked.done():  # the guard looks once a second
                there.guard.look()
                await asyncio.sleep(0.05)
            assert (await asked)[0] == 401
            assert there.echo.cancelled == 1

    run(scene())


def test_a_client_that_leaves_is_not_worked_for() -> None:
    async def scene() -> None:
        async with world() as there:
            there.echo.gate.clear()
            _, writer = await there.connect()
            writer.write(post(inference()))
            await soon(lambda: there.echo.waiting == 1)
            writer.close()
            await soon(lambda: there.echo.cancelled == 1)
            _, writer = await there.connect()
            writer.write(post(inference())[:-5])  # and one that leaves amid its body
            writer.close()
            there.echo.gate.set()
            await is_well(there)

    run(scene())


def test_a_head_that_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_SECONDS", 0.3)

    async def scene() -> None:
        async with world() as there:
            reader, writer = await there.connect()
            assert await answer_after(reader, writer, get("/v2/health/live")) == 200
            for connection in (await there.connect(), (reader, writer), await there.connect()):
                connection[1].write(b"GET /v2/health/live HTTP/1.1\r\nx: ")
                assert await is_closed(connection[0])
                connection[1].close()
            _, silent = await there.connect()
            await is_well(there)
            silent.close()

    run(scene())


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_IDLE_SECONDS", 0.2)

    async def scene() -> None:
        async with world() as there:
            status, _, body = await there.ask(post(inference())[:-5])
            assert (status, "too slowly" in error_of(body)) == (408, True)
            await is_well(there)

    run(scene())


def test_an_answer_that_nobody_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_UNREAD_SECONDS", 0.2)

    async def scene() -> None:
        async with world() as there:
            reader, writer = await asyncio.open_unix_connection(there.path, limit=1024)
            for _ in range(30):
                writer.write(post(inference(100_000)))
            await soon(lambda: writer.is_closing() or reader.at_eof() or _has_ended(reader))
            writer.close()
            await is_well(there)

    run(scene())


def test_connections_beyond_the_limit_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 3)

    async def scene() -> None:
        async with world() as there:
            open_ones = [await there.connect() for _ in range(3)]
            for reader, writer in open_ones:
                assert await answer_after(reader, writer, get("/v2/health/live")) == 200
            status, _, body = await there.ask(get("/v2/health/live"))
            assert (status, "too many connections" in error_of(body)) == (503, True)
            for _, writer in open_ones:
                writer.close()

    run(scene())


def test_stopping_answers_what_is_under_way_and_cuts_off_what_takes_too_long() -> None:
    async def scene() -> None:
        async with world() as there:
            there.echo.gate.clear()
            under_way = asyncio.create_task(there.ask(post(inference())))
            await soon(lambda: there.echo.waiting == 1)
            _, idle = await there.connect()
            stopping = asyncio.create_task(there.listener.stop(20))
            await asyncio.sleep(0.3)
            there.echo.gate.set()
            assert (await under_way)[0] == 200
            await stopping
            assert not there.path.exists()
            idle.close()
        async with world() as there:
            there.echo.gate.clear()
            under_way = asyncio.create_task(there.ask(post(inference())))
            await soon(lambda: there.echo.waiting == 1)
            await there.listener.stop(0.2)
            status, _, body = await under_way
            assert (status, "stopping" in error_of(body)) == (503, True)

    run(scene())


def test_a_place_that_cannot_be_listened_on_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            for address, words in (
                (f"127.0.0.1:{taken.getsockname()[1]}", "taken"),
                ("0.0.0.0:8000", "other machines"),
                ("nonsense", "neither"),
                ("unix:/proc/edged/http.sock", "cannot listen"),
                ("unix:/tmp/" + "x" * 120, "107 bytes"),
            ):
                with pytest.raises(ConfigError) as caught:
                    await app.HttpListener(Http(listen=address), None, None).start()  # type: ignore[arg-type]
                assert words in str(caught.value)

    run(scene())


def test_a_missing_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "edged.api.http.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    async def scene() -> None:
        with pytest.raises(ConfigError, match="-m pip install 'uvicorn"):
            await app.HttpListener(Http(listen="127.0.0.1:0"), None, None).start()  # type: ignore[arg-type]

    run(scene())


async def answer_after(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    writer.write(request)
    return (await answer_of(reader))[0]


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(100), 20) == b""
    except ConnectionError:
        return True


def _has_ended(reader: asyncio.StreamReader) -> bool:
    return reader.exception() is not None
