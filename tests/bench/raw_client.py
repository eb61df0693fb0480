"""Cameras that send raw frames to a daemon. A separate program, so that another checkout's client can be measured.

python raw_client.py TARGET MODEL WIDTH HEIGHT. Each line of standard input is a JSON object with `cameras`, `seconds`,
and arguments of `Client.stream`. Each line of output has the number of `frames`, the `seconds` that they took and the
processor seconds of the `client`, or an `error`.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import edged
from edged.shapes import Scene


def measure(
    client: edged.Client, model: str, pictures: list[np.ndarray], cameras: int, seconds: float, **options: Any
) -> dict[str, float]:
    """Send frames for `seconds`; each camera waits for its answers. RuntimeError if a frame fails."""
    answered: list[int] = []
    problems: list[str] = []
    until = time.perf_counter() + seconds

    def camera(number: int) -> None:
        def frames() -> Iterator[np.ndarray]:
            for picture in itertools.cycle(pictures):
                if time.perf_counter() > until:
                    return
                yield picture

        try:
            count = 0
            for result in client.stream(model, frames(), camera=f"c{number}", **options):
                if result.error is not None or result.skipped:
                    raise RuntimeError(f"error {result.error}, {result.skipped} frames skipped")
                count += 1
            answered.append(count)
        except Exception as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=camera, args=(number,)) for number in range(cameras)]
    began, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise RuntimeError(problems[0])
    elapsed, used = time.perf_counter() - began, time.process_time() - used
    return {"frames": sum(answered), "seconds": elapsed, "client": used}


def main() -> None:
    target, model, width, height = sys.argv[1:]
    scene = Scene(1, int(width), int(height))
    pictures = [np.ascontiguousarray(scene.frame(number)[0]) for number in range(8)]
    with edged.Client(target) as client:
        print("ready", flush=True)
        for line in sys.stdin:
            try:
                found: dict[str, Any] = dict(measure(client, model, pictures, **json.loads(line)))
            except Exception as error:
                found = {"error": repr(error)}
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
