"""What a client of the ZeroMQ lane may say, and how its results read as JSON."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.api.endpoints import result_json, zmq_wire
from edged.errors import InvalidInput, NotFound
from edged.ipc import messages as m
from edged.serving.camera import StreamOptions
from edged.serving.schedule import Share
from edged.serving.stream import Delivery, SkipReport
from edged.serving.stream_camera import Skips
from edged.serving.work import Answered, EngineRef, FrameWork, OutputTensor
from edged.vision.detections import Classes, Detections
from edged.vision.family import Recognition, Thresholds, recognise
from edged.vision.placement import Region, Roi
from tests.waiting import run


def parse(header: Any, *data: bytes) -> zmq_wire.Message:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return zmq_wire.parse([memoryview(text), *map(memoryview, data)])


def work(header: Any, data: bytes = b"picture", base: Thresholds | None = None) -> FrameWork:
    async def make() -> FrameWork:
        return parse(header, data).header.work(data, base or Thresholds())

    return run(make())


def test_an_empty_header_is_an_encoded_picture_for_the_only_model() -> None:
    made = work({})
    assert (made.data, made.pixel_format, made.roi, made.thresholds) == (b"picture", "", None, None)


def test_everything_can_be_said() -> None:
    header = {
        "camera": "door",
        "sequence": 7,
        "model": "yolo",
        "captured_unix_ns": 1_700_000_000_000_000_000,
        "format": "nv12",
        "width": 64,
        "height": 48,
        "stride": 80,
        "thresholds": {"score": 0.4, "iou": 0.5, "max_detections": 9, "class_agnostic": True},
        "region": {"x": 1, "y": 2, "width": 3, "height": 4},
        "rotation": 270,
        "options": {"mode": "every_frame", "max_fps": 5, "max_staleness_ms": 250, "weight": 2, "priority": -3},
    }
    made = work(header)
    assert (made.pixel_format, made.width, made.height, made.stride) == ("nv12", 64, 48, 80)
    assert made.thresholds == Thresholds(0.4, 0.5, 9, True)
    assert made.roi == Roi(Region(1, 2, 3, 4), 270)
    options = parse(header, b"x").header.options
    assert options is not None
    assert options.checked() == StreamOptions("every_frame", 5, 0.25, Share(2, -3), False)


def test_thresholds_that_are_not_given_are_the_models() -> None:
    base = Thresholds(0.1, 0.2, 3, True)
    assert work({"thresholds": {"score": 0.9}}, base=base).thresholds == Thresholds(0.9, 0.2, 3, True)
    assert work({"thresholds": {"max_detections": 10**6}}, base=base).thresholds == Thresholds(0.1, 0.2, 4096, True)


def test_a_picture_may_lie_in_shared_memory() -> None:
    message = parse({"shared": {"segment": "/edged-x", "offset": 64, "stamp": 2**64 - 1, "size": 5}})
    assert message.data is None
    assert message.header.shared == zmq_wire.Shared(segment="/edged-x", offset=64, stamp=2**64 - 1, size=5)


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"", (b"x",)),
        (b"\xff", (b"x",)),
        (b"[]", (b"x",)),
        (b"{", (b"x",)),
        (b" " * 70_000 + b"{}", (b"x",)),
        ({}, ()),
        ({}, (b"x", b"y")),
        ({"shared": {"segment": "/edged-x", "offset": 0, "stamp": 1, "size": 1}}, (b"x",)),
        ({"shared": {"segment": "/edged-x", "offset": -1, "stamp": 1, "size": 1}}, ()),
        ({"shared": {"segment": "/edged-x", "offset": 2**63, "stamp": 1, "size": 1}}, ()),
        ({"shared": {"segment": "/edged-x"}}, ()),
        ({"camra": "x"}, (b"x",)),
        ({"camera": 5}, (b"x",)),
        ({"format": "yuyv"}, (b"x",)),
        ({"rotation": 45}, (b"x",)),
        ({"width": -1}, (b"x",)),
        ({"width": 2**40}, (b"x",)),
        ({"sequence": -1}, (b"x",)),
        ({"captured_unix_ns": 10**400}, (b"x",)),
        ({"thresholds": {"score": 2}}, (b"x",)),
        ({"thresholds": {"scor": 0.2}}, (b"x",)),
        ({"region": {"x": -5}}, (b"x",)),
        ({"region": [0, 0, 5, 5]}, (b"x",)),
        ({"options": {"mode": "newest"}}, (b"x",)),
    ],
)
def test_what_is_no_frame_is_refused_in_one_line(header: Any, data: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse(header, *data)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_no_message_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput):
        zmq_wire.parse([])


@given(st.lists(st.binary(max_size=100), max_size=3))
def test_no_bytes_do_more_than_be_refused(frames: list[bytes]) -> None:
    with contextlib.suppress(InvalidInput):
        zmq_wire.parse([memoryview(frame) for frame in frames])


# -- results ----------------------------------------------------------------------------------------------------------

_ECHO = result_json.Echo("door", 7, "yolo", 123)


def engine(*names: str) -> EngineRef:
    known = recognise((), (), {}, {})
    fields = {name: getattr(known, name) for name in Recognition.__struct_fields__}
    return EngineRef("key", "fake", "digest", Recognition(**{**fields, "names": names}))


def told(answer: Any, ids: tuple[int, ...] = ()) -> dict[str, Any]:
    async def make() -> bytes:
        skips = (Skips(3, 5, 3, "overtaken"),)
        delivery = Delivery("door", _ECHO, FrameWork(b""), answer, skips, 12.5, 99, ids)
        return result_json.encode(result_json.delivered(_ECHO, delivery))

    fields: dict[str, Any] = json.loads(run(make()))
    assert (fields["camera"], fields["sequence"], fields["model"], fields["captured_unix_ns"]) == (
        "door",
        7,
        "yolo",
        123,
    )
    assert (fields["age_ms"], fields["received_unix_ns"], fields["skipped"]) == (12.5, 99, 3)
    assert fields["skips"] == [{"first": 3, "last": 5, "count": 3, "reason": "overtaken"}]
    assert fields["timings"]["total_ms"] >= 0
    return fields


def test_objects_are_told_as_roboflow_tells_them() -> None:
    found = Detections.of([[10, 20, 30, 60]], [0.5], [1])
    answer = Answered(engine("a", "b"), found.pack(), (), 640, 480, 1.5, m.Times(1, 2, 3, 4))
    fields = told(answer, (41,))
    assert fields["image"] == {"width": 640, "height": 480}
    (one,) = fields["predictions"]
    assert (one["x"], one["y"], one["width"], one["height"]) == (20, 40, 20, 40)
    assert (one["class"], one["class_id"], one["confidence"], one["tracker_id"]) == ("b", 1, 0.5, 41)
    assert fields["timings"]["queue_ms"] == 1.5
    assert fields["timings"]["infer_ms"] == 3
    assert (fields["engine"], fields["backend"]) == ("key", "fake")
    assert "error" not in fields


def test_objects_without_a_track_have_no_tracker_id() -> None:
    found = Detections.of([[10, 20, 30, 60]], [0.5], [1])
    answer = Answered(engine(), found.pack(), (), 640, 480, 0, m.Times())
    assert "tracker_id" not in told(answer, (-1,))["predictions"][0]


def test_classes_are_told_the_best_first() -> None:
    found = Classes(np.array([1, 0], np.int32), np.array([0.75, 0.25], np.float32))
    answer = Answered(engine("cat", "dog"), None, (), 64, 48, 0, m.Times(), found.pack())
    fields = told(answer)
    assert fields["top"] == "dog"
    assert fields["predictions"][1] == {"class": "cat", "class_id": 0, "confidence": 0.25}


def test_raw_outputs_are_described() -> None:
    answer = Answered(engine(), None, (OutputTensor("y", "FP32", (1, 2), bytes(8)),), 64, 48, 0, m.Times())
    assert told(answer)["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2]}]


def test_an_error_is_a_code_a_name_and_a_line() -> None:
    error = {"code": 5, "reason": "NOT_FOUND", "name": "NotFound", "message": "no such model"}
    assert told(NotFound("no such model"))["error"] == error


def test_skips_that_no_answer_told_of_are_told_alone() -> None:
    fields = result_json.only_skips(SkipReport("door", (Skips(1, 2, 2, "stale"), Skips(3, 3, 1, "rate"))))
    assert (fields["camera"], fields["only_skips"], fields["skipped"]) == ("door", True, 3)
    assert [run["reason"] for run in fields["skips"]] == ["stale", "rate"]
