"""32 cameras at 30 frames a second against an engine that is ten times too slow: fairness and ages. Ages are in
service rounds, the time in which the engine answers every camera once.

python tests/bench/overload.py [SECONDS]
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import edged
import edged.library
from edged.proto import cameras_pb2 as pb
from tests.integration.daemon import Daemon
from tests.measuring import argument
from tests.overload import Camera, jain, offer, resident_kb, slow_model

CAMERAS, FPS, TOO_SLOW = 32, 30, 10
_WEIGHTS = (1.0, 2.0, 4.0, 1.0)


def calibrated(folder: Path) -> Path:
    """The model whose engine takes as long as ten such would have to share; what else runs here counts for little."""
    wanted, rounds = TOO_SLOW / (CAMERAS * FPS), 20
    picture = np.zeros((8, 8, 3), np.uint8)
    for _ in range(3):
        path = slow_model(folder / "slow.onnx", rounds)
        with edged.load(path, build=False) as model:
            took = min(_seconds(model, picture) for _ in range(50))
        rounds = max(1, round(rounds * wanted / took))
    return slow_model(folder / "slow.onnx", rounds)


def _seconds(model: edged.library.LoadedModel, picture: np.ndarray) -> float:
    began = time.perf_counter()
    model.infer(picture)
    return time.perf_counter() - began


def run(daemon: Daemon, weights: list[float], seconds: float) -> list[Camera]:
    options = {f"camera {index}": pb.StreamOptions(weight=weight) for index, weight in enumerate(weights)}
    return list(asyncio.run(offer(daemon.unix, "slow", options, FPS, seconds)).values())


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = calibrated(Path(folder))
        with Daemon("--model", f"slow={path}") as daemon:
            daemon.settled("slow", 300)
            run(daemon, [1.0] * CAMERAS, seconds / 4)
            before = resident_kb(daemon.pid)
            equal = run(daemon, [1.0] * CAMERAS, seconds)
            after = resident_kb(daemon.pid)
            weights = [_WEIGHTS[index % len(_WEIGHTS)] for index in range(CAMERAS)]
            weighted = run(daemon, weights, seconds)
    answered = sum(camera.answered for camera in equal)
    offered = sum(camera.sent for camera in equal)
    round_ms = seconds * 1e3 * CAMERAS / answered
    ages = sorted(age / round_ms for camera in equal for age in camera.ages_ms)
    late = sum(camera.late for camera in equal)
    share = sum(camera.answered for camera in weighted) / sum(weights)
    errors = [abs(camera.answered / (share * weight) - 1) for camera, weight in zip(weighted, weights, strict=True)]
    print(f"offered {offered / answered:.1f} times what the engine answers ({answered / seconds:.0f} frames/s)")
    print(f"accounted for {sum(camera.accounted for camera in equal)} of {offered} frames, {late} out of turn")
    print(
        f"age in rounds: half {statistics.median(ages):.2f}, 99% {ages[int(0.99 * len(ages))]:.2f}, all {ages[-1]:.2f}"
    )
    print(f"Jain's fairness of equal cameras: {jain([camera.answered for camera in equal]):.4f}")
    print(f"weights 1, 2 and 4 are kept within {max(errors):.1%}, on average {statistics.mean(errors):.1%}")
    print(f"memory of the daemon after / before: {after / before:.3f}")


if __name__ == "__main__":
    main(argument(30.0))
