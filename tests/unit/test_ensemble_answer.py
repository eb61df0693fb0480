"""Requests of ensembles from message to response, with real slots and fake hosts."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from edged.api.grpc.wire import Contents, Request
from edged.api.inference.infer import Inference
from edged.api.inference.requests import Caller
from edged.api.inference.shared_memory import SharedMemoryAccess
from edged.engines.controller import Controller
from edged.errors import (
    DeadlineExceeded,
    EdgedError,
    EngineUnusable,
    InvalidInput,
    InvalidTensor,
    NotFound,
    NotReady,
    Overloaded,
)
from edged.ipc import messages as m
from edged.models.triton_config import DynamicBatching, QueuePolicy, Step, TensorConfig, TritonConfig
from edged.proto import open_inference_pb2 as pb
from edged.serving.session import ServingSession
from edged.serving.trace import Tracing
from edged.serving.work import EngineRef
from tests.fake_link import FakeLink
from tests.unit.control_room import entry, inspection
from tests.unit.test_catalogue import House
from tests.unit.test_ensembles import STEPS, ensemble_entry

CALLER = Caller("unix:")
INPUT = np.arange(4, dtype=np.float32).reshape(1, 4)
DIAMOND = (
    Step("a", "", {"x": "X"}, {"y": "t"}),
    Step("b", "", {"x": "t"}, {"y": "Y"}),
    Step("c", "", {"x": "t"}, {"y": "Z"}),
)


class World:
    """An ensemble `e`, and models with an input `x` and an output `y`, FP32 [1, 4], each in a fake host."""

    def __init__(self, folder: Path, steps: tuple[Step, ...] = STEPS, outputs: str = "Y", rows: int = 0) -> None:
        self.house, self.links = House(folder), dict[str, FakeLink]()
        self.rows, self.shape = rows, ("n", 4) if rows else (1, 4)
        tensors = {name: TensorConfig(name, "FP32", (4,) if rows else (1, 4)) for name in ("X", *outputs.split())}
        triton = TritonConfig(rows, (tensors.pop("X"),), tuple(tensors.values()), steps=steps)
        self.house.shelf.models["e"] = msgspec.structs.replace(ensemble_entry(), triton=triton)
        self.tracing = Tracing(folder / "traces")
        catalogue = self.house.catalogue
        controller = SimpleNamespace(find_any=catalogue.find_any, models=catalogue.models)
        self.inference = Inference(cast(Controller, controller), self.tracing, SharedMemoryAccess())

    async def serve(self, *names: str, triton: TritonConfig | None = None, stamp: str = "1") -> World:
        for name in names:
            self.house.readers.files[name] = inspection(name, shape=self.shape)
            config = triton or (TritonConfig(max_batch_size=self.rows) if self.rows else None)
            self.house.shelf.models[name] = msgspec.structs.replace(entry(name, stamp), triton=config)
            await self.house.look()
            planned, link = self.house.catalogue.models[name], FakeLink()
            model = planned.model
            assert model is not None
            engine = EngineRef(name, "fake", model.digest, model.recognition, limits=model.limits)
            planned.slot.install(ServingSession(cast(Any, link), 1, engine))
            self.links[name] = link
        return self

    @property
    def statistics(self) -> Any:
        return self.house.catalogue.ensembles["e"].statistics

    def ask(
        self, values: Any = INPUT, outputs: Sequence[str] = (), caller: Caller = CALLER, **parameters: int
    ) -> asyncio.Task[list[dict[str, Any]]]:
        message = pb.ModelInferRequest(model_name="e", id="one")
        message.inputs.add(name="X", datatype="FP32", shape=values.shape)
        for name in outputs:
            message.outputs.add(name=name)
        for key, value in parameters.items():
            message.parameters[key].int64_param = value
        return self.send(message, values.tobytes(), caller)

    def send(
        self, message: pb.ModelInferRequest, contents: Contents, caller: Caller = CALLER
    ) -> asyncio.Task[list[dict[str, Any]]]:
        def write(response: pb.ModelInferResponse, raw: Sequence[Contents]) -> dict[str, Any]:
            assert (response.model_name, response.model_version, response.id) == ("e", "1", "one")
            return {
                output.name: (list(output.shape), np.frombuffer(bytes(data), np.float32).tolist())
                for output, data in zip(response.outputs, raw, strict=True)
            }

        return asyncio.create_task(self.inference.answer(Request(message, (contents,), message.id), caller, write))

    async def answer(self, name: str, factor: float = 1.0, rows: int = 1, shape: Sequence[int] | None = None) -> None:
        """Answer the oldest job of a model: its input, times `factor`."""
        await turn()
        link = self.links[name]
        (job, _) = link.jobs[min(link.jobs)]
        assert isinstance(job, m.Infer)
        given = job.inputs[0]
        assert given.span is not None
        values = np.frombuffer(bytes(link.arena.read(given.span)), np.float32) * np.float32(factor)
        data = values.astype(np.float32).tobytes() if shape is None else bytes(4 * math.prod(shape))
        link.reply(m.TensorRef("y", "FP32", given.shape if shape is None else tuple(shape), None, data))
        await turn()


async def turn() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


async def test_answer_chain_of_models(tmp_path: Path) -> None:
    world = await World(tmp_path).serve("a", "b")
    task = world.ask()
    await world.answer("a", 2.0)
    await world.answer("b", 5.0)
    assert await task == [{"Y": ([1, 4], [0.0, 10.0, 20.0, 30.0])}]
    assert (world.statistics.inference_count, world.statistics.execution_count) == (1, 1)
    assert (world.statistics.success.count, world.statistics.fail.count) == (1, 0)
    for name in "ab":
        assert world.house.catalogue.models[name].slot.statistics.success.count == 1
        assert world.links[name].arena.taken == 0, "nothing is held in an arena between the steps"


async def test_answer_branches_run_at_the_same_time_and_unwanted_ones_not_at_all(tmp_path: Path) -> None:
    world = await World(tmp_path, DIAMOND, "Y Z").serve("a", "b", "c")
    both, one = world.ask(), world.ask(outputs=["Z"])
    await world.answer("a", 2.0)
    await world.answer("a", 3.0)
    assert (len(world.links["b"].jobs), len(world.links["c"].jobs)) == (1, 2)
    await world.answer("c", 1.0)
    await world.answer("b", 10.0)
    await world.answer("c", 1.0)
    assert await both == [{"Y": ([1, 4], [0.0, 20.0, 40.0, 60.0]), "Z": ([1, 4], [0.0, 2.0, 4.0, 6.0])}]
    assert await one == [{"Z": ([1, 4], [0.0, 3.0, 6.0, 9.0])}]


async def test_answer_batch_keeps_its_rows_and_too_many_are_refused(tmp_path: Path) -> None:
    world = await World(tmp_path, rows=8).serve("a", "b", triton=TritonConfig(max_batch_size=8))
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    task = world.ask(values)
    await world.answer("a", 2.0)
    await world.answer("b", 1.0)
    assert await task == [{"Y": ([3, 4], (values * 2).ravel().tolist())}]
    assert (world.statistics.inference_count, list(world.statistics.batches)) == (3, [3])
    with pytest.raises(InvalidTensor, match="has batch size 9, but model 'e' takes at most 8"):
        await world.ask(np.zeros((9, 4), np.float32))


async def test_answer_requests_of_ensembles_and_clients_form_one_batch(tmp_path: Path) -> None:
    triton = TritonConfig(max_batch_size=8, dynamic=DynamicBatching(max_delay=3600.0, preferred=(2,)))
    world = await World(tmp_path, rows=8).serve("a", "b", triton=triton)
    task = world.ask()
    message = pb.ModelInferRequest(model_name="a")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    direct = asyncio.create_task(
        world.inference.answer(Request(message, (INPUT.tobytes(),), message.id), CALLER, lambda response, raw: len(raw))
    )
    await turn()
    assert world.links["a"].sizes() == [2]
    task.cancel()
    direct.cancel()


async def test_answer_wrong_shape_between_the_steps_names_the_step(tmp_path: Path) -> None:
    world = await World(tmp_path).serve("a", "b")
    task = world.ask()
    await world.answer("a", shape=[2, 4])
    with pytest.raises(InvalidTensor) as caught:
        await task
    assert str(caught.value).startswith("ensemble 'e', step 1 (model 'b'): input 'x' of the model is [1, 4]")
    assert not world.links["b"].jobs
    assert world.statistics.fail.count == 1
    assert dict(world.statistics.failures) == {"InvalidTensor": 1}


async def test_answer_failed_step_fails_the_request_with_its_error(tmp_path: Path) -> None:
    world = await World(tmp_path, DIAMOND, "Y Z").serve("a", "b", "c")
    task = world.ask()
    await world.answer("a")
    world.links["b"].fail(EngineUnusable("inference failed"))
    with pytest.raises(EngineUnusable, match=r"ensemble 'e', step 1 \(model 'b'\): inference failed"):
        await task
    await turn()
    assert len(world.links["c"].abandoned) == 1, "the other branch is stopped"


async def test_answer_model_removed_between_the_steps_is_not_ready(tmp_path: Path) -> None:
    world = await World(tmp_path).serve("a", "b")
    task = world.ask()
    await turn()
    del world.house.shelf.models["b"]
    world.house.catalogue.look()
    await world.answer("a")
    with pytest.raises(NotReady, match=r"step 1 \(model 'b'\): model 'b' was removed"):
        await task
    with pytest.raises(NotReady, match="ensemble 'e' cannot be served: no model 'b'"):
        await world.ask()


async def test_answer_model_replaced_between_the_steps_is_checked_again(tmp_path: Path) -> None:
    world = await World(tmp_path).serve("a", "b")
    task = world.ask()
    await turn()
    world.shape = (1, 5)
    await world.serve("b", stamp="2")
    world.house.catalogue.models["b"].served = world.house.catalogue.models["b"].model
    await world.answer("a")
    with pytest.raises(InvalidTensor, match=r"input 'x' of the model is \[1, 5\]"):
        await task


async def test_answer_cancelled_request_stops_its_step(tmp_path: Path) -> None:
    world = await World(tmp_path).serve("a", "b")
    task = world.ask()
    await world.answer("a")
    assert len(world.links["b"].jobs) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await turn()
    assert len(world.links["b"].abandoned) == 1
    assert world.statistics.success.count == world.statistics.fail.count == 0
    assert world.house.catalogue.ensembles["e"].memory.requests == 0


async def test_answer_deadline_that_passes_between_the_steps_ends_the_request(tmp_path: Path) -> None:
    world = await World(tmp_path).serve("a", "b")
    task = world.ask(caller=Caller("unix:", expires=time.monotonic() + 0.05))
    await turn()
    await asyncio.sleep(0.06)
    await world.answer("a")
    with pytest.raises(DeadlineExceeded, match=r"step 1 \(model 'b'\)"):
        await task


async def test_answer_priority_and_timeout_apply_to_each_step(tmp_path: Path) -> None:
    policy = QueuePolicy(allow_override=True)
    triton = TritonConfig(dynamic=DynamicBatching(levels=2, default_level=2, policy=policy))
    world = await World(tmp_path).serve("a", "b", triton=triton)
    tasks = [world.ask(np.full((1, 4), index, np.float32)) for index in range(4)]
    await turn()
    urgent = world.ask(np.full((1, 4), 9, np.float32), priority=1)
    late = world.ask(timeout=1)  # microsecond
    await turn()
    waiting = world.house.catalogue.models["a"].slot.waiting
    assert waiting > 1
    await asyncio.sleep(0.001)
    order = list[float]()
    while world.links["a"].jobs:
        order.append(float(np.frombuffer(world.links["a"].sent()[0], np.float32)[0]))
        await world.answer("a")
    assert order.index(9.0) < order.index(3.0)
    with pytest.raises(DeadlineExceeded, match=r"step 0 \(model 'a'\)"):
        await late
    for task in (*tasks, urgent):
        task.cancel()


async def test_answer_full_queue_refuses_only_requests_at_their_first_step(tmp_path: Path) -> None:
    triton = TritonConfig(dynamic=DynamicBatching(policy=QueuePolicy(size=1)))
    world = await World(tmp_path).serve("a", "b", triton=triton)
    tasks = [world.ask() for _ in range(8)]
    await turn()
    refused = [task for task in tasks if task.done()]
    assert refused
    for task in refused:
        with pytest.raises(Overloaded, match=r"step 0 \(model 'a'\)"):
            await task
    left = [task for task in tasks if not task.done()]
    while not all(task.done() for task in left):
        await turn()
        for name in "ab":
            if world.links[name].jobs:
                await world.answer(name)
    assert all(task.exception() is None for task in left)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda message: message.inputs[0].shape.__setitem__(1, 5), InvalidTensor),
        (lambda message: setattr(message.inputs[0], "datatype", "INT8"), InvalidTensor),
        (lambda message: setattr(message.inputs[0], "name", "t"), InvalidTensor),
        (lambda message: message.outputs.add(name="t"), InvalidTensor),
        (lambda message: setattr(message, "model_version", "2"), NotFound),
        (lambda message: message.parameters["priority"].MergeFrom(pb.InferParameter(bool_param=True)), InvalidInput),
    ],
)
async def test_answer_invalid_request_reaches_no_model(tmp_path: Path, change: Any, error: type[EdgedError]) -> None:
    world = await World(tmp_path).serve("a", "b")
    message = pb.ModelInferRequest(model_name="e", id="one")
    message.inputs.add(name="X", datatype="FP32", shape=[1, 4])
    change(message)
    with pytest.raises(error):
        await world.send(message, INPUT.tobytes())
    assert not world.links["a"].jobs


async def test_answer_classes_have_the_labels_of_the_model(tmp_path: Path) -> None:
    world = await World(tmp_path).serve("a", "b")
    planned = world.house.catalogue.models["b"]
    assert planned.model is not None
    labelled = msgspec.structs.replace(planned.model.entry, labels={"y": ("no", "low", "some", "cat")})
    planned.served = planned.model = msgspec.structs.replace(planned.model, entry=labelled)
    message = pb.ModelInferRequest(model_name="e", id="one")
    message.inputs.add(name="X", datatype="FP32", shape=[1, 4])
    message.outputs.add(name="Y").parameters["classification"].int64_param = 1

    def write(response: pb.ModelInferResponse, raw: Sequence[Contents]) -> bytes:
        return bytes(raw[0])[4:]

    task = asyncio.create_task(world.inference.answer(Request(message, (INPUT.tobytes(),), message.id), CALLER, write))
    await world.answer("a")
    await world.answer("b")
    assert await task == [b"3.000000:3:cat"]


async def test_answer_streamed_request_has_one_final_response(tmp_path: Path) -> None:
    world = await World(tmp_path).serve("a", "b")
    message = pb.ModelInferRequest(model_name="e")
    message.inputs.add(name="X", datatype="FP32", shape=[1, 4])
    caller = Caller("unix:", patient=True, streamed=True)
    task = asyncio.create_task(
        world.inference.answer(
            Request(message, (INPUT.tobytes(),), message.id),
            caller,
            lambda response, raw: response.parameters["triton_final_response"].bool_param,
        )
    )
    await world.answer("a")
    await world.answer("b")
    assert await task == [True]


async def test_answer_trace_of_an_ensemble_has_the_traces_of_its_steps(tmp_path: Path) -> None:
    world = await World(tmp_path).serve("a", "b")
    world.tracing.change({"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": ["1"]})
    task = world.ask()
    await world.answer("a", 2.0)
    await world.answer("b", 2.0)
    await task
    await world.tracing.close()
    entries = json.loads((tmp_path / "traces" / "trace.json").read_text())
    heads = {head["model_name"]: head for head in entries if "model_name" in head}
    assert heads["e"]["request_id"] == heads["a"]["request_id"] == "one"
    assert heads["a"]["parent_id"] == heads["b"]["parent_id"] == heads["e"]["id"]
    assert "parent_id" not in heads["e"]
    tensors = {(each["id"], each["activity"]): each["tensor"] for each in entries if "tensor" in each}
    assert tensors[heads["e"]["id"], "TENSOR_QUEUE_INPUT"]["name"] == "X"
    assert tensors[heads["e"]["id"], "TENSOR_BACKEND_OUTPUT"]["data"] == "0.0,4.0,8.0,12.0"
    assert tensors[heads["b"]["id"], "TENSOR_QUEUE_INPUT"]["data"] == "0.0,2.0,4.0,6.0"
    stamps = {each["id"]: [stamp["name"] for stamp in each["timestamps"]] for each in entries if "timestamps" in each}
    assert stamps[heads["e"]["id"]] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert "COMPUTE_START" in stamps[heads["a"]["id"]]
