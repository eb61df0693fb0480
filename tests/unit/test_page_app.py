"""The page's address, and its videos: the viewer leaves or may no longer watch, the camera has no pictures or fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edged.api.auth.guard import Guard
from edged.api.page.app import PageApp
from edged.api.page.listener import PageListener
from edged.config import Access, Page, Tls
from edged.errors import ConfigError, NotReady
from edged.proto import operations_pb2 as pb
from tests.waiting import until

ADDRESS = "localhost:8003"


class Viewer:
    """A browser that requests the video of a camera, with a page of its own. `sent` has what the page sent."""

    def __init__(self, state: Path, *pictures: bytes, error: Exception | None = None, ends: bool = True) -> None:
        self._pictures, self._error, self._ends = pictures, error, ends
        self.guard = Guard(Access(), Tls(), state)
        operations, files = SimpleNamespace(watch_pictures=self._watch), SimpleNamespace(find=lambda *_: None)
        self._app = PageApp(self.guard, ADDRESS, cast(Any, None), cast(Any, operations), cast(Any, files))
        self.sent, self.is_watching, self._gone = list[Any](), False, asyncio.Event()
        self.request = asyncio.create_task(self._ask())

    async def _watch(self, *_: object) -> AsyncGenerator[pb.CameraPicture, None]:
        self.is_watching = True
        try:
            for picture in self._pictures:
                yield pb.CameraPicture(jpeg=picture)
            if self._error is not None:
                raise self._error
            if not self._ends:
                await asyncio.Event().wait()
        finally:
            self.is_watching = False

    async def _ask(self) -> None:
        async def send(event: Any) -> None:
            self.sent.append(event)

        async def receive() -> dict[str, str]:
            await self._gone.wait()
            return {"type": "http.disconnect"}

        scope = {
            "type": "http",
            "method": "GET",
            "raw_path": b"/cameras/door/video",
            "query_string": b"",
            "headers": [(b"host", ADDRESS.encode())],
            "client": ("127.0.0.1", 5),
        }
        await self._app(scope, receive, send)

    async def leave(self) -> None:
        """Disconnect, and wait for the end of the request."""
        self._gone.set()
        await asyncio.wait_for(self.request, 10)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


@pytest.mark.parametrize("pictures", [(), (b"jpeg",)])
async def test_video_ends_when_its_viewer_leaves(tmp_path: Path, pictures: tuple[bytes, ...]) -> None:
    viewer = Viewer(tmp_path, *pictures, ends=False)
    await until(lambda: viewer.is_watching and len(viewer.sent) == 2 * len(pictures))
    assert viewer.guard.limits.together().requests == 1
    await viewer.leave()
    assert viewer.guard.limits.together().is_idle
    assert not viewer.is_watching
    assert len(viewer.sent) == 2 * len(pictures)


async def test_video_without_pictures_has_no_content(tmp_path: Path) -> None:
    viewer = Viewer(tmp_path)
    await viewer.request
    assert viewer.status == 204
    assert viewer.guard.limits.together().is_idle


async def test_video_sends_its_pictures_until_they_end(tmp_path: Path) -> None:
    viewer = Viewer(tmp_path, b"one", b"two")
    await viewer.request
    assert viewer.status == 200
    assert b"one" in viewer.sent[1]["body"]
    assert b"two" in viewer.sent[2]["body"]
    assert viewer.sent[3:] == [{"type": "http.response.body"}]


async def test_video_that_fails_before_the_first_picture_reports_the_error(tmp_path: Path) -> None:
    viewer = Viewer(tmp_path, error=NotReady("the camera is off"))
    await viewer.request
    assert viewer.status == 503


async def test_video_that_is_cancelled_stops_watching(tmp_path: Path) -> None:
    viewer = Viewer(tmp_path, ends=False)
    await until(lambda: viewer.is_watching)
    viewer.request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await viewer.request
    assert not viewer.is_watching
    assert viewer.guard.limits.together().is_idle


@pytest.mark.parametrize("pictures", [(), (b"jpeg",)])
async def test_video_of_a_viewer_without_the_role_ends(tmp_path: Path, pictures: tuple[bytes, ...]) -> None:
    viewer = Viewer(tmp_path, *pictures, ends=False)
    await until(lambda: viewer.is_watching and len(viewer.sent) == 2 * len(pictures))
    await viewer.guard.reconfigure(Access(loopback=("read",)), [])
    assert not viewer.request.done()
    await viewer.guard.reconfigure(Access(loopback=("infer",)), [])
    await asyncio.wait_for(viewer.request, 10)
    assert not viewer.is_watching
    assert viewer.status == (200 if pictures else 403)
    assert [each["type"] for each in viewer.sent].count("http.response.start") == 1
    assert not viewer.sent[-1].get("more_body")


@pytest.mark.parametrize("address", ["0.0.0.0:0", "unix:/tmp/edged-page"])
async def test_page_that_may_not_listen_at_an_address_does_not_start(tmp_path: Path, address: str) -> None:
    guard = Guard(Access(unencrypted=("0.0.0.0:0",)), Tls(), tmp_path)
    listener = PageListener(Page(listen=address), cast(Any, None), cast(Any, None), guard)
    with pytest.raises(ConfigError):
        await listener.start()
    assert listener.address == ""
