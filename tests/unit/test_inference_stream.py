"""Inference streams without gRPC: how far requests are read ahead, and that each one read is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edged.api.grpc.rpc import Context
from edged.api.grpc.wire import Request
from edged.api.inference.service import InferHandlers
from edged.errors import DeadlineExceeded
from edged.proto import open_inference_pb2 as pb

_NO_LANGUAGE = SimpleNamespace(of=lambda name, version: None)


class Slow:
    """Answers a request with its id when `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def answer(self, request: Request, caller: object, write: Callable[..., Any]) -> list[Any]:
        await self.gate.wait()
        return [write(pb.ModelInferResponse(id=request.id), ())]


async def test_stream_of_a_daemon_that_stops_answers_every_request_read_so_far() -> None:
    inference, read = Slow(), []

    async def requests() -> AsyncIterator[bytes]:
        for number in range(100):
            read.append(str(number))
            yield pb.ModelInferRequest(id=str(number)).SerializeToString()

    handlers = InferHandlers(cast(Any, inference), cast(Any, _NO_LANGUAGE))
    stream = handlers.model_stream_infer_bytes(requests(), Context("unix:"))
    answered = asyncio.create_task(collect(stream))
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(read) == 16
    handlers.stop()
    inference.gate.set()
    assert await answered == read


async def test_stream_reads_large_requests_ahead_up_to_a_limit_of_bytes() -> None:
    inference, read = Slow(), []

    async def requests() -> AsyncIterator[bytes]:
        for number in range(10):
            read.append(str(number))
            request = pb.ModelInferRequest(id=str(number), raw_input_contents=[bytes(24 << 20)])
            yield request.SerializeToString()

    stream = InferHandlers(cast(Any, inference), cast(Any, _NO_LANGUAGE)).model_stream_infer_bytes(
        requests(), Context("unix:")
    )
    answered = asyncio.create_task(collect(stream))
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(read) == 3  # the third one exceeds 64 MiB
    inference.gate.set()
    assert await answered == read
    assert len(read) == 10


async def test_stream_whose_requests_fail_raises_the_error_after_the_answers() -> None:
    inference = Slow()
    inference.gate.set()

    async def requests() -> AsyncIterator[bytes]:
        yield pb.ModelInferRequest(id="1").SerializeToString()
        raise DeadlineExceeded("too slow")

    handlers = InferHandlers(cast(Any, inference), cast(Any, _NO_LANGUAGE))
    stream = handlers.model_stream_infer_bytes(requests(), Context("unix:"))
    assert pb.ModelStreamInferResponse.FromString(await anext(stream)).infer_response.id == "1"
    with pytest.raises(DeadlineExceeded):
        await anext(stream)


async def collect(stream: AsyncIterator[bytes]) -> list[str]:
    return [pb.ModelStreamInferResponse.FromString(data).infer_response.id async for data in stream]
