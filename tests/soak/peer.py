"""A program with a camera, to be killed: `python -m tests.soak.peer TARGET MODEL`. Prints a line once it streams."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator

import numpy as np

from edged.client import Client


def main() -> None:
    target, model = sys.argv[1:]
    with Client(target) as client:
        for number, _ in enumerate(client.stream(model, _frames(), camera="killed", shared=True)):
            if number == 0:
                print("under way", flush=True)


def _frames() -> Iterator[np.ndarray]:
    for _ in itertools.count():
        time.sleep(0.02)
        yield np.zeros((320, 320, 3), np.uint8)


if __name__ == "__main__":
    main()
