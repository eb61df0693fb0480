"""Work as it goes to a host and comes back: its bytes in shared memory, the order, and the answers told apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from edged.errors import EdgedError, EngineUnusable
from edged.serving import messages as m
from edged.serving.arena import Arena, Span
from edged.serving.link import Reply, rebuild
from edged.serving.work import Answered, EngineRef, FrameWork, OutputTensor, Source, TensorWork, Work

_ALIGNED = 64  # bytes: the host places each output at a multiple


class Parcel:
    """One piece of work with its bytes in the arena."""

    __slots__ = ("_arena", "queue_ms", "spans", "work")

    def __init__(self, work: Work, arena: Arena) -> None:
        """Places the bytes; raises what keeps them from being placed, with nothing left behind."""
        self.work, self._arena = work, arena
        self.spans: list[Span] = []
        try:
            for blob in work.blobs():
                if isinstance(blob, Source):
                    self.spans.append(arena.reserve(blob.size))
                    blob.read_into(arena.read(self.spans[-1]))
                else:
                    self.spans.append(arena.store(blob))
        except BaseException:
            self.release()
            raise
        self.queue_ms = (time.monotonic() - work.received) * 1e3

    def release(self) -> None:
        for span in self.spans:
            self._arena.release(span)
        self.spans = []


def order(parcels: Sequence[Parcel], session: int, reply: Span | None) -> Callable[[int], m.Infer | m.Detect]:
    """What the host is told, given the job's number: one tensor request, or frames that go together."""

    def make(job: int) -> m.Infer | m.Detect:
        first = parcels[0]
        if isinstance(first.work, TensorWork):
            return first.work.message(job, session, first.spans, reply)
        pictures = [p.work.picture(p.spans[0]) for p in parcels if isinstance(p.work, FrameWork)]
        return m.Detect(job, session, tuple(pictures), reply)

    return make


def answers(parcels: Sequence[Parcel], engine: EngineRef, reply: Reply, arena: Arena) -> list[Answered | EdgedError]:
    """What each piece of work gets. Copies out of the arena: its span is given to the next request."""
    if isinstance(reply, m.Answer):
        outputs = tuple(_outputs(reply.outputs, arena))
        return [Answered(engine, None, outputs, 0, 0, parcels[0].queue_ms, reply.times)]
    if len(reply.seen) != len(parcels):
        return [EngineUnusable(f"the host answered {len(reply.seen)} of {len(parcels)} pictures") for _ in parcels]
    return [_answer(seen, parcel, engine, arena) for seen, parcel in zip(reply.seen, parcels, strict=True)]


def infer_ms(reply: Reply) -> float | None:
    """How long the engine took; None where it did not run, or for several at once."""
    if isinstance(reply, m.Answer):
        return reply.times.infer_ms
    return reply.seen[0].times.infer_ms if len(reply.seen) == 1 and not reply.seen[0].error else None


def room_for(results: Sequence[Answered | EdgedError]) -> int:
    """Bytes that the outputs of such answers need in the arena."""
    tensors = (tensor for answer in results if isinstance(answer, Answered) for tensor in answer.outputs)
    return sum(-(-len(tensor.data) // _ALIGNED) * _ALIGNED for tensor in tensors)


def _answer(seen: m.Seen, parcel: Parcel, engine: EngineRef, arena: Arena) -> Answered | EdgedError:
    if seen.error:
        return rebuild(seen.error, seen.message)
    outputs = tuple(_outputs(seen.outputs, arena))
    return Answered(
        engine, seen.detections, outputs, seen.width, seen.height, parcel.queue_ms, seen.times, seen.classes
    )


def _outputs(refs: Sequence[m.TensorRef], arena: Arena) -> Iterator[OutputTensor]:
    for ref in refs:
        data = bytes(arena.read(ref.span)) if ref.span is not None else ref.data
        yield OutputTensor(ref.name, ref.datatype, ref.shape, data)
