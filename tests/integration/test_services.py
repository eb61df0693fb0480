"""Health and reflection, and the camera service: picture formats, order, several cameras."""

from __future__ import annotations

import cv2
import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from edged.proto import cameras_pb2 as pb
from edged.shapes import Scene, match
from edged.shapes.matching import Prediction
from tests.integration.daemon import Daemon
from tests.integration.inference_calls import method


@pytest.fixture(scope="module")
def channel(daemon: Daemon):  # type: ignore[no-untyped-def]
    with grpc.insecure_channel(daemon.tcp) as channel:
        yield channel


def test_health_is_serving(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "edged.v1.Cameras", "inference.GRPCInferenceService"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_every_service(channel: grpc.Channel) -> None:
    services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {"edged.v1.Cameras", "edged.v1.Operations", "inference.GRPCInferenceService"} <= services


def detect(channel: grpc.Channel, frame: pb.Frame) -> pb.Result:
    answer: pb.Result = method(channel, "DetectOne")(frame, timeout=20)
    return answer


def _formats() -> dict[str, pb.Frame]:
    image = Scene(5).frame(0)[0]
    height, width = image.shape[:2]
    padded = np.zeros((height, width * 3 + 64), np.uint8)
    padded[:, : width * 3] = image.reshape(height, -1)
    i420 = cv2.cvtColor(image, cv2.COLOR_BGR2YUV_I420)
    luma, chroma = i420[:height], i420[height:].reshape(2, -1)
    nv12 = np.concatenate([luma.ravel(), chroma.T.ravel()])

    def raw(kind: pb.PixelFormat, data: bytes, stride: int = 0) -> pb.Frame:
        return pb.Frame(
            model="shapes", raw=pb.RawImage(format=kind, width=width, height=height, stride=stride, data=data)
        )

    return {
        "jpeg": pb.Frame(model="shapes", encoded=cv2.imencode(".jpg", image)[1].tobytes()),
        "png": pb.Frame(model="shapes", encoded=cv2.imencode(".png", image)[1].tobytes()),
        "bgr": raw(pb.BGR, image.tobytes()),
        "bgr-stride": raw(pb.BGR, padded.tobytes(), width * 3 + 64),
        "rgb": raw(pb.RGB, image[:, :, ::-1].tobytes()),
        "i420": raw(pb.I420, i420.tobytes()),
        "nv12": raw(pb.NV12, nv12.tobytes()),
    }


@pytest.mark.parametrize("name", ["jpeg", "png", "bgr", "bgr-stride", "rgb", "i420", "nv12"])
def test_every_picture_format_gives_the_same_objects(channel: grpc.Channel, name: str) -> None:
    result = detect(channel, _formats()[name])
    assert (result.width, result.height) == (640, 480)
    found = [Prediction(d.class_id, d.score, d.x1, d.y1, d.x2, d.y2) for d in result.detections if d.score > 0.4]
    counts = match(found, Scene(5).frame(0)[1])
    assert counts.recall >= 0.8
    assert counts.precision >= 0.8
    assert result.timings.infer_ms > 0
    assert result.engine


def test_thresholds_of_a_frame_apply_to_that_frame_only(channel: grpc.Channel) -> None:
    frame = _formats()["bgr"]
    usual = len(detect(channel, frame).detections)
    frame.thresholds.max_detections = 1
    assert len(detect(channel, frame).detections) == 1
    frame.ClearField("thresholds")
    assert len(detect(channel, frame).detections) == usual


def test_one_stream_carries_many_cameras_each_in_order(channel: grpc.Channel) -> None:
    encoded = _formats()["jpeg"].encoded
    sent = {f"camera-{c}": 40 for c in range(3)}

    def frames():  # type: ignore[no-untyped-def]
        for sequence in range(40):
            for camera in sent:
                yield pb.Frame(camera=camera, sequence=sequence, model="shapes", encoded=encoded)

    results = list(method(channel, "Detect")(frames(), timeout=60))
    for camera, count in sent.items():
        mine = [r for r in results if r.camera == camera]
        assert [r.sequence for r in mine] == sorted(r.sequence for r in mine)
        assert mine[-1].sequence == 39, "the last frame is never skipped"
        assert sum(not r.only_skips for r in mine) + sum(r.skipped for r in mine) == count
