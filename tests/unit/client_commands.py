"""Operations calls of the clients' test daemon. The name of the selected model chooses the behaviour."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc

from edged.api.grpc.status import describe, trailing
from edged.errors import OutOfSpace
from edged.proto import operations_pb2 as ops

KEYS = ("aaaaaa111111", "bbbbbb222222")

EVENTS = [
    ops.Event(sequence=1, unix_s=1.6e9, epoch="e1", model="doors", model_read=ops.Event.ModelRead(digest="d" * 64)),
    ops.Event(
        sequence=2, unix_s=1.6e9, epoch="e1", engine="k" * 64, engine_evicted={"bytes": 5, "reason": "to make room"}
    ),
    ops.Event(sequence=3, unix_s=1.6e9, epoch="e1"),  # without a kind, as an event that this client is too old to know
]


class Commands:
    """The handlers. `given` has the requests received; `watching` counts the streaming calls in progress."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.watching = 0
        self.alarms: list[ops.Alarm] = []

    async def rebuild(self, request: Any, context: Any) -> AsyncIterator[ops.EngineProgress]:
        """Answer Rebuild and Verify: queue two engines, build the first in steps, end as the model's name says."""
        model = request.selector.model
        self.given.append(request)
        self.watching += 1
        try:
            if model == "missing":
                await context.abort(grpc.StatusCode.NOT_FOUND, "there is no model 'missing'")
            if model == "refused":
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "nothing is in the store; rebuild it")
            if model == "full":
                await abort(context, OutOfSpace("no room; evict something"))
            if model == "hung":
                await asyncio.sleep(60)
            if model == "nothing":
                return
            for key in KEYS:
                yield _progress(key, model, state="queued", phase="waiting")
            if not request.follow:
                return
            for fraction in (0.0, 0.25, 0.5):
                yield _progress(KEYS[0], model, state="building", phase="building", fraction=fraction)
            if model == "endless":
                await asyncio.sleep(60)
            yield _progress(KEYS[0], model, state="ready", done=True, succeeded=True)
            good = model != "bad"
            state, reason = ("ready", "") if good else ("rejected", "its answers are wrong")
            yield _progress(KEYS[1], model, state=state, reason=reason, done=True, succeeded=good)
        finally:
            self.watching -= 1

    async def select(self, request: ops.SelectEngines, context: Any) -> ops.SelectedEngines:
        """Answer Cancel, Pin, Unpin and Evict."""
        self.given.append(request)
        if request.selector.model == "serving":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "engine aaaaaa111111 serves; nothing was evicted")
        return ops.SelectedEngines(keys=() if request.selector.model == "nothing" else KEYS)

    async def status(self, *_: Any) -> ops.GetStatusResponse:
        return ops.GetStatusResponse(
            version="0.1.0",
            epoch="e1",
            uptime_s=3725,
            models=3,
            serving=2,
            engines=5,
            engine_bytes=12_300_000,
            budget_bytes=2_000_000_000,
            free_bytes=4_500_000_000,
            building=[_progress(KEYS[0], "doors", state="building", phase="building", fraction=0.25)],
            alarms=self.alarms,
        )

    async def load(self, *_: Any) -> ops.GetLoadResponse:
        """Report one model that gets 50 requests a second, by the monotonic clock."""
        now = time.monotonic()
        doors = ops.ModelLoad(
            name="doors", state="ready", backend="openvino", precision="fp32", answered=int(now * 50), infer_ms=4.2
        )
        return ops.GetLoadResponse(status=await self.status(), mono_s=now, models=[doors])

    async def events(self, request: ops.WatchEventsRequest, context: Any) -> AsyncIterator[ops.Event]:
        self.given.append(request)
        self.watching += 1
        try:
            for event in EVENTS:
                if event.sequence > request.after:
                    yield event
            if request.follow:
                await asyncio.sleep(60)
        finally:
            self.watching -= 1

    def methods(self) -> dict[str, tuple[Any, Any, Any]]:
        one, many = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return {
            "Rebuild": (many, self.rebuild, ops.RebuildRequest),
            "Verify": (many, self.rebuild, ops.VerifyRequest),
            "WatchEvents": (many, self.events, ops.WatchEventsRequest),
            "GetStatus": (one, self.status, ops.GetStatusRequest),
            "GetLoad": (one, self.load, ops.GetLoadRequest),
            **dict.fromkeys(("Cancel", "Pin", "Unpin", "Evict"), (one, self.select, ops.SelectEngines)),
        }


def _progress(
    key: str,
    model: str,
    state: str,
    phase: str = "",
    fraction: float | None = None,
    reason: str = "",
    done: bool = False,
    succeeded: bool = False,
) -> ops.EngineProgress:
    message = ops.EngineProgress(
        key=key, model=model, backend="openvino", precision="fp32", device="cpu", state=state, reason=reason
    )
    message.done, message.succeeded = done, succeeded
    if phase:
        estimate = None if fraction is None else 30.0
        making = ops.Making(phase=phase, fraction=fraction, elapsed_s=12.0 if fraction else 0.0, estimate_s=estimate)
        message.making.CopyFrom(making)
    return message


async def abort(context: Any, error: Exception) -> NoReturn:
    """Abort a call with the status and trailers that the daemon sends for `error`."""
    status, message = describe(error)
    await context.abort(grpc.StatusCode[status.name], message, trailing(error, status, message))
    raise AssertionError("abort returned")
