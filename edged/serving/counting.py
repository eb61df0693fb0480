"""What one execution of an engine adds to its model's figures."""

from __future__ import annotations

from collections.abc import Sequence

from edged.errors import EdgedError, NotFinite
from edged.ipc import messages as m
from edged.ipc.finite import Finiteness
from edged.serving.link import Reply
from edged.serving.parcel import Parcel, times_of
from edged.serving.statistics import Statistics
from edged.serving.work import Answered


def count(
    statistics: Statistics,
    parcels: Sequence[Parcel],
    results: Sequence[Answered | EdgedError],
    reply: Reply,
    now: float,
) -> None:
    """One execution, and the requests that it answered; `now` of time.monotonic()."""
    took = times_of(reply)
    if not took:
        return
    input_ms = sum(times.decode_ms + times.prepare_ms for times in took)
    rows = sum(parcel.work.rows for parcel in parcels)
    statistics.executed(rows, input_ms, took[0].infer_ms, sum(times.postprocess_ms for times in took))
    good = [(p, r.times) for p, r in zip(parcels, results, strict=True) if isinstance(r, Answered)]
    for parcel, times in good:
        if parcel.work.is_wanted:
            statistics.succeeded(
                parcel.work.rows,
                (now - parcel.work.received) * 1e3,
                parcel.queue_ms,
                times.decode_ms + times.prepare_ms,
                times.infer_ms,
                times.postprocess_ms,
            )


def count_finite(finite: Finiteness, reply: Reply | BaseException, parts: int, now: float) -> None:
    """Its answers, and which outputs of them were not finite; of tensor requests that went together nobody knows whose
    it was, so it counts for each."""
    if isinstance(reply, m.Detected):
        for seen in reply.seen:
            if not seen.error or seen.not_finite:
                finite.answered(seen.not_finite, now)
    elif isinstance(reply, m.Answer):
        for _ in range(parts):
            finite.answered(reply.not_finite, now)
    elif isinstance(reply, NotFinite):
        finite.answered(reply.outputs, now)
