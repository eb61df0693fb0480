"""Counts and durations of a model's inferences, in the terms of Triton's statistics extension."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from edged.ipc.messages import Times

# Upper bounds in seconds: from the fastest engine on a GPU to a camera that is far behind.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    """Counts values by range. `bounds` are the inclusive upper bounds of all ranges except the last, which has none."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """Return for each range its upper bound (infinity for the last) and the number of values up to that bound."""
        found, count = [], 0
        for bound, here in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += here
            found.append((bound, count))
        return found


class Duration:
    """How often something happened, and the nanoseconds that it took in total."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = self.ns = 0

    def add(self, milliseconds: float) -> None:
        self.count += 1
        if milliseconds > 0:
            self.ns += round(milliseconds * 1e6)


class BatchDuration:
    """Durations of the executions with one batch size."""

    __slots__ = ("compute_infer", "compute_input", "compute_output")

    def __init__(self) -> None:
        self.compute_input, self.compute_infer, self.compute_output = Duration(), Duration(), Duration()


class ResponseDuration:
    """Durations of the responses at one position, such as the second response to each request. `empty` counts
    responses without outputs."""

    __slots__ = ("compute_infer", "compute_output", "empty", "success")

    def __init__(self) -> None:
        self.compute_infer, self.compute_output = Duration(), Duration()
        self.success, self.empty = Duration(), Duration()


_RESPONSES = 1000  # positions that are counted separately


class Statistics:
    """Statistics of a model since it was loaded. A request is a frame or a tensor request.

    `success` and `fail` count requests. `queue` and `compute_*` cover the successful requests. `inference_count` counts
    the rows of successful requests (a frame is one row), `execution_count` the runs of an engine. `batches` maps a
    number of rows to the durations of executions with this number. `last_inference_ms` is the time of the last
    execution in milliseconds since the epoch, 0 for never. `responses` is for models with several responses to a
    request, by position. Its last entry also counts all later positions. `failures` counts failures by error class.
    `infer_seconds` covers every execution, `request_seconds` each successful request from its arrival.
    """

    def __init__(self) -> None:
        self.inference_count = self.execution_count = 0
        self.last_inference_ms = 0
        self.success, self.fail, self.queue = Duration(), Duration(), Duration()
        self.compute_input, self.compute_infer, self.compute_output = Duration(), Duration(), Duration()
        self.batches: dict[int, BatchDuration] = {}
        self.responses: dict[int, ResponseDuration] = {}
        self.failures: Counter[str] = Counter()
        self.infer_seconds, self.request_seconds = Histogram(), Histogram()

    def executed(self, rows: int, parts: Sequence[Times]) -> None:
        """Count one execution of an engine. `parts` has the times of each frame, or one item for all tensor
        requests."""
        self.execution_count += 1
        self.last_inference_ms = time.time_ns() // 1_000_000
        if (batch := self.batches.get(rows)) is None:
            batch = self.batches[rows] = BatchDuration()
        batch.compute_input.add(sum(times.decode_ms + times.prepare_ms for times in parts))
        batch.compute_infer.add(parts[0].infer_ms)
        batch.compute_output.add(sum(times.postprocess_ms for times in parts))
        self.infer_seconds.add(parts[0].infer_ms / 1e3)

    def succeeded(self, rows: int, total_ms: float, queue_ms: float, times: Times) -> None:
        """Count a request that succeeded; it had `rows` rows."""
        self.inference_count += rows
        self.success.add(total_ms)
        self.request_seconds.add(total_ms / 1e3)
        self.queue.add(queue_ms)
        self.compute_input.add(times.decode_ms + times.prepare_ms)
        self.compute_infer.add(times.infer_ms)
        self.compute_output.add(times.postprocess_ms)

    def responded(self, rows: int, infer_ms: float, output_ms: float, *, empty_final: bool) -> None:
        """Count a request that was answered with one response per row, and an empty last response if `empty_final`.

        One run of the engine computes all rows, so its time is counted for the first response.
        """
        for place in range(rows):
            response = self._response(place)
            response.compute_infer.add(0.0 if place else infer_ms)
            response.compute_output.add(0.0 if place else output_ms)
            response.success.add(0.0 if place else infer_ms + output_ms)
        if empty_final:
            self._response(rows).empty.add(0.0 if rows else infer_ms)

    def _response(self, place: int) -> ResponseDuration:
        place = min(place, _RESPONSES - 1)
        response = self.responses.get(place)
        if response is None:
            response = self.responses[place] = ResponseDuration()
        return response

    def failed(self, total_ms: float, error: str = "EdgedError") -> None:
        """Count a request that was answered with an error. `error` is the name of the error's class."""
        self.fail.add(total_ms)
        self.failures[error] += 1
