"""Inference from request to answer, with a real slot and a fake host that echoes."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edged.api.grpc.rpc import Context
from edged.api.grpc.wire import Contents, Request
from edged.api.inference.infer import Inference
from edged.api.inference.requests import Caller, DeclaredInput
from edged.api.inference.service import InferHandlers
from edged.api.inference.shared_memory import SharedMemoryAccess
from edged.backends.contract import Signature
from edged.backends.profile import Profile
from edged.engines.controller import Controller
from edged.errors import EngineUnusable, InvalidTensor, Unsupported
from edged.models.sequencing import Sequencing
from edged.models.triton_config import QueuePolicy, TritonConfig
from edged.proto import open_inference_pb2 as pb
from edged.serving.extents import Traffic
from edged.serving.schedule import Batching, TensorBatching
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.serving.trace import Tracing
from edged.tensors import TensorSpec
from tests.fake_link import FakeLink, engine_ref
from tests.waiting import until

CALLER = Caller("unix:")


class World:
    """One model `m` with an input and an output `x` of shape [n, width].

    `gives` is the declared datatype of the output, if it differs from the input's.
    """

    def __init__(
        self,
        datatype: str,
        most: int = 8,
        policy: QueuePolicy | None = None,
        gives: str = "",
        sequencing: Sequencing | None = None,
    ) -> None:
        self.datatype, self.slot, self.link = datatype, Slot("m"), FakeLink()
        self.slot.batching_policy = TensorBatching(Batching(most), policy or QueuePolicy())
        spec = TensorSpec("x", datatype, ("n", "width"))
        entry = SimpleNamespace(model="m", version="1", folder=".", labels={})
        model = SimpleNamespace(
            name="m",
            digest="d",
            entry=entry,
            inspection=SimpleNamespace(signature=Signature((spec,), ()), optional=()),
            defaults={},
            bounds=Profile(),
            declared=Signature((spec,), (TensorSpec("x", gives or datatype, spec.shape),)),
            sequencing=sequencing,
            is_decoupled=False,
            is_static=False,
            max_batch_size=most,
            triton=TritonConfig(),
            recognition=SimpleNamespace(names=()),
        )
        planned = SimpleNamespace(
            answering=model, reading=None, problem="", entry=entry, slot=self.slot, model=None, traffic=Traffic()
        )
        self.planned, self.model = planned, model
        controller = SimpleNamespace(find_any=lambda name, version="": planned, models={"m": planned})
        access = SharedMemoryAccess()
        off = SimpleNamespace(begin=lambda *_: None)
        self.inference = Inference(cast(Controller, controller), cast(Tracing, off), access)

    def serve(self) -> None:
        self.slot.install(ServingSession(cast(Any, self.link), 1, engine_ref("engine")))

    def ask(
        self, contents: Contents, shape: list[int], head: bytes = b"", **parameters: int
    ) -> asyncio.Task[list[bytes]]:
        datatype = self.datatype
        message = pb.ModelInferRequest(model_name="m")
        message.inputs.add(name="x", datatype=datatype, shape=shape)
        for key, value in parameters.items():
            message.parameters[key].int64_param = value

        def write(response: pb.ModelInferResponse, raw: Any) -> bytes:
            return b"".join(map(bytes, raw))

        return asyncio.create_task(
            self.inference.answer(Request(message, (contents,), message.id, head), CALLER, write)
        )


async def turn() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_answer_strings_of_two_clients_are_not_batched() -> None:
    world = World("BYTES", gives="UINT8")
    mine = struct.pack("<I", 6) + b"secret"
    greedy = struct.pack("<I", len(mine))  # a length that reaches into the bytes after it
    first, second = world.ask(greedy, [1, 1]), world.ask(mine, [1, 1])
    await turn()
    world.serve()
    assert world.link.sent() == [greedy, mine]
    while world.link.jobs:
        world.link.answer()
        await turn()
    assert await second == [mine]
    await first


async def test_answer_request_that_is_not_batched_counts_its_rows() -> None:
    world = World("BYTES")
    world.serve()
    task = world.ask(struct.pack("<I", 0) * 3, [3, 1])
    await turn()
    world.link.answer()
    await task
    figures = world.slot.statistics
    assert (figures.inference_count, figures.execution_count, list(figures.batches)) == (3, 1, [3])


async def test_answer_cancelled_request_frees_its_bytes() -> None:
    world = World("UINT8")
    contents = memoryview(bytes(1000))
    kept = weakref.ref(contents)
    task = world.ask(contents, [1, 1000])
    del contents
    await turn()
    assert world.slot.waiting == 1
    assert kept() is not None
    task.cancel()
    await turn()
    del task
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_answer_timeout_parameter_applies_if_the_models_policy_allows_it(is_allowed: bool) -> None:
    world = World("UINT8", policy=QueuePolicy(timeout=3600, allow_override=is_allowed))
    task = world.ask(b"a", [1, 1], timeout=1)
    await asyncio.sleep(0.01)
    world.serve()
    assert len(world.link.jobs) == (not is_allowed)
    world.slot.refuse(EngineUnusable("the test is over"))
    task.cancel()


async def test_answer_long_timeout_parameter_does_not_exceed_the_models_timeout() -> None:
    world = World("UINT8", policy=QueuePolicy(timeout=0.005, allow_override=True))
    task = world.ask(b"a", [1, 1], timeout=1 << 40)
    await asyncio.sleep(0.03)
    world.serve()
    assert not world.link.jobs
    await turn()
    assert task.done()
    assert "deadline" in str(task.exception())


async def test_answer_request_of_a_refused_model_counts_as_failed() -> None:
    world = World("UINT8")
    task = world.ask(b"a", [1, 1])
    await turn()
    world.slot.refuse(EngineUnusable("it is gone"))
    await turn()
    assert isinstance(task.exception(), EngineUnusable)
    assert world.slot.statistics.fail.count == world.slot.statistics.fail.count == 1


async def test_answer_requests_of_a_sequence_stay_in_order_if_the_first_is_large() -> None:
    world = World("FP32", sequencing=Sequencing(idle=60.0))
    world.serve()
    first = pb.ModelInferRequest(model_name="m", id="first")
    first.inputs.add(name="x", datatype="FP32", shape=[1, 20_000]).contents.fp32_contents.extend([1.0] * 20_000)
    first.parameters["sequence_start"].bool_param = True
    second = pb.ModelInferRequest(model_name="m", id="second", raw_input_contents=[bytes(4 * 8)])
    second.inputs.add(name="x", datatype="FP32", shape=[1, 8])

    async def asked() -> AsyncIterator[bytes]:
        for request in (first, second):
            request.parameters["sequence_id"].int64_param = 7
            yield request.SerializeToString()

    handlers = InferHandlers(world.inference, cast(Any, SimpleNamespace(of=lambda name, version: None)))
    stream = handlers.model_stream_infer_bytes(asked(), Context("unix:"))
    answering = asyncio.create_task(collect(stream))
    sizes = list[int]()
    while not answering.done():
        await until(lambda: bool(world.link.jobs) or answering.done())
        sizes += map(len, world.link.sent())
        while world.link.jobs:
            world.link.answer()
    assert sizes == [4 * 20_000, 4 * 8]
    assert [(each.infer_response.id, each.error_message) for each in await answering] == [("first", ""), ("second", "")]
    world.inference.close()


async def test_answer_contents_are_checked_in_each_request_of_the_same_head() -> None:
    world = World("UINT8")
    world.serve()
    right, short = world.ask(b"abcd", [1, 4], b"head"), world.ask(b"abc", [1, 4], b"head")
    await turn()
    world.link.answer()
    assert await right == [b"abcd"]
    with pytest.raises(InvalidTensor):
        await short


async def test_answer_same_head_is_checked_against_the_model_of_now() -> None:
    world = World("UINT8")
    world.serve()
    first = world.ask(b"abcd", [1, 4], b"head")
    await turn()
    world.link.answer()
    await first
    spec = TensorSpec("x", "UINT8", ("n", 9))
    world.planned.answering = SimpleNamespace(**{**vars(world.model), "declared": Signature((spec,), (spec,))})
    with pytest.raises(InvalidTensor):
        await world.ask(b"abcd", [1, 4], b"head")


async def test_answer_many_different_heads_are_forgotten_again() -> None:
    world = World("UINT8")
    world.serve()

    async def answered(number: int) -> None:
        task = world.ask(b"abcd", [1, 4], str(number).encode(), priority=0)
        await turn()
        world.link.answer()
        assert await task == [b"abcd"]

    await answered(-1)
    gc.collect()
    before = sum(isinstance(each, DeclaredInput) for each in gc.get_objects())
    for number in range(600):
        await answered(number)
    gc.collect()
    assert sum(isinstance(each, DeclaredInput) for each in gc.get_objects()) - before < 300


async def test_answer_same_head_is_refused_without_a_stream_only() -> None:
    world = World("UINT8")
    world.serve()
    world.model.is_decoupled = True
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="UINT8", shape=[1, 4])
    asked = Request(message, (b"abcd",), "", b"head")

    def write(response: pb.ModelInferResponse, raw: Any) -> bytes:
        return bytes(raw[0])

    for _ in range(2):
        streamed = asyncio.create_task(world.inference.answer(asked, Caller("unix:", streamed=True), write))
        await turn()
        world.link.answer()
        assert await streamed == [b"abcd"]
        with pytest.raises(Unsupported):
            await world.inference.answer(asked, CALLER, write)


async def collect(stream: AsyncIterator[bytes]) -> list[pb.ModelStreamInferResponse]:
    return [pb.ModelStreamInferResponse.FromString(data) async for data in stream]
