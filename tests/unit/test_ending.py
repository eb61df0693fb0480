"""Calls that end with an error: their status, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any, cast

import grpc
import pytest

from edged.api.grpc.call_guard import end
from edged.errors import ClientLimited, InvalidInput
from tests.waiting import run


class AbortedCall:
    """A call's context, which keeps what it raises, as gRPC does."""

    def __init__(self) -> None:
        self.ended: tuple[Any, ...] = ()
        self.raised: BaseException | None = None

    async def abort(self, *said: Any) -> None:
        self.ended = said
        self.raised = grpc.aio.AbortError("ended")
        raise self.raised


class Request:
    """Stands for many megabytes."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def refuse(call: AbortedCall, request: Request, error: Exception) -> None:
    try:
        raise error  # as a handler does, with the request in its frame
    except Exception as caught:
        await end(cast(Any, call), caught)


def test_a_call_ends_with_the_status_of_its_error() -> None:
    call = AbortedCall()
    with pytest.raises(grpc.aio.AbortError):
        run(refuse(call, Request(), ClientLimited("too many at a time", 0.25)))
    code, message, metadata = call.ended
    assert (code, message) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many at a time")
    assert dict(metadata)["grpc-retry-pushback-ms"] == "250"


@pytest.mark.usefixtures("no_collector")
def test_nothing_of_a_call_stays_with_the_error_that_grpc_keeps() -> None:
    async def work() -> None:
        call, request = AbortedCall(), Request()
        there = weakref.ref(request)
        with pytest.raises(grpc.aio.AbortError):
            await refuse(call, request, InvalidInput("no"))
        del request
        for _ in range(100):
            if there() is None:
                break
            await asyncio.sleep(0.02)
        assert call.raised is not None
        assert there() is None

    run(work())
