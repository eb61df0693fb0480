"""The cost of a raw picture as bytes through gRPC and through shared memory. Prints ratios measured in one run.

python tests/bench/shared_memory.py [SECONDS]
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

import edged
from edged.shapes import MODEL_PATH, Scene
from tests.integration.daemon import Daemon
from tests.measuring import argument

_PICTURES = [cv2.resize(Scene(1).frame(index)[0], (1280, 720)) for index in range(10)]
_ROUNDS = 3  # taken turns, so that the load of the moment meets both


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def streamed(client: edged.Client, pid: int, shared: bool, seconds: float) -> tuple[float, float, float]:
    """Results a second, one after the other, and milliseconds of processor each: the daemon's, and this client's."""
    stop = time.perf_counter() + seconds

    def frames() -> Iterator[np.ndarray]:
        for picture in itertools.cycle(_PICTURES):
            if time.perf_counter() > stop:
                return
            yield picture

    before, own = processor_seconds(pid), time.process_time()
    started, count = time.perf_counter(), 0
    for result in client.stream("shapes", frames(), lossless=True, shared=shared):
        assert result.error is None, result.error
        count += 1
    elapsed = time.perf_counter() - started
    used = (processor_seconds(pid) - before, time.process_time() - own)
    return count / elapsed, used[0] / count * 1e3, used[1] / count * 1e3


def main(seconds: float) -> None:
    with Daemon("--model", f"shapes={MODEL_PATH}") as daemon, daemon.client() as client:
        daemon.settled("shapes", 300)
        figures: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
        for _ in range(_ROUNDS):
            for shared in figures:
                figures[shared].append(streamed(client, daemon.pid, shared, seconds))
        by_bytes, by_memory = (np.median(figures[shared], axis=0) for shared in (False, True))
        for name, (rate, daemon_ms, client_ms) in (("bytes", by_bytes), ("shared memory", by_memory)):
            print(
                f"1280x720 raw, {name:14} {rate:6.0f}/s, daemon {daemon_ms:5.2f} ms, client {client_ms:5.2f} ms a frame"
            )
        print(
            f"shared memory: {by_memory[0] / by_bytes[0]:.2f} times the rate, of the processor"
            f" {by_memory[1] / by_bytes[1]:.2f} in the daemon, {by_memory[2] / by_bytes[2]:.2f} in the client"
        )


if __name__ == "__main__":
    main(argument(3.0))
