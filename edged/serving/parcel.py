"""Work as it goes to a host and comes back: its bytes in shared memory, the order, and the answers told apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence

from edged.errors import EdgedError, EngineUnusable, Overloaded
from edged.ipc import messages as m
from edged.ipc.arena import Arena, Span
from edged.serving.link import Reply, rebuild
from edged.serving.work import Answered, Blob, EngineRef, FrameWork, OutputTensor, OutputView, TensorWork, Work
from edged.tensors import DATATYPES, byte_size

_ALIGNED = 64  # bytes: the host places each output at a multiple


class Parcel:
    """One piece of work with its bytes in the arena; where tensor requests go together, the first of them has all."""

    __slots__ = ("_arena", "queue_ms", "sent", "spans", "work")

    def __init__(self, work: Work, arena: Arena, spans: list[Span]) -> None:
        self.work, self._arena, self.spans = work, arena, spans
        self.sent = time.monotonic()
        self.queue_ms = (self.sent - work.received) * 1e3

    def release(self) -> None:
        for span in self.spans:
            self._arena.release(span)
        self.spans = []


def pack(chosen: Sequence[Work], arena: Arena, refuse: Callable[[Work, EdgedError], None]) -> list[Parcel]:
    """Places the bytes of work that goes together. What cannot be placed is refused, and leaves nothing behind."""
    tensors = [work for work in chosen if isinstance(work, TensorWork)]
    if len(tensors) > 1:
        return _pack_rows(tensors, arena, refuse)
    parcels = []
    for work in chosen:
        spans: list[Span] = []
        try:
            for blob in work.blobs():
                spans.append(arena.reserve(_size(blob)))
                _fill(arena.read(spans[-1]), blob)
        except EdgedError as error:
            _release(arena, spans)
            refuse(work, error)
        except BaseException:
            _release(arena, spans)
            raise
        else:
            parcels.append(Parcel(work, arena, spans))
    return parcels


def _pack_rows(chosen: list[TensorWork], arena: Arena, refuse: Callable[[Work, EdgedError], None]) -> list[Parcel]:
    """The rows of each input one after the other, so that the host finds one tensor where there were several.

    Where there is no room for all of them, as many go as there is room for; the others may come again.
    """
    works, left = list(chosen), list[TensorWork]()
    while works:
        spans: list[Span] = []
        at: TensorWork | None = None
        try:
            for blobs in zip(*(work.blobs() for work in works), strict=True):
                at = None
                spans.append(arena.reserve(sum(map(_size, blobs))))
                place, offset = arena.read(spans[-1]), 0
                for work, blob in zip(works, blobs, strict=True):
                    at = work
                    _fill(place[offset : offset + _size(blob)], blob)
                    offset += _size(blob)
        except EdgedError as error:
            _release(arena, spans)
            if at is None and len(works) > 1:
                half = len(works) // 2
                works, left = works[:half], works[half:] + left
                continue
            culprit = works[0] if at is None else at
            refuse(culprit, error)
            works = [work for work in works if work is not culprit]
            if not works and not isinstance(error, Overloaded):  # it was the only one that stood in the way
                works, left = left, []
        except BaseException:
            _release(arena, spans)
            raise
        else:
            break
    for work in left:
        refuse(work, Overloaded("the shared memory has no room for this request now; send less at a time"))
    return [Parcel(work, arena, [] if index else spans) for index, work in enumerate(works)]


def _size(blob: Blob) -> int:
    return len(blob) if isinstance(blob, bytes | memoryview) else blob.size


def _fill(place: memoryview, blob: Blob) -> None:
    if isinstance(blob, bytes | memoryview):
        place[:] = blob
    else:
        blob.read_into(place)


def _release(arena: Arena, spans: list[Span]) -> None:
    for span in spans:
        arena.release(span)


def order(parcels: Sequence[Parcel], session: int, reply: Span | None) -> Callable[[int], m.Infer | m.Detect]:
    """What the host is told, given the job's number: tensors, or frames that go together."""

    def make(job: int) -> m.Infer | m.Detect:
        first = parcels[0]
        if isinstance(first.work, TensorWork):
            rows = sum(parcel.work.rows for parcel in parcels) if len(parcels) > 1 else 0
            return first.work.message(job, session, first.spans, reply, rows, len(parcels))
        pictures = [p.work.picture(p.spans[0]) for p in parcels if isinstance(p.work, FrameWork)]
        return m.Detect(job, session, tuple(pictures), reply)

    return make


def answers(
    parcels: Sequence[Parcel], engine: EngineRef, reply: Reply, arena: Arena, room: Span | None
) -> list[Answered | EdgedError]:
    """What each piece of work gets. Nothing of it is in the arena: its span is given to the next request.

    EngineUnusable for outputs that are not what was asked for, or not in `room`: a stranger's model may speak for the
    host, and the rest of the arena is other clients'; and if tensors that went together did not come back so.
    """
    if isinstance(reply, m.Answer):
        first = parcels[0].work
        assert isinstance(first, TensorWork)  # what goes together asks for the same
        _require(reply.outputs, engine, engine.outputs if first.outputs is None else first.outputs)
        outputs = _outputs(reply.outputs, arena, room, [parcel.work.rows for parcel in parcels])
        return [
            _answered(parcel, tensors, engine, reply.times) for parcel, tensors in zip(parcels, outputs, strict=True)
        ]
    if len(reply.seen) != len(parcels):
        return [EngineUnusable(f"the host answered {len(reply.seen)} of {len(parcels)} pictures") for _ in parcels]
    return [_answer(seen, parcel, engine, arena, room) for seen, parcel in zip(reply.seen, parcels, strict=True)]


def infer_ms(reply: Reply) -> float | None:
    """How long the engine took; None where it did not run, or for several at once."""
    if isinstance(reply, m.Answer):
        return reply.times.infer_ms
    return reply.seen[0].times.infer_ms if len(reply.seen) == 1 and not reply.seen[0].error else None


def times_of(reply: Reply) -> list[m.Times]:
    """What an order took: each picture is decoded and read by itself, tensors of a batch all at once."""
    return [reply.times] if isinstance(reply, m.Answer) else [seen.times for seen in reply.seen if not seen.error]


def room_for(reply: Reply) -> int:
    """Bytes that the outputs of such a reply need in the arena."""
    refs = reply.outputs if isinstance(reply, m.Answer) else [ref for seen in reply.seen for ref in seen.outputs]
    sizes = (len(ref.data) if ref.span is None else ref.span.size for ref in refs)
    return sum(-(-size // _ALIGNED) * _ALIGNED for size in sizes)


def _answered(
    parcel: Parcel, outputs: tuple[OutputView, ...], engine: EngineRef, times: m.Times
) -> Answered | EdgedError:
    """The answer of a tensor request; or why its outputs could not be taken to where they were to go."""
    assert isinstance(parcel.work, TensorWork)
    try:
        return Answered(engine, None, parcel.work.take(outputs), 0, 0, parcel.queue_ms, times)
    except EdgedError as error:
        return error


def _answer(seen: m.Seen, parcel: Parcel, engine: EngineRef, arena: Arena, room: Span | None) -> Answered | EdgedError:
    if seen.error:
        return rebuild(seen.error, seen.message)
    outputs: tuple[OutputTensor, ...] = ()
    if seen.outputs:  # of a model of no family
        try:
            _require(seen.outputs, engine, engine.outputs)
            (views,) = _outputs(seen.outputs, arena, room, [1])
        except EngineUnusable as error:
            return error
        outputs = tuple(view.kept() for view in views)
    return Answered(
        engine, seen.detections, outputs, seen.width, seen.height, parcel.queue_ms, seen.times, seen.classes
    )


def _require(refs: Sequence[m.TensorRef], engine: EngineRef, wanted: Collection[str]) -> None:
    """EngineUnusable if outputs are not those that are wanted, each once and of the engine's datatype."""
    names = {ref.name for ref in refs}
    if len(names) != len(refs) or (wanted and names != set(wanted)):
        raise EngineUnusable(f"the host answered with other outputs than the {len(wanted)} that were asked for")
    known = engine.outputs
    if known and any(known.get(ref.name) != ref.datatype for ref in refs):
        raise EngineUnusable("the host answered with an output of another datatype than its model's")


def _data(ref: m.TensorRef, arena: Arena, room: Span | None) -> memoryview:
    """The bytes of an output where they lie."""
    if (span := ref.span) is None:
        data = memoryview(ref.data)
    elif (
        room is None or span.size < 0 or span.offset < room.offset or span.offset + span.size > room.offset + room.size
    ):
        raise EngineUnusable(f"the host answered with output {ref.name!r} in memory that the request was not given")
    else:
        data = arena.read(span)
    is_whole = min(ref.shape, default=0) >= 0
    if is_whole and ref.datatype != "BYTES":
        is_whole = ref.datatype in DATATYPES and byte_size(ref.datatype, ref.shape) == len(data)
    if not is_whole:
        raise EngineUnusable(
            f"the host answered with {len(data)} bytes as output {ref.name!r} {ref.datatype}{list(ref.shape)}"
        )
    return data


def _outputs(
    refs: Sequence[m.TensorRef], arena: Arena, room: Span | None, rows: list[int]
) -> list[tuple[OutputView, ...]]:
    """The outputs of each request where they lie; of several that went together, its rows of them."""
    found: list[list[OutputView]] = [[] for _ in rows]
    for ref in refs:
        data = _data(ref, arena, room)
        if len(rows) == 1:
            found[0].append(OutputView(ref.name, ref.datatype, ref.shape, data))
            continue
        for tensors, (count, part) in zip(found, _parts(ref, data, rows), strict=True):
            tensors.append(OutputView(ref.name, ref.datatype, (count, *ref.shape[1:]), part))
    return [tuple(tensors) for tensors in found]


def _parts(ref: m.TensorRef, data: memoryview, rows: list[int]) -> Iterator[tuple[int, memoryview]]:
    if not ref.shape or ref.shape[0] != sum(rows) or ref.datatype == "BYTES":
        raise EngineUnusable(f"output {ref.name!r} {ref.datatype}{list(ref.shape)} is not of {sum(rows)} rows")
    size, offset = len(data) // max(1, ref.shape[0]), 0
    for count in rows:
        yield count, data[offset : offset + count * size]
        offset += count * size
