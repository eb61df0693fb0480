"""Cameras that offer far more than an engine can serve, and the results of their frames."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import onnx
from onnx import helper, numpy_helper

from edged.proto import cameras_pb2 as pb
from tests.integration.inference_calls import method

_SIDE = 8


def slow_model(path: Path, rounds: int) -> Path:
    """Write a model for pictures of 8x8 pixels that costs `rounds` products of a vector and a 1024x1024 matrix."""
    weights = np.eye(1024, dtype=np.float32)
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("Identity", ["again_in"], ["again"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("again_in", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1024]),
        ],
        [
            helper.make_tensor_value_info("again", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1024]),
        ],
    )
    constants = {
        "w": weights,
        "into": np.full((3 * _SIDE * _SIDE, 1024), 1e-3, np.float32),
        "flat": np.array([1, -1], np.int64),
        "rounds": np.array(rounds, np.int64),
        "true": np.array(True),
        "axes": np.array([1], np.int64),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["images", "flat"], ["row"]),
            helper.make_node("MatMul", ["row", "into"], ["start"]),
            helper.make_node("Loop", ["rounds", "true", "start"], ["end"], body=body),
            helper.make_node("ReduceMean", ["end", "axes"], ["brightness"], keepdims=1),
        ],
        "slow",
        [helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, [1, 3, _SIDE, _SIDE])],
        [helper.make_tensor_value_info("brightness", onnx.TensorProto.FLOAT, [1, 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@dataclass
class Camera:
    """What one camera sent and received."""

    sent: int = 0
    answered: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    ages_ms: list[float] = field(default_factory=list)
    late: int = 0  # answers that arrived after the answer to a newer frame

    @property
    def accounted(self) -> int:
        return self.answered + self.failed + self.skipped.total()


async def offer(
    target: str,
    model: str,
    options: Mapping[str, pb.StreamOptions],
    fps: float,
    seconds: float,
    jpeg: bytes = b"",
    spread: bool = False,
) -> dict[str, Camera]:
    """Send frames of all cameras in one stream, each at a steady rate; read until all are accounted for.

    The frames are `jpeg`, or small raw frames if it is empty. All cameras send at the same moments, or evenly spread if
    `spread`."""
    cameras = {name: Camera() for name in options}
    pixels = bytes(3 * _SIDE * _SIDE)

    async def frames() -> AsyncIterator[pb.Frame]:
        began, number = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            number += 1
            for place, (name, camera) in enumerate(cameras.items()):
                if spread:
                    due = began + (number - 1 + place / len(cameras)) / fps
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                first = options[name] if number == 1 else None
                camera.sent += 1
                frame = pb.Frame(
                    camera=name,
                    model=model,
                    sequence=number,
                    captured_unix_ns=time.time_ns(),
                    options=first,
                )
                if jpeg:
                    frame.encoded = jpeg
                else:
                    frame.raw.CopyFrom(pb.RawImage(format=pb.BGR, width=_SIDE, height=_SIDE, data=pixels))
                yield frame
            await asyncio.sleep(max(0.0, began + number / fps - time.monotonic()))

    async with grpc.aio.insecure_channel(target) as channel:
        newest: dict[str, int] = {}
        async for result in method(channel, "Detect")(frames(), timeout=seconds + 120):
            camera = cameras[result.camera]
            for run in result.skips:
                camera.skipped[run.reason] += run.count
            if result.only_skips:
                continue
            if result.HasField("error"):
                camera.failed += 1
            else:
                camera.answered += 1
                camera.ages_ms.append(result.age_ms)
            camera.late += result.sequence <= newest.get(result.camera, 0)
            newest[result.camera] = result.sequence
    return cameras


def jain(shares: list[float]) -> float:
    """Return Jain's fairness index: 1 if all shares are equal, 1/n if one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def resident_kb(pid: int) -> int:
    """Return a process's resident memory in kilobytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))
