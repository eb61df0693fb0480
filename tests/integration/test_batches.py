"""Frames of several cameras in one batch of a real engine: each gets its own result."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.proto import cameras_pb2 as pb
from tests.integration.daemon import Daemon
from tests.integration.inference_calls import method

_SIDE, _CELLS, _CAMERAS = 64, 84, 8


def brightness_model(path: Path, batch: int | str) -> Path:
    """Write a model that gives one box per picture, 0 to 60 pixels wide by its brightness. The score is 0.3 plus 0.1
    for each picture in the batch."""
    width, fixed, share = (np.zeros((1, 5, _CELLS), np.float32) for _ in range(3))
    width[0, 2, 0] = 60
    fixed[0, :, 0] = _SIDE / 2, _SIDE / 2, 0, 8, 0.3
    share[0, 4, 0] = 0.1
    constants = {"width": width, "fixed": fixed, "share": share, "axes": np.array([1, 2, 3], np.int64)}
    constants |= {"first": np.array([0], np.int64), "flat": np.array([-1, 1, 1], np.int64)}
    nodes = [
        helper.make_node("ReduceMean", ["images", "axes"], ["mean"], keepdims=1),
        helper.make_node("Reshape", ["mean", "flat"], ["bright"]),
        helper.make_node("Mul", ["bright", "width"], ["widths"]),
        helper.make_node("Add", ["widths", "fixed"], ["boxes"]),
        helper.make_node("Shape", ["images"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["count"]),
        helper.make_node("Cast", ["count"], ["many"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["many", "share"], ["scores"]),
        helper.make_node("Add", ["boxes", "scores"], ["output0"]),
    ]
    graph = helper.make_graph(
        nodes,
        "brightness",
        [helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, [batch, 3, _SIDE, _SIDE])],
        [helper.make_tensor_value_info("output0", onnx.TensorProto.FLOAT, [batch, 5, _CELLS])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def brightness(camera: int) -> int:
    return 30 + 25 * camera


@pytest.mark.parametrize(("batch", "settings"), [("batch", 'batch.max = "4"\n'), (4, "")], ids=["any", "fixed"])
def test_cameras_in_one_batch_get_their_own_boxes(batch: int | str, settings: str) -> None:
    daemon = Daemon(builds=False)
    folder = daemon.models / "bright" / "1"
    folder.mkdir(parents=True)
    brightness_model(folder / "model.onnx", batch)
    (folder.parent / "edged.toml").write_text(f'family = "ultralytics"\nbatch.wait_ms = "20"\n{settings}')
    with daemon, grpc.insecure_channel(daemon.unix) as channel:
        daemon.settled("bright")
        results = list(method(channel, "Detect")(iter(_frames(40)), timeout=60))
    together = defaultdict(int)
    for result in results:
        assert not result.HasField("error"), result.error.message
        (box,) = result.detections
        wanted = 60 * brightness(int(result.camera)) / 255
        assert box.x2 - box.x1 == pytest.approx(wanted, abs=0.5)
        together[round((box.score - 0.3) * 10)] += 1
    assert sum(together.values()) == 40 * _CAMERAS
    assert set(together) <= ({4} if batch == 4 else {1, 2, 3, 4})
    assert together[4] >= 40, dict(together)


def _frames(count: int) -> list[pb.Frame]:
    frames = []
    for sequence in range(count):
        for camera in range(_CAMERAS):
            data = bytes([brightness(camera)]) * (3 * _SIDE * _SIDE)
            raw = pb.RawImage(format=pb.BGR, width=_SIDE, height=_SIDE, data=data)
            frame = pb.Frame(camera=str(camera), model="bright", sequence=sequence, raw=raw)
            if sequence == 0:
                frame.options.mode = pb.StreamOptions.EVERY_FRAME
            frames.append(frame)
    return frames
