"""Executes an engine on a batch. `copy_in` copies the input bytes to shared memory and returns a `Batch`. `Batch.send`
sends the job to the host. `read_reply` reads the reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from edged.errors import EdgedError, EngineUnusable, Overloaded, rebuild
from edged.ipc import messages as m
from edged.ipc.arena import Arena, Span
from edged.serving.link import HostLink, Reply
from edged.serving.work import (
    Answered,
    Blob,
    CropsWork,
    EngineRef,
    FrameWork,
    OutputTensor,
    OutputView,
    TensorWork,
    Work,
)
from edged.tensors import DATATYPES, byte_size
from edged.vision.content import Embedding, unpack
from edged.vision.detections import MOST_DETECTIONS, count_packed

_ALIGNED = 64  # bytes: the host places each output at a multiple of this

Refuse = Callable[[Work, EdgedError], None]


class Batch:
    """Frames, or tensor requests, that go to the host as one job. `spans` are the places of the input bytes in the
    arena, the memory shared with the host. Frames have one span each. Tensor requests have one span for each input,
    with the rows of all requests. The host writes outputs into the span `reply` if they fit. A run of the engine has at
    most `most` pictures."""

    __slots__ = ("_link", "future", "most", "reply", "sent", "spans", "works")
    future: asyncio.Future[Reply]

    def __init__(self, link: HostLink, works: Sequence[Work], spans: list[Span]) -> None:
        self._link, self.works, self.spans = link, works, spans
        self.most = 1
        self.reply: Span | None = None
        self.sent = time.monotonic()

    def send(self, session: int, reply_bytes: int, most: int = 1) -> asyncio.Future[Reply]:
        """Send the batch to the host and return the future of the reply. `reply_bytes` is the expected size of the
        outputs, `most` the largest number of pictures in one run. Raises EdgedError if the batch cannot be sent. If all
        clients of the batch cancel before the reply, the host receives a request to stop the job."""
        self.most = 1 if any(work.is_split for work in self.works) else most
        try:
            if reply_bytes:
                self.reply = self._link.arena.reserve(reply_bytes)
        except EdgedError:
            pass  # the host then sends the outputs in the message, which is slower but always works
        try:
            self.future = self._link.submit(partial(self._message, session))
        except BaseException:
            self.release()
            raise
        for work in self.works:
            work.future.add_done_callback(self._abandon_if_unwanted)
        return self.future

    def release(self) -> None:
        """Release the batch's memory in the arena."""
        for span in self.spans:
            self._link.arena.release(span)
        if self.reply is not None:
            self._link.arena.release(self.reply)
        self.spans, self.reply = [], None

    def _message(self, session: int, job: int) -> m.Infer | m.Detect:
        first = self.works[0]
        if isinstance(first, TensorWork):
            rows = sum(work.rows for work in self.works) if len(self.works) > 1 else 0
            return first.message(job, session, self.spans, self.reply, rows, len(self.works))
        pairs = zip(self.works, self.spans, strict=True)
        pictures = tuple(each for work, span in pairs if isinstance(work, FrameWork) for each in work.pictures(span))
        return m.Detect(job, session, pictures, self.reply, self.most)

    def _abandon_if_unwanted(self, waiting: asyncio.Future[Any]) -> None:
        if waiting.cancelled() and not self.future.done() and not any(work.is_wanted for work in self.works):
            self._link.abandon(self.future)


def copy_in(chosen: Sequence[Work], link: HostLink, refuse: Refuse) -> Batch | None:
    """Copy the bytes of the chosen work into the arena and return the batch, or None if all work was refused. Call
    `refuse` for work that does not fit or cannot be read. Refused work leaves nothing in the arena."""
    spans: list[Span] = []
    try:
        works = _stage_rows(chosen, link.arena, spans, refuse) or _stage_frames(chosen, link.arena, spans, refuse)
    except BaseException:
        _release(link.arena, spans)
        raise
    return Batch(link, works, spans) if works else None


def _stage_frames(chosen: Sequence[Work], arena: Arena, spans: list[Span], refuse: Refuse) -> list[Work]:
    staged = list[Work]()
    for work in chosen:
        if not isinstance(work, FrameWork):
            continue
        try:
            spans.append(arena.reserve(_size(work.data)))
        except EdgedError as error:
            refuse(work, error)
            continue
        try:
            _fill(arena.read(spans[-1]), work.data)
        except EdgedError as error:
            arena.release(spans.pop())
            refuse(work, error)
        else:
            staged.append(work)
    return staged


def _stage_rows(chosen: Sequence[Work], arena: Arena, spans: list[Span], refuse: Refuse) -> list[TensorWork]:
    """Concatenate the rows of each input, so that the host finds one tensor per input.

    If the requests do not all fit in the arena, their number is halved until they fit. The requests that are left out
    are refused with Overloaded.
    """
    works, left = [work for work in chosen if isinstance(work, TensorWork)], list[TensorWork]()
    while works:
        unreadable: TensorWork | None = None
        try:
            for blobs in zip(*(work.blobs() for work in works), strict=True):
                unreadable = None
                spans.append(arena.reserve(sum(map(_size, blobs))))
                place, offset = arena.read(spans[-1]), 0
                for work, blob in zip(works, blobs, strict=True):
                    unreadable = work
                    _fill(place[offset : offset + _size(blob)], blob)
                    offset += _size(blob)
            break
        except EdgedError as error:
            _release(arena, spans)
            if unreadable is None and len(works) > 1:
                half = len(works) // 2
                works, left = works[:half], works[half:] + left
                continue
            culprit = unreadable or works[0]
            refuse(culprit, error)
            works = [work for work in works if work is not culprit]
            if not works and not isinstance(error, Overloaded):  # this request alone did not fit
                works, left = left, []
    for work in left:
        refuse(work, Overloaded("the shared memory has no room for this request now; send less at a time"))
    return works


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
    spans.clear()


def read_reply(batch: Batch, engine: EngineRef, reply: Reply, arena: Arena) -> list[Answered | EdgedError]:
    """Return the result of each frame or request of a batch. Results are copies, because the span is reused. Names of
    embeddings in the reply are dropped, because only the daemon assigns names.

    The outputs must be the requested outputs, lie inside the span `reply`, and have the rows of the batch. Otherwise
    the function raises EngineUnusable for tensor requests, and returns it for frames. The check is needed because a
    hostile model may control the host, and the rest of the arena belongs to other clients.
    """
    works = batch.works
    if isinstance(reply, m.Answer):
        first = works[0]
        assert isinstance(first, TensorWork)  # all requests of a batch ask for the same outputs
        _require(reply.outputs, engine, engine.outputs if first.outputs is None else first.outputs)
        outputs = _outputs(reply.outputs, arena, batch.reply, [work.rows for work in works])
        return [_answered(w, batch, views, engine, reply.times) for w, views in zip(works, outputs, strict=True)]
    wanted = sum(work.rows for work in works)
    if len(reply.seen) != wanted:
        return [EngineUnusable(f"the engine host answered {len(reply.seen)} of {wanted} pictures") for _ in works]
    seen, read = iter(reply.seen), partial(_answer, batch=batch, engine=engine, arena=arena)
    return [
        _crops(tuple(read(each, work) for each in islice(seen, work.rows)), batch, engine)
        if isinstance(work, CropsWork)
        else read(next(seen), work)
        for work in works
    ]


def times_of(reply: Reply, most: int) -> list[list[m.Times]]:
    """Return the times in a reply, as one list for each run of the engine. A run has at most `most` pictures. The list
    of a run has one item for each picture without an error; empty lists are left out. A batch of tensor requests counts
    as one run, whose list has one item."""
    if isinstance(reply, m.Answer):
        return [[reply.times]]
    runs = (reply.seen[start : start + most] for start in range(0, len(reply.seen), most))
    return [times for run in runs if (times := [seen.times for seen in run if not seen.error])]


def reply_bytes(reply: Reply) -> int:
    """Return how many bytes the outputs of a reply need in the arena."""
    refs = reply.outputs if isinstance(reply, m.Answer) else [ref for seen in reply.seen for ref in seen.outputs]
    sizes = (len(ref.data) if ref.span is None else ref.span.size for ref in refs)
    return sum(-(-size // _ALIGNED) * _ALIGNED for size in sizes)


def _answered(
    work: Work, batch: Batch, outputs: tuple[OutputView, ...], engine: EngineRef, times: m.Times
) -> Answered | EdgedError:
    """Return the answer of a tensor request, or the error if its outputs could not be written to their destination."""
    assert isinstance(work, TensorWork)
    try:
        return Answered(engine, None, work.take(outputs), 0, 0, (batch.sent - work.received) * 1e3, times)
    except EdgedError as error:
        return error


def _answer(seen: m.Seen, work: Work, batch: Batch, engine: EngineRef, arena: Arena) -> Answered | EdgedError:
    if seen.error:
        return rebuild(seen.error, seen.message)
    if seen.detections is not None and (count := count_packed(seen.detections)) > MOST_DETECTIONS:
        return EngineUnusable(f"the host sent {count} detections of one picture; at most {MOST_DETECTIONS} are allowed")
    outputs: tuple[OutputTensor, ...] = ()
    if seen.outputs:  # raw outputs: the model has no family
        try:
            _require(seen.outputs, engine, engine.outputs)
            (views,) = _outputs(seen.outputs, arena, batch.reply, [1])
        except EngineUnusable as error:
            return error
        outputs = tuple(view.kept() for view in views)
    try:
        content = None if seen.content is None else unpack(seen.content)
    except ValueError as error:
        return EngineUnusable(f"the engine host sent an invalid answer to a picture: {error}")
    if isinstance(content, Embedding):
        content = Embedding(content.data)  # only the daemon gives names
    queue_ms = (batch.sent - work.received) * 1e3
    return Answered(engine, seen.detections, outputs, seen.width, seen.height, queue_ms, seen.times, content)


def _crops(found: tuple[Answered | EdgedError, ...], batch: Batch, engine: EngineRef) -> Answered | EdgedError:
    """Return one answer that holds the answers to all regions of a picture. If all regions failed, return the first
    error."""
    answered = [each for each in found if isinstance(each, Answered)]
    if not answered:
        return next(each for each in found if isinstance(each, EdgedError))
    whole = [each.times for each in answered]
    times = m.Times(
        sum(each.decode_ms for each in whole),
        sum(each.prepare_ms for each in whole),
        sum(each.infer_ms for each in whole[:: batch.most]),  # the pictures of a run share its time
        sum(each.postprocess_ms for each in whole),
    )
    first = answered[0]
    return Answered(engine, None, (), first.width, first.height, first.queue_ms, times, crops=found)


def _require(refs: Sequence[m.TensorRef], engine: EngineRef, wanted: Collection[str]) -> None:
    """Raise EngineUnusable unless `refs` are the wanted outputs, each once and with the engine's datatype."""
    names = {ref.name for ref in refs}
    if len(names) != len(refs) or (wanted and names != set(wanted)):
        raise EngineUnusable(f"the engine host returned outputs other than the {len(wanted)} requested outputs")
    known = engine.outputs
    if known and any(known.get(ref.name) != ref.datatype for ref in refs):
        raise EngineUnusable("an output from the host does not have the datatype that the model declares")


def _data(ref: m.TensorRef, arena: Arena, room: Span | None) -> memoryview:
    """Return the bytes of an output, without a copy. Raises EngineUnusable if they lie outside `room` or their size
    is wrong."""
    if (span := ref.span) is None:
        data = memoryview(ref.data)
    elif (
        room is None or span.size < 0 or span.offset < room.offset or span.offset + span.size > room.offset + room.size
    ):
        raise EngineUnusable(f"the host placed output {ref.name!r} outside the memory reserved for its request")
    else:
        data = arena.read(span)
    is_whole = min(ref.shape, default=0) >= 0
    if is_whole and ref.datatype != "BYTES":
        is_whole = ref.datatype in DATATYPES and byte_size(ref.datatype, ref.shape) == len(data)
    if not is_whole:
        raise EngineUnusable(
            f"the host sent {len(data)} bytes for output {ref.name!r} {ref.datatype}{list(ref.shape)}: wrong size"
        )
    return data


def _outputs(
    refs: Sequence[m.TensorRef], arena: Arena, room: Span | None, rows: list[int]
) -> list[tuple[OutputView, ...]]:
    """Return the outputs of each request, without a copy. In a batch, each request gets only its own rows."""
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
        what = f"output {ref.name!r} {ref.datatype}{list(ref.shape)}"
        raise EngineUnusable(f"{what} cannot be split among the requests of a batch with {sum(rows)} rows")
    size, offset = len(data) // max(1, ref.shape[0]), 0
    for count in rows:
        yield count, data[offset : offset + count * size]
        offset += count * size
