"""What a model's engines have done, counted exactly, in Triton's terms."""

from __future__ import annotations

import time


class Duration:
    """How often something happened, and the nanoseconds that it took in all."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = self.ns = 0

    def add(self, milliseconds: float) -> None:
        self.count += 1
        self.ns += max(0, round(milliseconds * 1e6))


class BatchDuration:
    """Executions of one batch size."""

    __slots__ = ("compute_infer", "compute_input", "compute_output")

    def __init__(self) -> None:
        self.compute_input, self.compute_infer, self.compute_output = Duration(), Duration(), Duration()


class Statistics:
    """Since the model was loaded.

    A request is a frame or a tensor request: `success` and `fail` count requests, `queue` and the three parts of
    computing those that succeeded. `inference_count` counts rows of batches, a frame being one, and `execution_count`
    how often an engine ran. `batches` is by the number of rows. `last_inference_ms` is since the epoch, 0 for never.
    """

    def __init__(self) -> None:
        self.inference_count = self.execution_count = 0
        self.last_inference_ms = 0
        self.success, self.fail, self.queue = Duration(), Duration(), Duration()
        self.compute_input, self.compute_infer, self.compute_output = Duration(), Duration(), Duration()
        self.batches: dict[int, BatchDuration] = {}

    def executed(self, rows: int, input_ms: float, infer_ms: float, output_ms: float) -> None:
        """An engine ran once, for so many rows."""
        self.execution_count += 1
        self.last_inference_ms = time.time_ns() // 1_000_000
        batch = self.batches.setdefault(rows, BatchDuration())
        batch.compute_input.add(input_ms)
        batch.compute_infer.add(infer_ms)
        batch.compute_output.add(output_ms)

    def succeeded(
        self, rows: int, total_ms: float, queue_ms: float, input_ms: float, infer_ms: float, output_ms: float
    ) -> None:
        """A request of so many rows was answered."""
        self.inference_count += rows
        self.success.add(total_ms)
        self.queue.add(queue_ms)
        self.compute_input.add(input_ms)
        self.compute_infer.add(infer_ms)
        self.compute_output.add(output_ms)

    def failed(self, total_ms: float) -> None:
        """A request was answered by an error."""
        self.fail.add(total_ms)
