"""The asynchronous client: results, errors and ends of streams, cancellation, and a loop that is never blocked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from edged.client import AsyncClient, Result
from edged.errors import AlreadyExists, InvalidInput
from tests import models
from tests.unit.client_daemon import Frames, Running
from tests.waiting import until

pytestmark = pytest.mark.timeout(60)
kinds = pytest.mark.parametrize("kind", ["ordinary", "asynchronous"])


@kinds
@pytest.mark.parametrize("end", ["left block", "cancelled wait", "dropped reference"])
async def test_stream_ended_early_closes_frames_and_call(running: Running, kind: str, end: str) -> None:
    frames = Frames(gap=0.005)
    async with AsyncClient(running.target) as client:
        if end == "left block":
            async with client.stream("shapes", frames.of(kind)) as stream:
                await anext(stream)
            assert [result async for result in stream] == []
        elif end == "cancelled wait":
            stream = client.stream("hung", frames.of(kind))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(stream), 0.3)
            assert [result async for result in stream] == []
        else:
            async for _ in client.stream("shapes", frames.of(kind)):
                break
        assert await asyncio.to_thread(frames.over)
        await until(lambda: running.daemon.ended == 1)
        assert not [task for task in asyncio.all_tasks() if "edged.client" in str(task)]


@kinds
async def test_stream_failing_frames_raise_after_the_answers(running: Running, kind: str) -> None:
    async with AsyncClient(running.target) as client:
        stream = client.stream(
            "slow", Frames(gap=0.002, count=50, failure=KeyError("lens cap")).of(kind), camera="door"
        )
        sequences = []
        with pytest.raises(KeyError, match="lens cap"):  # noqa: PT012 - after some results
            async for result in stream:
                sequences.append(result.sequence)
        assert (sequences[-1], stream.counts.sent, stream.counts.waiting) == (50, 50, 0)


async def test_stream_slow_camera_does_not_block_the_loop(running: Running) -> None:
    async def drain(stream: AsyncIterator[Result]) -> int:
        return len([result async for result in stream])

    async with AsyncClient(running.target) as client:
        streams = [client.stream("shapes", Frames(gap=0.2, count=3).ordinary()) for _ in range(40)]
        start = time.monotonic()
        assert sum(await asyncio.gather(*map(drain, streams))) == 120
        assert time.monotonic() - start < 5


async def test_client_calls_return_values_or_raise(running: Running, tmp_path: Path) -> None:
    path = models.save(models.matmul(), tmp_path / "m.onnx")
    async with AsyncClient(running.target) as client:
        result = await client.infer("shapes", np.zeros((4, 6, 3), np.uint8), score=0.5)
        assert (result.width, result.height, len(result.detections)) == (6, 4, 2)
        with pytest.raises(InvalidInput):
            await client.infer("shapes", b"bad")
        assert (await client.add_model("new", path)).state == "loading"
        with pytest.raises(AlreadyExists):
            await client.add_model("taken", path)
        assert [files for _, files in running.daemon.uploads] == [{"m.onnx": path.read_bytes()}]


async def test_client_cancelled_call_is_cancelled_at_the_daemon(running: Running) -> None:
    async with AsyncClient(running.target) as client:
        call = asyncio.ensure_future(client.infer("hung", b"x"))
        await until(lambda: running.daemon.frames)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: running.daemon.cancelled == 1)
