"""The row of pipelines: two models in the daemon, against a client that calls the same two models."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import cv2

import edged
from edged.client.result import Detection, Result
from edged.shapes import MODEL_PATH, Scene
from tests.bench.loads import processor_seconds
from tests.bench.nets import NETS, save
from tests.bench.table import Figures, Line, compare, in_rounds, steady
from tests.integration.daemon import Daemon

if TYPE_CHECKING:
    from tests.bench.rows import Bench

_SETTLES = 300.0
_GOAL = 1.5
_CAMERAS = 4
_SHAPES = 8  # and as many crops
_PIPELINE = '[pipelines.both]\ndetect = "shapes"\nthen = "{then}"\n'
_NET = next(net for net in NETS if net.name == "mobilenetv3-small")
_SETTINGS = 'family = "classification"\n'

Send = Callable[[edged.Client, str, bytes], int]  # answers a frame; returns its number of crops


def pipelines(bench: Bench) -> Iterator[Line]:
    """Frames per second of four cameras with JPEGs of 1920x1080 that show eight shapes, detected and classified: in a
    pipeline / by a client that calls the detector, and then the classifier with the region of each box.

    The client sends the picture again for each crop, one after the other, or all at the same time; the better counts.
    """
    pictures = [cv2.imencode(".jpg", Scene(7, 1920, 1080, _SHAPES).frame(index)[0])[1].tobytes() for index in range(8)]
    config = _PIPELINE.format(then=_NET.name)
    daemon = Daemon("--model", f"shapes={MODEL_PATH}", config=config)
    save(_NET, daemon.models / f"{_NET.name}.onnx")
    (daemon.models / f"{_NET.name}.toml").write_text(_SETTINGS)
    with daemon, contextlib.ExitStack() as stack:
        for model in ("shapes", _NET.name):
            daemon.settled(model, _SETTLES)
        clients = [stack.enter_context(daemon.client()) for _ in range(_CAMERAS)]
        _require_equal(clients[0], pictures)
        pool = stack.enter_context(ThreadPoolExecutor(_CAMERAS * _SHAPES))
        ways: dict[str, Callable[[], Figures]] = {
            name: steady(partial(_rate, daemon, clients, pictures, send), bench.seconds)
            for name, send in {
                "pipeline": _pipeline,
                "client, one by one": _two_calls,
                "client, at once": partial(_calls_at_once, pool),
            }.items()
        }
        measured = in_rounds(ways, bench.rounds, warm_up=False)
        by_hand = [name for name in ways if name != "pipeline"]
        row = f"pipeline, {_CAMERAS} cameras, {_SHAPES} crops"
        yield compare(row, measured, "pipeline", by_hand, "frames/s", _GOAL)
        yield compare(row, measured, "pipeline", by_hand, "CPU ms", 1 / _GOAL, False)


def _pipeline(client: edged.Client, camera: str, picture: bytes) -> int:
    return len(client.infer("both", picture, camera=camera).detections)


def _two_calls(client: edged.Client, camera: str, picture: bytes) -> int:
    result = client.infer("shapes", picture, camera=camera)
    for found in result.detections[:_SHAPES]:
        client.infer(_NET.name, picture, region=_region(found, result))
    return len(result.detections)


def _calls_at_once(pool: ThreadPoolExecutor, client: edged.Client, camera: str, picture: bytes) -> int:
    result = client.infer("shapes", picture, camera=camera)
    regions = [_region(found, result) for found in result.detections[:_SHAPES]]
    list(pool.map(lambda region: client.infer(_NET.name, picture, region=region), regions))
    return len(result.detections)


def _rate(
    daemon: Daemon, clients: Sequence[edged.Client], pictures: Sequence[bytes], send: Send, seconds: float
) -> Figures:
    """Return the frames per second of all cameras, each with one frame in flight, and the processor time of daemon,
    hosts and client for a frame."""
    pids = [daemon.pid, *daemon.hosts(), os.getpid()]
    counts, used, until = [0] * len(clients), processor_seconds(pids), time.perf_counter() + seconds
    problems: list[Exception] = []

    def camera(number: int) -> None:
        try:
            for picture in itertools.cycle(pictures):
                if time.perf_counter() > until:
                    return
                send(clients[number], f"c{number}", picture)
                counts[number] += 1
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=camera, args=(number,)) for number in range(len(clients))]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    elapsed, used = time.perf_counter() - began, processor_seconds(pids) - used
    return {"frames/s": sum(counts) / elapsed, "CPU ms": used / sum(counts) * 1e3}


def _require_equal(client: edged.Client, pictures: Sequence[bytes]) -> None:
    """Raise AssertionError unless the pipeline answers as the two calls do."""
    for picture in pictures:
        result = client.infer("both", picture)
        assert result.second is not None
        assert result.second.crops == min(len(result.detections), _SHAPES)
        for found in result.detections[:_SHAPES]:
            alone = client.infer(_NET.name, picture, region=_region(found, result))
            assert found.nested is not None
            # Engines that run a batch sum in another order than for one picture.
            for one, other in zip(found.nested.classes, alone.classes, strict=True):
                assert math.isclose(one.score, other.score, rel_tol=1e-3, abs_tol=1e-5)


def _region(found: Detection, result: Result) -> tuple[int, int, int, int]:
    x1, y1 = math.floor(max(0.0, found.x1)), math.floor(max(0.0, found.y1))
    x2, y2 = math.ceil(min(result.width, found.x2)), math.ceil(min(result.height, found.y2))
    return x1, y1, x2 - x1, y2 - y1
