"""A host link without a host: jobs wait in a list until a test answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from edged.errors import HostLost
from edged.ipc import messages as m
from edged.ipc.arena import Arena
from edged.serving.link import Reply
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.serving.work import EngineRef
from edged.vision.family import recognise


def engine_ref(key: str, backend: str = "fake") -> EngineRef:
    """Return an engine of a model that takes no pictures."""
    return EngineRef(key, backend, "model", recognise((), (), {}, {}))


async def turn() -> None:
    """Run the event loop until everything that is due has run."""
    for _ in range(4):
        await asyncio.sleep(0)


class FakeLink:
    """The part of a HostLink that a slot uses."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.arena = Arena(capacity)
        self.lost, self.backend = "", "fake"
        self.jobs: dict[int, tuple[m.Infer | m.Detect, asyncio.Future[Reply]]] = {}
        self.most = 0  # jobs at once
        self.closed: list[int] = []
        self.abandoned: list[asyncio.Future[Reply]] = []
        self._last = 0

    def submit(self, make: Callable[[int], m.Infer | m.Detect]) -> asyncio.Future[Reply]:
        assert not self.lost
        self._last += 1
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.jobs[self._last] = make(self._last), future
        self.most = max(self.most, len(self.jobs))
        return future

    def abandon(self, future: asyncio.Future[Reply]) -> None:
        self.abandoned.append(future)

    async def close_session(self, number: int) -> None:
        self.closed.append(number)

    def sent(self) -> list[bytes]:
        """Return the bytes that the host would read for every job, oldest first."""
        return [self._bytes(job) for job, _ in self.jobs.values()]

    def sizes(self) -> list[int]:
        """Return the number of pictures, or of rows of the first input, of every job, oldest first."""
        orders = [job for job, _ in self.jobs.values()]
        return [len(job.pictures) if isinstance(job, m.Detect) else job.inputs[0].shape[0] for job in orders]

    async def drain(self) -> list[int]:
        """Answer every job, including new ones; return the size of each."""
        sizes = []
        while self.jobs:
            sizes.append(self.sizes()[0])
            self.answer()
            await turn()
        return sizes

    def reply(self, *outputs: m.TensorRef, not_finite: tuple[str, ...] = ()) -> None:
        """Answer the oldest job, a tensor request, with the given outputs."""
        number = min(self.jobs)
        _, future = self.jobs.pop(number)
        future.set_result(m.Answer(number, outputs, m.Times(), not_finite))

    def answer(self, number: int | None = None) -> None:
        """Answer a job (the oldest by default): a frame with its own bytes as detections, tensors with themselves."""
        number = min(self.jobs) if number is None else number
        job, future = self.jobs.pop(number)
        times = m.Times(infer_ms=1.0)
        if isinstance(job, m.Detect):
            seen = [m.Seen(4, 3, times, bytes(self.arena.read(picture.span))) for picture in job.pictures]
            future.set_result(m.Detected(number, tuple(seen)))
        else:
            outputs = tuple(
                m.TensorRef(ref.name, ref.datatype, ref.shape, None, bytes(self.arena.read(ref.span)))
                for ref in job.inputs
                if ref.span is not None
            )
            future.set_result(m.Answer(number, outputs, times))

    def fail(self, error: Exception) -> None:
        """End the oldest job with an error."""
        _, future = self.jobs.pop(min(self.jobs))
        future.set_exception(error)

    def lose(self) -> None:
        """Make the host die: every job fails with HostLost."""
        self.lost = "died"
        for _, future in self.jobs.values():
            future.set_exception(HostLost("the host died"))
        self.jobs.clear()

    async def die(self, slot: Slot) -> None:
        """Lose the host of a slot's session, and tell the slot."""
        self.lose()
        slot.vacate(self)  # type: ignore[arg-type]
        await turn()

    def session(self, number: int = 1, key: str = "engine", **facts: Any) -> ServingSession:
        """Return a session of an engine with these facts."""
        engine = msgspec.structs.replace(engine_ref(key), **facts)
        return ServingSession(self, number, engine)  # type: ignore[arg-type]

    def _bytes(self, job: m.Infer | m.Detect) -> bytes:
        refs = job.pictures if isinstance(job, m.Detect) else job.inputs
        spans = [ref.span for ref in refs if ref.span is not None]
        return b"".join(bytes(self.arena.read(span)) for span in spans)
