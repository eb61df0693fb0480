"""The rows of pipelines: two models in the daemon, against a client that calls the same two models."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt

import edged
from edged.client.result import Detection, Result
from edged.shapes import MODEL_PATH, Scene
from edged.vision.content import Classes, Content, Text
from tests.bench.loads import processor_seconds, seconds_with_children
from tests.bench.nets import NETS, save
from tests.bench.table import Figures, Line, Skipped, compare, in_rounds, steady
from tests.integration.daemon import Daemon
from tests.integration.trained import package_file

if TYPE_CHECKING:
    from tests.bench.rows import Bench

_SETTLES = 300.0
_GOAL = 1.5
_CAMERAS = 4
_CROPS = 8
_PIPELINE = '[pipelines.both]\ndetect = "first"\nthen = "second"\n'
_NET = next(net for net in NETS if net.name == "mobilenetv3-small")
_PACKAGE, _READS = "rapidocr_onnxruntime", ("models/ch_PP-OCRv4_det_infer.onnx", "models/ch_PP-OCRv4_rec_infer.onnx")
_WORDS = ("Platform 9", "Total: 42.50", "HELLO", "KA 17 XY 301", "2026-11-26", "way out", "no parking", "Gate B 24")

Send = Callable[[edged.Client, str, bytes], int]  # answers a frame; returns its number of crops


def pipelines(bench: Bench) -> Iterator[Line]:
    """Frames per second of four cameras with JPEGs of 1920x1080 that show eight shapes, detected and classified: in a
    pipeline / by a client that calls the detector, and then the classifier with the region of each box.

    The client sends the picture again for each crop, one after the other, or all at the same time; the better counts.
    """
    pictures = [_jpeg(Scene(7, 1920, 1080, _CROPS).frame(index)[0]) for index in range(8)]
    daemon = Daemon("--model", f"first={MODEL_PATH}", config=_PIPELINE)
    save(_NET, daemon.models / "second.onnx")
    (daemon.models / "second.toml").write_text('family = "classification"\n')
    yield from _compare(bench, "classify", daemon, pictures)


def reading(bench: Bench) -> Iterator[Line | Skipped]:
    """The same with JPEGs of 1920x1080 that show eight lines of text, found and read by the PP-OCRv4 models of the
    package rapidocr-onnxruntime, which has to be installed."""
    find, read = (package_file(_PACKAGE, name) for name in _READS)
    if find is None or read is None:
        yield Skipped("pipelines-ocr", "pip install rapidocr-onnxruntime, which has the models")
        return
    daemon = Daemon("--model", f"second={read}", config=_PIPELINE)
    shutil.copy(find, daemon.models / "first.onnx")
    (daemon.models / "first.toml").write_text("[preprocess]\nwidth = 640\nheight = 384\n")
    yield from _compare(bench, "read", daemon, [_jpeg(_lines_of_text(number)) for number in range(8)])


def _compare(bench: Bench, what: str, daemon: Daemon, pictures: Sequence[bytes]) -> Iterator[Line]:
    with daemon, contextlib.ExitStack() as stack:
        for model in ("first", "second"):
            daemon.settled(model, _SETTLES)
        clients = [stack.enter_context(daemon.client()) for _ in range(_CAMERAS)]
        _require_equal(clients[0], pictures)
        pool = stack.enter_context(ThreadPoolExecutor(_CAMERAS * _CROPS))
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
        row = f"detect and {what}, {_CAMERAS} cameras, {_CROPS} crops"
        yield compare(row, measured, "pipeline", by_hand, "frames/s", _GOAL)
        yield compare(row, measured, "pipeline", by_hand, "CPU ms", 1 / _GOAL, False)


def _jpeg(picture: npt.NDArray[np.uint8]) -> bytes:
    return cv2.imencode(".jpg", picture)[1].tobytes()


def _lines_of_text(seed: int) -> npt.NDArray[np.uint8]:
    """Draw eight lines of dark text on gray, in two columns."""
    picture, random = np.full((1080, 1920, 3), 225, np.uint8), np.random.default_rng(seed)
    for number, text in enumerate(random.permutation(_WORDS)):
        x, y = 90 + 960 * (number % 2) + int(random.integers(60)), 180 + 240 * (number // 2)
        cv2.putText(picture, str(text), (x, y), cv2.FONT_HERSHEY_DUPLEX, 3, (70, 40, 30), 4, cv2.LINE_AA)
    return picture


def _pipeline(client: edged.Client, camera: str, picture: bytes) -> int:
    return len(client.infer("both", picture, camera=camera).detections)


def _two_calls(client: edged.Client, camera: str, picture: bytes) -> int:
    result = client.infer("first", picture, camera=camera)
    for found in result.detections[:_CROPS]:
        client.infer("second", picture, region=_region(found, result))
    return len(result.detections)


def _calls_at_once(pool: ThreadPoolExecutor, client: edged.Client, camera: str, picture: bytes) -> int:
    result = client.infer("first", picture, camera=camera)
    regions = [_region(found, result) for found in result.detections[:_CROPS]]
    list(pool.map(lambda region: client.infer("second", picture, region=region), regions))
    return len(result.detections)


def _rate(
    daemon: Daemon, clients: Sequence[edged.Client], pictures: Sequence[bytes], send: Send, seconds: float
) -> Figures:
    """Return the frames per second of all cameras, each with one frame in flight, and the processor time of daemon,
    hosts and client for a frame."""
    counts, used, until = [0] * len(clients), _processor_seconds(daemon), time.perf_counter() + seconds
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
    elapsed, used = time.perf_counter() - began, _processor_seconds(daemon) - used
    return {"frames/s": sum(counts) / elapsed, "CPU ms": used / sum(counts) * 1e3}


def _processor_seconds(daemon: Daemon) -> float:
    return seconds_with_children(daemon) + processor_seconds([os.getpid()])


def _require_equal(client: edged.Client, pictures: Sequence[bytes]) -> None:
    """Raise AssertionError unless the pipeline answers as the two calls do."""
    for picture in pictures:
        result = client.infer("both", picture)
        assert result.second is not None
        assert result.second.crops == min(len(result.detections), _CROPS) > 0
        best = sorted(result.detections, key=lambda found: -found.score)[:_CROPS]
        for found in best:
            alone = client.infer("second", picture, region=_region(found, result))
            assert found.nested is not None
            _require_equal_content(found.nested.content, alone.content)


def _require_equal_content(one: Content | None, other: Content | None) -> None:
    """Raise AssertionError unless the texts, or the classes and scores, are equal up to rounding: engines that run a
    batch sum in another order than for one picture."""
    if isinstance(one, Text):
        assert isinstance(other, Text)
        assert one.text == other.text
        assert math.isclose(one.score, other.score, rel_tol=1e-2), (one, other)
        return
    assert isinstance(one, Classes)
    assert isinstance(other, Classes)
    for mine, theirs in zip(one.classes, other.classes, strict=True):
        assert math.isclose(mine.score, theirs.score, rel_tol=1e-3, abs_tol=1e-5), (mine, theirs)


def _region(found: Detection, result: Result) -> tuple[int, int, int, int]:
    x1, y1 = math.floor(max(0.0, found.x1)), math.floor(max(0.0, found.y1))
    x2, y2 = math.ceil(min(result.width, found.x2)), math.ceil(min(result.height, found.y2))
    return x1, y1, x2 - x1, y2 - y1
