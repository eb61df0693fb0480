"""A controller with real children and hosts in this process, and one model with open dimensions for tensor requests.

The model always answers zero, as the `null` backend does. A `null` engine of it is therefore verified and serves, keeps
to its range of shapes, and is faster than the reference.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from edged.api.grpc.wire import Request
from edged.api.inference.infer import Inference
from edged.api.inference.requests import Caller
from edged.api.inference.shared_memory import SharedMemoryAccess
from edged.config import Engines
from edged.config.child_limits import HostLimits, Limits
from edged.device.fingerprint import probe
from edged.engines.builder import Builder
from edged.engines.controller import Controller
from edged.engines.plan import PlannedModel
from edged.models.repository import Repository
from edged.proto import open_inference_pb2 as pb
from edged.serving.trace import Tracing
from edged.store.store import Store
from tests import models


def zero(*inputs: str, dims: tuple[int | str, ...] = ("n", "w")) -> onnx.ModelProto:
    """Return a model with the output INT64 [1], always 0, and FP32 inputs of equal dimensions."""
    # Multiplications of zeros that are slow in the reference, so that `null` is the faster engine.
    slow = " ".join(f"z{n + 1} = MatMul(z{n}, z0)" for n in range(8)) + " slow = ReduceSum<keepdims = 0>(z8)"
    sums = " ".join(f"{x}_none = Sub({x}, {x}) {x}_sum = ReduceSum<keepdims = 0>({x}_none)" for x in inputs)
    added = ", ".join(["slow", *(f"{name}_sum" for name in inputs)])
    answer = f"sum = Sum({added}) one = Constant<value_ints = [1]>() row = Reshape(sum, one) y = Cast<to = 7>(row)"
    shape = ", ".join(map(str, dims))
    declared = ", ".join(f"float[{shape}] {name}" for name in inputs)
    zeroes = {"z0": np.zeros((256, 256), np.float32)}
    return models.parse(f"({declared}) => (int64[1] y) {{ {slow} {sums} {answer} }}", zeroes)


def with_default(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Add the input `offset` to the model, with the default 0, which is added to the answer."""
    next(node for node in proto.graph.node if node.op_type == "Sum").input.append("offset")
    proto.graph.input.append(models.value("offset", "FP32", [1]))
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "offset"))
    return proto


class World:
    """A daemon's core without its sockets."""

    def __init__(self, root: Path) -> None:
        repository, store = Repository(root / "state" / "models"), Store(root / "cache")
        builder = Builder(store, root / "cache", Limits(seconds=60.0))
        self.controller = Controller(repository, {}, store, builder, probe(), HostLimits(), Engines())
        self.inference = Inference(self.controller, Tracing(root / "traces"), SharedMemoryAccess())

    @property
    def planned(self) -> PlannedModel:
        return self.controller.find("m")

    @property
    def range(self) -> str:
        """The range of the serving engine, as text; "none" if no engine serves."""
        current = self.planned.slot.current
        return "none" if current is None else str(current.engine.profile)

    async def serves(self, backend: str, range_: str | None = None) -> None:
        """Wait until an engine of a backend serves, optionally one of a given range."""

        def does() -> bool:
            current = self.planned.slot.current
            return (
                current is not None
                and current.engine.backend == backend
                and (range_ is None or str(current.engine.profile) == range_)
            )

        await until(does, f"{backend} serves {range_ or ''}")

    async def ask(self, offset: float | None = None, **shapes: tuple[int, ...]) -> int:
        """Send zeros of these shapes, and an offset if given; return the single number of the answer."""
        message = pb.ModelInferRequest(model_name="m")
        raw = []
        for name, shape in shapes.items():
            message.inputs.add(name=name, datatype="FP32", shape=shape)
            raw.append(np.zeros(shape, np.float32).tobytes())
        if offset is not None:
            message.inputs.add(name="offset", datatype="FP32", shape=(1,))
            raw.append(np.array([offset], np.float32).tobytes())
        caller = Caller("unix:")
        (answer,) = await asyncio.wait_for(
            self.inference.answer(
                Request(message, tuple(raw), message.id), caller, lambda _, raw: b"".join(map(bytes, raw))
            ),
            150,
        )
        return int(np.frombuffer(answer, np.int64)[0])


async def until(happened: object, what: str, seconds: float = 150.0) -> None:
    """Wait until `happened` returns True."""
    assert callable(happened)
    for _ in range(int(seconds / 0.02)):
        if happened():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what}")


@contextlib.asynccontextmanager
async def world(root: Path, proto: onnx.ModelProto, **settings: str) -> AsyncIterator[World]:
    """Run a core with the model `m`. It continues with the state of an earlier one in the same folder."""
    made = World(root)
    if not made.controller.repository.entries():
        file = models.save(proto, root / "m.onnx")
        output = {name.replace("__", "."): text for name, text in settings.items()}
        made.controller.repository.add("m", {"m.onnx": file}, output)
    loop = asyncio.create_task(made.controller.run())
    try:
        await until(lambda: "m" in made.controller.models, "the model is found")
        yield made
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        made.inference.close()
        await made.controller.stop()
