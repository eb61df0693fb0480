"""The cost of tracking, compared with the cost of a frame. Prints ratios measured in one run.

python tests/bench/tracking.py [SECONDS]

A frame is 640x480x3 bytes that pass through the arena to an engine host that answers at once. The detections move from
frame to frame. Processor time is that of this process, which takes the daemon's role.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable

from edged.backends.contract import Order, Recipe, Signature
from edged.config.child_limits import HostLimits
from edged.serving.link import HostLink
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.serving.tracking import Tracking, TrackingLimits
from edged.serving.work import InputTensor, TensorWork
from edged.tensors import TensorSpec
from edged.vision.detections import Detections
from edged.vision.family import recognise
from tests.fake_link import engine_ref
from tests.moving import crossing, watch

_SIGNATURE = Signature((TensorSpec("x", "UINT8", ("n",)),), (TensorSpec("y", "FP32", (1, 2)),))
_PICTURE = bytes(640 * 480 * 3)


async def cost(frame: Callable[[], Awaitable[object]], seconds: float) -> tuple[float, float]:
    """Return the wall-clock and processor time of a frame in this process, in microseconds."""
    for _ in range(20):
        await frame()
    count, wall, processor = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        await frame()
        count += 1
    return (time.perf_counter() - wall) / count * 1e6, (time.process_time() - processor) / count * 1e6


async def measure(seconds: float) -> None:
    link = HostLink("null", HostLimits(arena_mb=16), lambda *_: None)
    await link.start()
    tracking = Tracking(TrackingLimits(patience=10))
    try:
        slot = Slot("m")
        order = Order("/nowhere", _SIGNATURE, Recipe("null"))
        number = await link.open(order, recognise(_SIGNATURE.inputs, _SIGNATURE.outputs, {}, {}))
        slot.install(ServingSession(link, number, engine_ref("engine", "null")))
        seconds_to_start = await start(tracking)
        print(f"the tracker's process: {seconds_to_start:.1f} s to start, {megabytes(tracking.pid):.0f} MB")

        async def serve() -> None:
            work = TensorWork((InputTensor("x", "UINT8", (len(_PICTURE),), _PICTURE),), None)
            slot.push(work)
            await work.future

        plain_wall, plain_processor = await cost(serve, seconds)
        print(f"{'a frame through the link':28} {plain_wall:5.0f} us, daemon's processor {plain_processor:4.0f} us")
        for objects in (0, 5, 20, 100):
            seen = [(s.captured, s.found.pack()) for s in watch(crossing(1, objects or 1, 2000), range(200))]
            frames = itertools.cycle(found if objects else b"" for _, found in seen)
            captured = itertools.count(1)

            async def follow(frames=frames, captured=captured, camera=objects) -> None:
                await serve()
                await tracking.follow(camera, next(captured) / 30, next(frames))

            wall, processor = await cost(follow, seconds)
            print(
                f"{f'tracked, {objects} objects':28} {wall / plain_wall:5.2f} times the wall clock,"
                f" {processor / plain_processor:5.2f} times the daemon's processor time"
            )
        if tracking.problem:
            print(f"problem: {tracking.problem}")
    finally:
        await tracking.close()
        await link.stop()


async def start(tracking: Tracking) -> float:
    """Return the seconds until the tracker gives ids."""
    began = time.perf_counter()
    found = Detections.of([[0, 0, 9, 9]], [1], [0]).pack()
    for moment in itertools.count():
        if await tracking.follow("first", moment, found):
            break
        await asyncio.sleep(0.01)
    return time.perf_counter() - began


def megabytes(pid: int) -> float:
    """Return a process's resident memory."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096 / (1 << 20)


if __name__ == "__main__":
    asyncio.run(measure(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0))
