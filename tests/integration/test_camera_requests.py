"""Options of a camera's frames: region, rotation, thresholds; and the errors for invalid ones."""

from __future__ import annotations

import cv2
import grpc
import numpy as np
import pytest

from edged.proto import cameras_pb2 as pb
from edged.shapes import Scene
from tests.integration.inference_calls import method, refusal

_PICTURE = Scene(5).frame(0)[0]  # 640 x 480
_TURNS = {90: cv2.ROTATE_90_COUNTERCLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_CLOCKWISE}


def jpeg(picture: np.ndarray) -> bytes:
    return cv2.imencode(".png", picture)[1].tobytes()


def detect(channel: grpc.Channel, timeout: float = 30, **frame: object) -> pb.Result:
    answer: pb.Result = method(channel, "DetectOne")(pb.Frame(model="shapes", **frame), timeout=timeout)
    return answer


def boxes(result: pb.Result, score: float = 0.5) -> np.ndarray:
    found = [(d.x1, d.y1, d.x2, d.y2) for d in result.detections if d.score > score]
    return np.array(sorted(found)).reshape(-1, 4)


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotated_camera_gets_boxes_in_its_own_pixels(channel: grpc.Channel, degrees: int) -> None:
    upright = boxes(detect(channel, encoded=jpeg(_PICTURE)))
    turned = cv2.rotate(_PICTURE, _TURNS[degrees])  # as the camera sees it; `degrees` clockwise turn it upright
    result = detect(channel, encoded=jpeg(turned), rotation=degrees)
    assert (result.width, result.height) == (turned.shape[1], turned.shape[0])
    width, height = 640, 480
    x1, y1, x2, y2 = upright.T
    there = {
        90: np.stack([y1, width - x2, y2, width - x1], 1),
        180: np.stack([width - x2, height - y2, width - x1, height - y1], 1),
        270: np.stack([height - y2, x1, height - y1, x2], 1),
    }[degrees]
    assert len(upright) >= 3
    assert boxes(result) == pytest.approx(np.array(sorted(map(tuple, there))), abs=1.0)


def test_region_gets_only_its_boxes_in_pixels_of_the_whole_picture(channel: grpc.Channel) -> None:
    x, y, width, height = 200, 120, 320, 240
    whole = detect(channel, encoded=jpeg(_PICTURE), region=pb.Region(x=x, y=y, width=width, height=height))
    cut = detect(channel, encoded=jpeg(_PICTURE[y : y + height, x : x + width]))
    assert (whole.width, whole.height) == (640, 480)
    assert len(boxes(cut)) >= 1
    assert boxes(whole) == pytest.approx(boxes(cut) + np.array([x, y, x, y]), abs=0.05)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ({"rotation": 45}, "rotation of 45"),
        ({"region": pb.Region(x=700, y=0)}, "region"),
        ({"thresholds": pb.Thresholds(score=2.0)}, "between 0 and 1"),
        ({"raw": pb.RawImage(width=4, height=4, data=bytes(48))}, "pixel format"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(channel: grpc.Channel, frame: dict[str, object], words: str) -> None:
    picture = {} if "raw" in frame else {"encoded": jpeg(_PICTURE)}
    code, line = refusal(detect, channel, **picture, **frame)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in line


def test_infer_past_its_deadline_is_deadline_exceeded(channel: grpc.Channel) -> None:
    code, _ = refusal(detect, channel, timeout=1e-6, encoded=jpeg(_PICTURE))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
