"""The speed of an engine through the daemon, relative to the same engine in process. Prints ratios measured in one run.

python tests/bench/serving.py [SECONDS]
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import cv2
import numpy as np

import edged
from edged.shapes import MODEL_PATH, Scene
from tests.integration.daemon import Daemon
from tests.measuring import argument

_SCENE = Scene(1)
_RAW = [_SCENE.frame(i)[0] for i in range(20)]
_JPEG = [cv2.imencode(".jpg", picture)[1].tobytes() for picture in _RAW]


def per_second(work: Callable[[], None], seconds: float) -> float:
    """Calls a function again and again."""
    for _ in range(5):
        work()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        work()
        count += 1
    return count / (time.perf_counter() - started)


def streamed(client: edged.Client, pictures: list[bytes] | list[np.ndarray], cameras: int, seconds: float) -> float:
    """Results a second of several cameras that send as fast as they are taken."""
    counts, stop = [0] * cameras, threading.Event()

    def frames() -> Iterator[object]:
        for picture in itertools.cycle(pictures):
            if stop.is_set():
                return
            yield picture
            time.sleep(0.002)

    def run(index: int) -> None:
        for _ in client.stream("shapes", frames(), camera=str(index)):
            counts[index] += 1

    threads = [threading.Thread(target=run, args=(i,)) for i in range(cameras)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def main(seconds: float) -> None:
    with Daemon("--model", f"shapes={MODEL_PATH}") as daemon, daemon.client() as client:
        serving = next(e for e in daemon.settled("shapes") if e.state == "serving")
        with edged.load(MODEL_PATH, cache=daemon.cache) as model:
            pictures = itertools.cycle(_RAW)
            bare = per_second(lambda: model.infer(next(pictures)), seconds)
            encoded = itertools.cycle(_JPEG)
            bare_jpeg = per_second(lambda: model.infer(next(encoded)), seconds)
        print(
            f"engine {serving.backend}, {serving.latency_ms:.2f} ms;"
            f" in-process raw {bare:.0f}/s, JPEG {bare_jpeg:.0f}/s"
        )
        one = itertools.cycle(_RAW)
        rows = {
            "DetectOne, raw": (per_second(lambda: client.infer("shapes", next(one)), seconds), bare),
            "DetectOne, JPEG": (per_second(lambda: client.infer("shapes", next(encoded)), seconds), bare_jpeg),
            "1 camera, JPEG": (streamed(client, _JPEG, 1, seconds), bare_jpeg),
            "4 cameras, JPEG": (streamed(client, _JPEG, 4, seconds), bare_jpeg),
            "4 cameras, raw": (streamed(client, _RAW, 4, seconds), bare),
        }
        for name, (rate, reference) in rows.items():
            print(f"{name:18} {rate:7.0f}/s  {rate / reference:5.2f} of in-process")


if __name__ == "__main__":
    main(argument(4.0))
