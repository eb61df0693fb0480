"""The metrics listener: responses, limits, addresses."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from edged.errors import ConfigError
from edged.metrics.endpoint import Endpoint, Scrape
from tests.waiting import run

TEXT = b"edged_ready 1.0\n"


async def scrape(accept: str, compressed: bool) -> tuple[bytes, str]:
    return (gzip.compress(TEXT) if compressed else TEXT), f"text/plain; asked={accept}"


@asynccontextmanager
async def listening(
    listen: str = "127.0.0.1:0", scrape: Scrape = scrape, **limits: Any
) -> AsyncIterator[tuple[Endpoint, int]]:
    endpoint = Endpoint(listen, scrape, **limits)
    address = await endpoint.start()
    try:
        yield endpoint, int(address.rsplit(":", 1)[1].split("/")[0]) if listen[0] != "u" else 0
    finally:
        await endpoint.stop(1.0)


async def ask(port: int, request: bytes) -> tuple[str, bytes]:
    """Send a request. Return head and body of the response, or empty ones if the connection closes without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        answer = await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        answer = b""
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body


GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n%s\r\n"


async def test_scrape_returns_text_compressed_if_accepted() -> None:
    async with listening() as (_, port):
        head, body = await ask(port, GET % b"Accept: text/plain\r\n")
        assert head.startswith("HTTP/1.1 200 OK")
        assert "Content-Type: text/plain; asked=text/plain" in head
        assert f"Content-Length: {len(TEXT)}" in head
        assert body == TEXT
        head, body = await ask(port, GET % b"accept-encoding: deflate, gzip\r\n")
        assert "Content-Encoding: gzip" in head
        assert gzip.decompress(body) == TEXT


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", "404"),
        (b"GET /metrics/../etc HTTP/1.1", "404"),
        (b"POST /metrics HTTP/1.1", "405"),
        (b"HEAD /metrics HTTP/1.1", "405"),
        (b"GET /metrics", "400"),
        (b"\x16\x03\x01\x02", "400"),
        (b"GET /metrics?name[]=a HTTP/1.0", "200"),
        (b"GET /metrics HTTP/1.1\r\nHost: attacker.example", "403"),
        (b"GET /metrics HTTP/1.1\r\nHost: 10.0.0.1:9301", "403"),
    ],
)
async def test_other_requests_get_their_status(request_line: bytes, status: str) -> None:
    async with listening() as (_, port):
        head, body = await ask(port, request_line + b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ")
        assert (body == TEXT) == (status == "200")


@pytest.mark.parametrize(
    "request_bytes", [b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 4000, b"GET /metrics"], ids=["endless head", "slow"]
)
async def test_request_that_does_not_end_closes_the_connection(request_bytes: bytes) -> None:
    async with listening(seconds=0.5) as (_, port):
        assert await ask(port, request_bytes) == ("", b"")
        assert (await ask(port, GET % b""))[1] == TEXT


async def test_connection_over_the_limit_is_closed_until_another_ends() -> None:
    async with listening(max_connections=1) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ask(port, GET % b"") == ("", b"")
        writer.close()
        await reader.read()
        assert (await ask(port, GET % b""))[1] == TEXT


async def test_failed_scrape_returns_500_without_details() -> None:
    async def fail(accept: str, compressed: bool) -> tuple[bytes, str]:
        raise RuntimeError("secret")

    async with listening(scrape=fail) as (_, port):
        head, body = await ask(port, GET % b"")
        assert head.startswith("HTTP/1.1 500 ")
        assert b"secret" not in body


async def test_unix_socket_exists_while_listening(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"

    async with listening(f"unix:{path}"):
        assert path.stat().st_mode & 0o777 == 0o660
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET % b"")
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(TEXT)
        writer.close()
    assert not path.exists()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "example.org:9301", "nonsense", "127.0.0.1:99999"])
def test_address_beyond_loopback_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError):
        run(Endpoint(listen, scrape).start())


def test_port_in_use_is_a_config_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^\[metrics\] .*:{port}: "):
            run(Endpoint(f"127.0.0.1:{port}", scrape).start())
