"""The asynchronous client: the same account and the same ends as the blocking one, and clean cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edged.client import AsyncClient
from edged.client.upload import Upload
from edged.errors import AlreadyExists, DaemonUnavailable, DeadlineExceeded, InvalidInput, NotFound, NotReady
from tests.unit.client_daemon import Running

pytestmark = pytest.mark.timeout(60)
JPEG = b"\xff\xd8 a picture"


@pytest.fixture(params=["unix", "tcp"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    with Running(f"unix:{tmp_path}/edged.sock" if request.param == "unix" else None) as running:
        yield running


def run(work: Coroutine[Any, Any, None]) -> None:
    """Bounded, and without a task left over."""

    async def bounded() -> None:
        await asyncio.wait_for(work, 30)
        await asyncio.sleep(0.05)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert [task for task in left if "edged.client" in str(task)] == []

    asyncio.run(bounded())


class Frames:
    """The same frames as an ordinary or as an asynchronous generator."""

    def __init__(self, gap: float = 0.0, count: int | None = None, failure: Exception | None = None) -> None:
        self.started = False
        self.closed = threading.Event()
        self._gap, self._count, self._failure = gap, count, failure

    def over(self) -> bool:
        """Closed in time, or never begun, as when the call fails before the first frame is pulled."""
        return not self.started or self.closed.wait(5)

    def ordinary(self) -> Iterator[bytes]:
        number = 0
        self.started = True
        try:
            while self._count is None or number < self._count:
                number += 1
                time.sleep(self._gap)
                yield JPEG
            if self._failure:
                raise self._failure
        finally:
            self.closed.set()

    async def asynchronous(self) -> AsyncIterator[bytes]:
        number = 0
        self.started = True
        try:
            while self._count is None or number < self._count:
                number += 1
                await asyncio.sleep(self._gap)
                yield JPEG
            if self._failure:
                raise self._failure
        finally:
            self.closed.set()

    def of(self, kind: str) -> Any:
        return self.ordinary() if kind == "ordinary" else self.asynchronous()


kinds = pytest.mark.parametrize("kind", ["ordinary", "asynchronous"])


@kinds
@pytest.mark.parametrize("model", ["shapes", "slow", "flaky"])
def test_stream_mixed_outcomes_are_all_counted(running: Running, kind: str, model: str) -> None:
    async def work() -> None:
        async with AsyncClient(running.target) as client:
            stream = client.stream(model, Frames(gap=0.002, count=100).of(kind), camera="door")
            results = [result async for result in stream]
            assert stream.counts.sent == 100 == len(results) + sum(result.skipped for result in results)
            assert stream.counts.failed == sum(result.error is not None for result in results)
            assert (stream.counts.waiting, results[-1].sequence) == (0, 100)
            assert (stream.counts.skipped > 0) or model != "slow"

    run(work())


@kinds
def test_stream_lossless_skips_nothing(running: Running, kind: str) -> None:
    async def work() -> None:
        async with AsyncClient(running.target) as client:
            stream = client.stream("slow", Frames(count=20).of(kind), lossless=True)
            assert [result.sequence async for result in stream] == list(range(1, 21))

    run(work())


@kinds
def test_stream_left_block_closes_frames_and_call(running: Running, kind: str) -> None:
    async def work() -> None:
        frames = Frames(gap=0.005)
        async with AsyncClient(running.target) as client, client.stream("shapes", frames.of(kind)) as stream:
            async for _ in stream:
                break
        assert await asyncio.to_thread(frames.over)
        assert [result async for result in stream] == []
        for _ in range(200):
            await asyncio.sleep(0.01 if running.daemon.ended == 0 else 0)
        assert running.daemon.ended == 1

    run(work())


@kinds
def test_stream_cancelled_wait_closes_frames_and_call(running: Running, kind: str) -> None:
    async def work() -> None:
        frames = Frames(gap=0.005)
        async with AsyncClient(running.target) as client:
            stream = client.stream("hung", frames.of(kind))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(stream), 0.3)
            assert await asyncio.to_thread(frames.over)
            assert [result async for result in stream] == []

    run(work())


@kinds
def test_stream_dropped_reference_ends_call(running: Running, kind: str) -> None:
    async def work() -> None:
        frames = Frames(gap=0.005)
        async with AsyncClient(running.target) as client:
            async for _ in client.stream("shapes", frames.of(kind)):
                break
            assert await asyncio.to_thread(frames.over)

    run(work())


@kinds
def test_stream_failing_frames_raise_after_the_answers(running: Running, kind: str) -> None:
    async def work() -> None:
        async with AsyncClient(running.target) as client:
            stream = client.stream("shapes", Frames(count=3, failure=KeyError("lens cap")).of(kind))
            seen = []

            async def follow() -> None:
                async for result in stream:
                    seen.append(result.sequence)

            with pytest.raises(KeyError, match="lens cap"):
                await follow()
            assert (seen[-1], stream.counts.waiting) == (3, 0)

    run(work())


@kinds
def test_stream_failed_call_raises_its_error(running: Running, kind: str) -> None:
    async def work() -> None:
        async with AsyncClient(running.target, timeout=0.4) as client:
            for model, kind_of_error in (("missing", NotFound), ("quits", NotReady), ("hung", DeadlineExceeded)):
                frames = Frames(gap=0.01)
                with pytest.raises(kind_of_error):
                    async for _ in client.stream(model, frames.of(kind)):
                        pass
                assert await asyncio.to_thread(frames.over)

    run(work())


@kinds
def test_stream_failed_write_keeps_the_daemons_status(running: Running, kind: str) -> None:
    """Many times, since grpc.aio loses the reason in a race."""

    async def work() -> None:
        async with AsyncClient(running.target) as client:
            for _ in range(40):
                with pytest.raises(NotFound, match="no model 'missing'"):
                    await anext(client.stream("missing", Frames().of(kind)))

    run(work())


@kinds
def test_client_without_daemon_raises_not_ready(tmp_path: Path, kind: str) -> None:
    async def work() -> None:
        async with AsyncClient(f"unix:{tmp_path}/none.sock") as client:
            with pytest.raises(DaemonUnavailable, match="start one with: edged serve"):
                await client.models()
            frames = Frames(gap=0.01)
            with pytest.raises(DaemonUnavailable, match="start one with: edged serve"):
                async for _ in client.stream("shapes", frames.of(kind)):
                    pass
            assert await asyncio.to_thread(frames.over)

    run(work())


@kinds
def test_stream_daemon_that_stops_raises_not_ready(tmp_path: Path, kind: str) -> None:
    async def work() -> None:
        with Running(f"unix:{tmp_path}/edged.sock") as running:
            client = AsyncClient(running.target)
            stream = client.stream("shapes", Frames(gap=0.01).of(kind))
            assert (await anext(stream)).sequence >= 1
        with pytest.raises(NotReady):
            async for _ in stream:
                pass
        await client.close()

    run(work())


def test_stream_slow_camera_does_not_block_the_loop(running: Running) -> None:
    async def work() -> None:
        async with AsyncClient(running.target) as client:
            streams = [client.stream("shapes", Frames(gap=0.2, count=3).ordinary()) for _ in range(40)]
            start = time.monotonic()

            async def drain(stream: Any) -> int:
                return len([result async for result in stream])

            assert sum(await asyncio.gather(*map(drain, streams))) == 120
            assert time.monotonic() - start < 5

    run(work())


def test_client_unary_calls_return_values(running: Running) -> None:
    async def work() -> None:
        async with AsyncClient(running.target) as client:
            result = await client.infer("shapes", np.zeros((4, 6, 3), np.uint8), score=0.5)
            assert (result.width, result.height, len(result.detections)) == (6, 4, 2)
            assert [model.name for model in await client.models()] == ["shapes"]
            assert [engine.key for engine in await client.engines("shapes")] == ["abc"]
            assert (await client.explain("shapes"))[0].summary == "new"
            assert (await client.device()).digest == "d1"
            await client.remove_model("shapes")
            assert running.daemon.removed == ["shapes"]
            with pytest.raises(InvalidInput):
                await client.infer("shapes", b"bad")

    run(work())


def model_file(folder: Path) -> Path:
    weights = onnx.numpy_helper.from_array(np.ones((700, 1000), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 700])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1000])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    onnx.save(helper.make_model(graph), str(folder / "m.onnx"))
    return folder / "m.onnx"


def test_add_model_upload_arrives_whole(running: Running, tmp_path: Path) -> None:
    async def work() -> None:
        path = model_file(tmp_path)
        async with AsyncClient(running.target) as client:
            assert (await client.add_model("new", path)).state == "loading"
            ((_, files),) = running.daemon.uploads
            assert files == {"m.onnx": path.read_bytes()}
            with pytest.raises(AlreadyExists):
                await client.add_model("taken", path)

    run(work())


def test_add_model_truncated_file_is_rejected(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Upload) -> Iterator[Any]:
        yield from list(read(self))[:3]
        self.failure = InvalidInput("the model cannot be read: Input/output error")
        raise OSError

    read = Upload._read
    monkeypatch.setattr(Upload, "_read", broken)

    async def work() -> None:
        async with AsyncClient(running.target) as client:
            with pytest.raises(InvalidInput, match="Input/output error"):
                await client.add_model("new", model_file(tmp_path))
        assert running.daemon.uploads == []

    run(work())
