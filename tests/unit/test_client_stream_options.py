"""Options of streams, fields of results, counts over skipped frames, and reconnecting."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edged.api.grpc.results import fill_content
from edged.backoff import Backoff
from edged.client import Captured, Client, Result
from edged.client.frames import stream_options
from edged.client.result import Classification, Skips, from_proto
from edged.errors import DaemonUnavailable, InvalidInput, NotFound
from edged.proto import cameras_pb2 as pb
from edged.vision import masks
from edged.vision.content import ClassMap
from tests.unit.scripted_daemon import ScriptedDaemon, answer

pytestmark = pytest.mark.timeout(60)
JPEG = b"\xff\xd8 a picture"
ALL: dict[str, Any] = {
    "every_frame": True,
    "max_fps": 5,
    "max_staleness": 0.25,
    "weight": 2,
    "priority": -3,
    "track": True,
    "region": (1, 2, 3, 4),
    "rotation": 90,
    "class_agnostic": False,
}


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/edged.sock"


def echo(frames: Iterator[pb.Frame], _: grpc.ServicerContext) -> Iterator[pb.Result]:
    for frame in frames:
        yield answer(frame)


# --- options --------------------------------------------------------------------------------------------------------


def test_stream_sends_options_with_the_first_frame_and_thresholds_with_all(target: str) -> None:
    with ScriptedDaemon(target, echo) as daemon, Client(target) as client:
        assert len(list(client.stream("shapes", [JPEG] * 2, **ALL))) == 2
    first, second = daemon.frames
    assert first.options == pb.StreamOptions(
        mode=pb.StreamOptions.EVERY_FRAME, max_fps=5, max_staleness_ms=250, weight=2, priority=-3, track=True
    )
    assert not second.HasField("options")
    for frame in (first, second):
        assert (frame.region, frame.rotation) == (pb.Region(x=1, y=2, width=3, height=4), 90)
        assert frame.thresholds == pb.Thresholds(class_agnostic=False)


def test_stream_without_options_sends_none(target: str) -> None:
    with ScriptedDaemon(target, echo) as daemon, Client(target) as client:
        list(client.stream("shapes", [JPEG]))
        (frame,) = daemon.frames
    assert not any(frame.HasField(name) for name in ("options", "region", "thresholds"))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("max_fps", -1), ("max_fps", float("nan")), ("max_staleness", -0.1), ("weight", 0), ("weight", float("inf"))),
        *(("priority", 101), ("rotation", 45), ("region", (0, 0, -1, 5)), ("region", (1, 2, 3)), ("iou", -0.1)),
        *(("score", 1.5), ("score", float("nan")), ("max_detections", 0), ("max_detections", 2**32)),
    ],
)
def test_stream_option_out_of_range_raises(name: str, wrong: Any) -> None:
    with Client("unix:/nowhere") as client, pytest.raises(InvalidInput, match=name):
        client.stream("shapes", [], **{name: wrong})


def test_stream_options_small_staleness_is_not_rounded_to_zero() -> None:
    assert stream_options(max_staleness=0.0001) == pb.StreamOptions(max_staleness_ms=1)


def test_stream_every_frame_bounds_frames_in_flight(target: str) -> None:
    """Without a bound, frames in the ring of shared memory would be overwritten."""
    sent = 0
    ahead: list[int] = []

    def pictures() -> Iterator[bytes]:
        nonlocal sent
        for number in range(1, 41):
            sent = number
            yield JPEG

    def slow(frames: Iterator[pb.Frame], _: grpc.ServicerContext) -> Iterator[pb.Result]:
        for frame in frames:
            time.sleep(0.005)
            ahead.append(sent - frame.sequence)
            yield answer(frame)

    with ScriptedDaemon(target, slow), Client(target) as client:
        assert len(list(client.stream("shapes", pictures(), every_frame=True))) == 40
    assert 2 <= max(ahead) <= 8  # some wait at the daemon, and one waits in the client


# --- results --------------------------------------------------------------------------------------------------------


def full_result() -> Result:
    inside = np.zeros((48, 64), np.bool_)
    inside[10:20, 5:15] = True
    inside[12:14, 8:10] = False
    runs = masks.encode(inside, 0, 0, 64, 48)
    message = pb.Result(width=64, height=48, received_unix_ns=2_000_000_000, captured_unix_ns=1_000_000_000)
    message.detections.add(x1=5, y1=10, x2=15, y2=20, score=0.5, class_id=1, label="cup", tracker_id=7, mask=runs)
    message.detections[0].keypoints.extend([1, 2, 0.5, 3, 4, 1.0])
    message.detections[0].corners.extend([5, 10, 15, 10, 15, 20, 5, 20])
    message.detections.add(x1=0, y1=0, x2=2, y2=2, score=0.25, class_id=0, label="pan")
    message.content.classes.add(class_id=3, label="kitchen", score=0.75)
    message.skips.add(first=4, last=9, count=6, reason="stale")
    return from_proto(message)


def test_result_full_message_is_read_whole() -> None:
    result = full_result()
    first, second = result.detections
    assert (first.tracker_id, second.tracker_id) == (7, None)
    assert first.keypoints == ((1, 2, 0.5), (3, 4, 1))
    assert first.corners == ((5, 10), (15, 10), (15, 20), (5, 20))
    assert (second.keypoints, second.corners, second.mask) == ((), (), ())
    assert result.classes == (Classification(3, "kitchen", 0.75),)
    assert result.skips == (Skips(4, 9, 6, "stale"),)
    assert result.captured is not None
    assert result.received is not None
    assert (result.received - result.captured).total_seconds() == 1
    assert from_proto(pb.Result()).received is None


def test_result_mask_and_polygon_from_runs() -> None:
    result = full_result()
    pixels, outline = result.mask(result.detections[0]), result.polygon(result.detections[0])
    assert pixels is not None
    assert outline is not None
    assert (pixels.shape, pixels.dtype, pixels.sum()) == ((48, 64), np.bool_, 96)
    assert pixels[10, 5]
    assert not pixels[12, 8]
    assert (outline.min(axis=0).tolist(), outline.max(axis=0).tolist()) == ([5, 10], [14, 19])
    assert result.mask(result.detections[1]) is None
    assert result.polygon(result.detections[1]) is None


def test_result_boxes_partial_detections_are_padded() -> None:
    boxes = full_result().boxes()
    assert boxes.tracker_ids is not None
    assert boxes.masks is not None
    assert boxes.keypoints is not None
    assert boxes.corners is not None
    assert boxes.tracker_ids.tolist() == [7, -1]
    assert [mask[1::2].sum() for mask in boxes.masks] == [96, 0]
    assert boxes.keypoints[1].tolist() == [[0, 0, 0]] * 2
    assert boxes.corners[1].tolist() == [[0, 0], [2, 0], [2, 2], [0, 2]]


def test_result_json_tracker_id_only_for_tracked() -> None:
    first, second = full_result().json()["predictions"]
    assert first["tracker_id"] == 7
    assert "tracker_id" not in second
    assert len(first["points"]) >= 4
    assert first["keypoints"][0]["confidence"] == 0.5


def test_result_supervision_full_result_is_converted() -> None:
    supervision = pytest.importorskip("supervision")
    result = full_result()
    found = result.supervision()
    assert found.xyxy.tolist() == [[5, 10, 15, 20], [0, 0, 2, 2]]
    assert found.mask.sum(axis=(1, 2)).tolist() == [96, 0]
    assert found.tracker_id.tolist() == [7, -1]
    assert found.data["class_name"].tolist() == ["cup", "pan"]
    assert found.data[supervision.config.ORIENTED_BOX_COORDINATES].shape == (2, 4, 2)
    assert len(found[found.class_id == 1]) == 1
    assert len(from_proto(pb.Result(width=4, height=4)).supervision()) == 0
    read = supervision.Detections.from_inference(result.json())
    assert read.xyxy.tolist() == found.xyxy.tolist()


# --- counts ---------------------------------------------------------------------------------------------------------


def in_groups(frames: Iterator[pb.Frame], _: grpc.ServicerContext) -> Iterator[pb.Result]:
    """Of each five frames, skip two in a report, skip the third with the answer to the fourth, and fail the last."""
    for number, frame in enumerate(frames):
        place, n = number % 5, frame.sequence
        if place == 1:
            skips = pb.Skips(first=n - 1, last=n, count=2, reason="rate")
            yield pb.Result(camera=frame.camera, skipped=2, skips=[skips], only_skips=True)
        elif place == 3:
            yield answer(frame, skipped=1, skips=[pb.Skips(first=n - 1, last=n - 1, count=1, reason="overtaken")])
        elif place == 4:
            yield answer(frame, error=pb.Error(code=14, message="the host died"))


def test_stream_counts_with_reasons_add_up(target: str) -> None:
    with ScriptedDaemon(target, in_groups), Client(target) as client:
        stream = client.stream("shapes", [JPEG] * 22)
        results = list(stream)
    counts = stream.counts
    assert [result.sequence for result in results] == [4, 5, 9, 10, 14, 15, 19, 20]
    assert (counts.sent, counts.answered, counts.skipped, counts.failed, counts.waiting) == (22, 4, 14, 4, 0)
    assert dict(counts.reasons) == {"rate": 10, "overtaken": 4}
    assert results[0].skipped == 3
    assert results[0].skips == (Skips(1, 2, 2, "rate"), Skips(3, 3, 1, "overtaken"))
    assert counts.unreported == (Skips(21, 22, 2, "rate"),)
    assert counts.skipped == sum(result.skipped for result in results) + sum(s.count for s in counts.unreported)


# --- reconnecting ---------------------------------------------------------------------------------------------------


def answer_three(frames: Iterator[pb.Frame], context: grpc.ServicerContext) -> Iterator[pb.Result]:
    """Answer three frames, take another one without an answer, and abort the call."""
    for frame in itertools.islice(frames, 3):
        yield answer(frame)
    next(frames)
    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def quick(client: Client, frames: Any, **options: Any) -> Any:
    return client.stream("shapes", frames, reconnect=Backoff((0.05,)), **options)


def test_stream_reconnected_keeps_counts_and_options(target: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "edged.client")
    calls = 0

    def detect(frames: Iterator[pb.Frame], context: grpc.ServicerContext) -> Iterator[pb.Result]:
        nonlocal calls
        calls += 1
        yield from (echo if calls == 4 else answer_three)(frames, context)

    with ScriptedDaemon(target, detect) as daemon, Client(target) as client:
        stream = quick(client, [JPEG] * 40, lossless=True, camera="door", track=True)
        results = list(stream)
    counts = stream.counts
    assert (counts.sent, counts.answered, counts.failed, counts.lost) == (40, 37, 3, 3)
    assert [result.sequence for result in results] == [n for n in range(1, 41) if n not in (4, 8, 12)]
    assert [frame.sequence for frame in daemon.frames if frame.HasField("options")] == [1, 5, 9, 13]
    assert {frame.camera for frame in daemon.frames} == {"door"}
    assert "calling again in 0.05 s" in caplog.text


def test_stream_without_any_answer_does_not_reconnect(target: str) -> None:
    with Client(target) as client, pytest.raises(DaemonUnavailable, match="no edged daemon answers"):
        list(client.stream("shapes", [JPEG] * 9, reconnect=True))


def test_stream_refused_does_not_reconnect(target: str) -> None:
    def detect(frames: Iterator[pb.Frame], context: grpc.ServicerContext) -> Iterator[pb.Result]:
        yield answer(next(frames))
        context.abort(grpc.StatusCode.NOT_FOUND, "there is no model 'shapes' any more")

    with ScriptedDaemon(target, detect), Client(target) as client, pytest.raises(NotFound, match="any more"):
        list(quick(client, itertools.repeat(JPEG)))


def test_stream_close_ends_the_wait_for_the_daemon(target: str) -> None:
    with Client(target) as client:
        with ScriptedDaemon(target, answer_three):
            stream = client.stream("shapes", itertools.repeat(JPEG), reconnect=True)
            assert len(list(itertools.islice(stream, 3))) == 3
        threading.Timer(0.3, stream.close).start()
        begun = time.monotonic()
        with pytest.raises(StopIteration):
            next(stream)
        assert time.monotonic() - begun < 20


def test_stream_reconnected_sends_no_old_frames(target: str) -> None:
    calls, pulling, called_again = 0, threading.Event(), threading.Event()

    def frames() -> Iterator[Captured]:
        yield Captured.now(JPEG)
        yield Captured.now(JPEG)
        pulling.set()
        called_again.wait(20)
        yield Captured(JPEG, time.time_ns() - 10**10, time.monotonic_ns() - 10**10)  # of the ended call
        while True:
            time.sleep(0.01)
            yield Captured.now(JPEG)

    def detect(requests: Iterator[pb.Frame], context: grpc.ServicerContext) -> Iterator[pb.Result]:
        nonlocal calls
        calls += 1
        if calls > 1:
            called_again.set()
            yield from echo(requests, context)
        yield answer(next(requests))
        next(requests)
        pulling.wait(20)
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    with ScriptedDaemon(target, detect) as daemon, Client(target) as client:
        stream = quick(client, frames())
        assert next(stream).sequence == 1
        assert next(stream).sequence == 4
        stream.close()
        assert 3 not in [frame.sequence for frame in daemon.frames]


def test_result_supervision_of_a_class_map_has_a_mask_for_each_class() -> None:
    supervision = pytest.importorskip("supervision")
    cells = np.array([[0, 0, 7, 7], [0, 3, 3, 7]])
    found = mapped(cells, 8, 4).supervision()
    assert found.class_id.tolist() == [0, 7, 3]
    assert found.data["class_name"].tolist() == ["road", "7", "3"]
    assert (found.confidence, found.tracker_id) == (None, None)
    pixels = cells.repeat(2, axis=0).repeat(2, axis=1)
    for mask, number in zip(found.mask, found.class_id, strict=True):
        assert np.array_equal(mask, pixels == number)
    assert np.array_equal(found.xyxy, supervision.mask_to_xyxy(found.mask))


def test_result_supervision_of_a_class_map_of_a_part_of_the_picture() -> None:
    pytest.importorskip("supervision")
    found = mapped(np.array([[1, 2]]), 20, 10, (4, 2, 8, 6)).supervision()
    assert found.mask.shape == (2, 10, 20)
    assert found.xyxy.tolist() == [[4, 2, 5, 5], [6, 2, 7, 5]]
    finer = mapped(np.array([[1, 1, 2, 3, 3]]), 2, 1).supervision()
    assert finer.class_id.tolist() == [1, 3]
    assert len(mapped(np.array([[1, 2]]), 20, 10, (40, 40, 80, 60)).supervision()) == 0


def mapped(cells: np.ndarray, width: int, height: int, box: tuple[int, int, int, int] | None = None) -> Result:
    """Return the result of a picture of width x height with a class map."""
    message = pb.Result(width=width, height=height)
    fill_content(message.content, ClassMap.of(cells, box), ("road",))
    return from_proto(message)
