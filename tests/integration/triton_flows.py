"""Common uses of NVIDIA's client, as a program.

python triton_flows.py ADDRESS [FLOW...]    prints one JSON object: the name of each flow and its findings
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.utils.shared_memory as memory
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, triton_to_np_dtype

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
SECOND = np.full((1, 16), 3, np.int32)
FLOWS: dict[str, Callable[[str], Any]] = {}


def flow(function: Callable[[str], Any]) -> Callable[[str], Any]:
    FLOWS[function.__name__] = function
    return function


def tensor(name: str, values: Any, datatype: str) -> triton.InferInput:
    made = triton.InferInput(name, values.shape, datatype)
    made.set_data_from_numpy(values)
    return made


def pair(datatype: str = "INT32", first: Any = FIRST, second: Any = SECOND) -> list[triton.InferInput]:
    return [tensor("INPUT0", first, datatype), tensor("INPUT1", second, datatype)]


def is_right(answer: Any, first: Any = FIRST, second: Any = SECOND) -> bool:
    return bool(
        np.array_equal(answer.as_numpy("OUTPUT0"), first + second)
        and np.array_equal(answer.as_numpy("OUTPUT1"), first - second)
    )


def refusal(call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except InferenceServerException as error:
        return [str(error.status()), error.message()]
    return ["OK", ""]


async def status(call: Any) -> str:
    try:
        await call
    except InferenceServerException as error:
        return str(error.status())
    return "OK"


async def call_every(client: Any) -> Any:
    """Make every call of a client: one for asyncio, or an `Awaitable` one."""
    config = (await client.get_model_config("simple", as_json=True))["config"]
    await client.update_log_settings({"log_verbose_level": 0})
    await client.update_trace_settings(model_name="simple", settings={"trace_rate": "7"})
    server = await client.get_server_metadata()
    seen = {
        "live": await client.is_server_live(),
        "ready": await client.is_server_ready(),
        "model": await client.is_model_ready("simple"),
        "server": server.name,
        "extensions": list(server.extensions),
        "inputs": [(i.name, list(i.shape)) for i in (await client.get_model_metadata("simple")).inputs],
        "config": [config["name"], config["max_batch_size"]],
        "index": sorted(model.name for model in (await client.get_model_repository_index()).models),
        "statistics": (await client.get_inference_statistics("simple")).model_stats[0].name,
        "log": "log_info" in (await client.get_log_settings()).settings,
        "trace": (await client.get_trace_settings("simple")).settings["trace_rate"].value[0],
        "regions": len((await client.get_system_shared_memory_status()).regions),
        "cuda": len((await client.get_cuda_shared_memory_status()).regions),
        "cuda_register": await status(client.register_cuda_shared_memory("c", b"AAAA", 0, 64)),
        "load": await status(client.load_model("missing")),
        "unload": await status(client.unload_model("missing")),
    }
    await client.unregister_cuda_shared_memory()
    await client.unregister_system_shared_memory()
    return seen


class Awaitable:
    """A blocking client with the interface of the one for asyncio."""

    def __init__(self, client: triton.InferenceServerClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            return getattr(self.client, name)(*arguments, **options)

        return call


@flow
def every_call(address: str) -> Any:
    with triton.InferenceServerClient(address) as client:
        return asyncio.run(call_every(Awaitable(client)))


@flow
def every_call_with_asyncio(address: str) -> Any:
    async def run() -> Any:
        async with triton_aio.InferenceServerClient(address) as client:
            return await call_every(client)

    return asyncio.run(run())


def sample(datatype: str) -> Any:
    random, dtype = np.random.default_rng(7), triton_to_np_dtype(datatype)
    if datatype == "BYTES":
        return np.array([b"", b"a", "Größe".encode(), b"x" * 300] * 2, dtype=np.object_).reshape(2, 4)
    if datatype == "BOOL":
        return random.integers(0, 2, (2, 4)).astype(bool)
    if datatype.startswith("FP"):
        values = random.standard_normal((2, 4)).astype(dtype)
        values[0] = [np.nan, np.inf, -0.0, np.finfo(dtype).tiny / 2]
        return values
    bounds = np.iinfo(dtype)
    return random.integers(bounds.min, bounds.max, (2, 4), dtype=dtype, endpoint=True)


def equal(datatype: str, one: Any, other: Any) -> bool:
    """Return True if two arrays are equal bit by bit."""
    if datatype == "BYTES":
        return one.shape == other.shape and all(a == b for a, b in zip(one.ravel(), other.ravel(), strict=True))
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@flow
def every_datatype(address: str) -> Any:
    """Return for each datatype with a model whether its values return unchanged, in a call and in a stream."""
    client = triton.InferenceServerClient(address)
    index = (model.name for model in client.get_model_repository_index().models)
    seen = {}
    for name in filter(lambda name: name.startswith("id_"), index):
        datatype = name.removeprefix("id_")
        values = sample(datatype)
        inputs = [tensor("x", values, datatype)]

        def ask(client: Any, name: str = name, inputs: Any = inputs) -> None:
            for number in range(8):
                client.async_stream_infer(name, inputs, request_id=str(number))

        answers = [client.infer(name, inputs, request_id="0"), *(result for result, _ in collected(address, ask, 8))]
        are_equal = all(equal(datatype, answer.as_numpy("y"), values) for answer in answers)
        seen[datatype] = [are_equal, [answer.get_response().id for answer in answers]]
    return seen


@flow
def figures(address: str) -> Any:
    """Return statistics, trace settings and log settings."""
    client, model, inputs = triton.InferenceServerClient(address), "id_FP32", [tensor("x", sample("FP32"), "FP32")]

    def values(answer: Any) -> dict[str, list[str]]:
        return {name: list(setting.value) for name, setting in answer.settings.items()}

    def count() -> int:
        return int(client.get_inference_statistics(model).model_stats[0].inference_stats.success.count)

    before = count()
    for _ in range(6):
        client.infer(model, inputs)
    wanted = {"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_file": "client.json", "trace_count": "3"}
    seen = {"counted": count() - before, "trace set": values(client.update_trace_settings(model, wanted))}
    for number in range(8):
        client.infer(model, inputs, request_id=str(number))
    return seen | {
        "trace after": values(client.get_trace_settings(model)),
        "trace cleared": values(client.update_trace_settings(model, dict.fromkeys(wanted))),
        "trace of all": values(client.get_trace_settings()),
        "statistics of": sorted(each.name for each in client.get_inference_statistics().model_stats),
        "log set": client.update_log_settings({"log_info": False, "log_verbose_level": 1}, as_json=True)["settings"],
        "log reset": client.update_log_settings({"log_info": True, "log_verbose_level": 0}, as_json=True)["settings"],
        "log": client.get_log_settings(as_json=True)["settings"],
    }


@flow
def single(address: str) -> Any:
    client = triton.InferenceServerClient(address)
    answer = client.infer("simple", pair(), request_id="seven")
    only = client.infer("simple", pair(), outputs=[triton.InferRequestedOutput("OUTPUT1")])
    options = {"priority": 1, "timeout": 20_000_000, "parameters": {"mine": 1, "yours": "x", "real": 0.5}}
    return {
        "right": is_right(answer),
        "id": answer.get_response().id,
        "version": answer.get_response().model_version,
        "only": [only.as_numpy("OUTPUT0") is None, only.as_numpy("OUTPUT1").tolist() == (FIRST - SECOND).tolist()],
        "options": is_right(client.infer("simple", pair(), **options)),
        "in time": is_right(client.infer("simple", pair(), client_timeout=20)),
        "compressed": refusal(lambda: client.infer("simple", pair(), compression_algorithm="gzip")),
        "unknown": refusal(lambda: client.infer("missing", pair())),
    }


@flow
def asynchronous(address: str) -> Any:
    client = triton.InferenceServerClient(address)
    answers: queue.Queue[Any] = queue.Queue()
    for number in range(20):
        client.async_infer("simple", pair(), lambda result, error: answers.put((result, error)), request_id=str(number))
    seen = [answers.get(timeout=30) for _ in range(20)]
    return {
        "errors": [str(error) for _, error in seen if error is not None],
        "ids": sorted(int(result.get_response().id) for result, _ in seen),
        "right": all(is_right(result) for result, _ in seen),
    }


@flow
def with_asyncio(address: str) -> Any:
    async def run() -> Any:
        async with triton_aio.InferenceServerClient(address) as client:
            answers = await asyncio.gather(*(client.infer("simple", pair()) for _ in range(10)))

            async def requests() -> AsyncIterator[dict[str, Any]]:
                for number in range(5):
                    yield {"model_name": "simple", "inputs": pair(), "request_id": str(number)}
                yield {"model_name": "missing", "inputs": pair(), "request_id": "lost"}

            streamed = [each async for each in client.stream_infer(requests())]
            return {
                "right": all(map(is_right, answers)),
                "ids": [result.get_response().id for result, _ in streamed[:5]],
                "streamed": all(is_right(result) for result, _ in streamed[:5]),
                "lost": streamed[5][1].message(),
            }

    return asyncio.run(run())


@flow
def keepalive_and_channel_options(address: str) -> Any:
    keepalive = triton.KeepAliveOptions(
        keepalive_time_ms=100, keepalive_timeout_ms=20000, keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )  # fmt: skip
    client = triton.InferenceServerClient(address, keepalive_options=keepalive)
    right = is_right(client.infer("simple", pair()))
    client.start_stream(lambda result, error: None)
    time.sleep(1.5)  # for a dozen pings
    again = is_right(client.infer("simple", pair()))
    client.stop_stream()
    custom = triton.InferenceServerClient(address, channel_args=[("grpc.primary_user_agent", "mine")])
    return {"right": right, "again": again, "custom": is_right(custom.infer("simple", pair()))}


@flow
def reused_objects(address: str) -> Any:
    client = triton.InferenceServerClient(address)
    inputs, outputs = pair(), [triton.InferRequestedOutput("OUTPUT0"), triton.InferRequestedOutput("OUTPUT1")]
    right = [is_right(client.infer("simple", inputs, outputs=outputs)) for _ in range(3)]
    inputs[0].set_data_from_numpy(SECOND)
    right.append(is_right(client.infer("simple", inputs, outputs=outputs), SECOND))
    return right


@flow
def other_datatypes(address: str) -> Any:
    client = triton.InferenceServerClient(address)
    small = FIRST.astype(np.int8), SECOND.astype(np.int8)
    numbers = [np.array([[str(v) for v in each.ravel()]], np.object_) for each in (FIRST, SECOND)]
    texts = client.infer("simple_string", pair("BYTES", *numbers))
    odd = np.array([["", "Größe", "a\0b", "x" * 5000]], np.object_)
    same = client.infer("simple_identity", [tensor("INPUT0", odd, "BYTES")]).as_numpy("OUTPUT0")
    return {
        "int8": is_right(client.infer("simple_int8", pair("INT8", *small)), *small),
        "sum": [int(v) for v in texts.as_numpy("OUTPUT0").ravel()] == (FIRST + SECOND).ravel().tolist(),
        "identity": [v.decode() for v in same.ravel()] == odd.ravel().tolist(),
    }


@flow
def typed_contents(address: str) -> Any:
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = messages.ModelInferRequest(model_name="simple")
        for name, values in (("INPUT0", FIRST), ("INPUT1", SECOND)):
            made = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
            made.contents.int_contents.extend(values.ravel().tolist())
        response = stub.ModelInfer(request, timeout=20)
        return np.frombuffer(response.raw_output_contents[0], np.int32).tolist()


@flow
def classification(address: str) -> Any:
    client = triton.InferenceServerClient(address)
    scores = np.array([[0.25, 0.5, 0.125, 0.75], [4, 3, 2, 1]], np.float32)
    wanted = [triton.InferRequestedOutput("probabilities", class_count=3)]
    answer = client.infer("classes", [tensor("scores", scores, "FP32")], outputs=wanted)
    return [[text.decode() for text in row] for row in answer.as_numpy("probabilities")]


def collected(address: str, ask: Callable[[Any], None], count: int) -> list[Any]:
    """Return `count` responses of a stream to which `ask` sends requests."""
    client = triton.InferenceServerClient(address)
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    ask(client)
    seen = [answers.get(timeout=30) for _ in range(count)]
    client.stop_stream()
    return seen


@flow
def sequences(address: str) -> Any:
    values = [0, 11, 7, 5, 3, 2, 0, 1]

    def ask(client: Any) -> None:
        for number, value in enumerate(values):
            for identifier, sign in ((1001, 1), ("mine", -1)):
                client.async_stream_infer(
                    "simple_sequence",
                    [tensor("INPUT", np.array([[sign * value]], np.int32), "INT32")],
                    request_id=f"{identifier}",
                    sequence_id=identifier,
                    sequence_start=number == 0,
                    sequence_end=number == len(values) - 1,
                )

    seen = collected(address, ask, 2 * len(values))
    sums: dict[str, list[int]] = {}
    for result, error in seen:
        assert error is None, error
        sums.setdefault(result.get_response().id, []).append(int(result.as_numpy("OUTPUT")[0, 0]))
    client = triton.InferenceServerClient(address)
    one = [tensor("INPUT", np.array([[1]], np.int32), "INT32")]
    return {
        "sums": sums,
        "outputs": [output.name for output in seen[0][0].get_response().outputs],
        "after the end": refusal(lambda: client.infer("simple_sequence", one, sequence_id=1001)),
        "without an id": refusal(lambda: client.infer("simple_sequence", one)),
    }


@flow
def decoupled(address: str) -> Any:
    values = np.array([4, 2, 0, 1], np.int32)
    inputs = [
        tensor("IN", values, "INT32"),
        tensor("DELAY", np.zeros(4, np.uint32), "UINT32"),
        tensor("WAIT", np.zeros(1, np.uint32), "UINT32"),
    ]

    def ask(empty_final: bool) -> Callable[[Any], None]:
        return lambda client: client.async_stream_infer(
            "repeat_int32", inputs, request_id="r", enable_empty_final_response=empty_final
        )

    def reported(seen: list[Any]) -> Any:
        return [
            [
                [int(v) for name in ("OUT", "IDX") for v in result.as_numpy(name)]
                if result.get_response().outputs
                else [],
                result.get_response().parameters["triton_final_response"].bool_param,
                result.get_response().id,
            ]
            for result, error in seen
            if error is None
        ]

    client = triton.InferenceServerClient(address)
    return {
        "plain": reported(collected(address, ask(False), 4)),
        "with an empty end": reported(collected(address, ask(True), 5)),
        "unary": refusal(lambda: client.infer("repeat_int32", inputs)),
    }


@flow
def shared_memory(address: str) -> Any:
    client = triton.InferenceServerClient(address)
    size = FIRST.nbytes
    given = memory.create_shared_memory_region("given", "/edt_given", 2 * size)
    taken = memory.create_shared_memory_region("taken", "/edt_taken", 2 * size)
    try:
        memory.set_shared_memory_region(given, [FIRST, SECOND])
        client.register_system_shared_memory("given", "/edt_given", 2 * size)
        client.register_system_shared_memory("taken", "/edt_taken", 2 * size)
        inputs = [triton.InferInput(f"INPUT{index}", [1, 16], "INT32") for index in (0, 1)]
        outputs = [triton.InferRequestedOutput(f"OUTPUT{index}") for index in (0, 1)]
        for index, each in enumerate((*inputs, *outputs)):
            each.set_shared_memory("given" if index < 2 else "taken", size, offset=index % 2 * size)
        answer = client.infer("simple", inputs, outputs=outputs)
        found = [memory.get_contents_as_numpy(taken, np.int32, [1, 16], offset) for offset in (0, size)]
        right = np.array_equal(found[0], FIRST + SECOND) and np.array_equal(found[1], FIRST - SECOND)
        mixed = client.infer("simple", [inputs[0], tensor("INPUT1", SECOND, "INT32")])
        status = client.get_system_shared_memory_status(as_json=True)["regions"]
        outputs[0].set_shared_memory("taken", size - 4)
        return {
            "right": bool(right),
            "raw": [len(entry) for entry in answer.get_response().raw_output_contents],
            "mixed": is_right(mixed),
            "status": sorted((name, region["key"], region["byte_size"]) for name, region in status.items()),
            "twice": refusal(lambda: client.register_system_shared_memory("given", "/edt_given", size)),
            "small": refusal(lambda: client.infer("simple", inputs, outputs=outputs[:1])),
            "gone": [
                client.unregister_system_shared_memory("given"),
                refusal(lambda: client.infer("simple", inputs)),
                client.unregister_system_shared_memory("given"),
            ],
            "all": [client.unregister_system_shared_memory(), len(client.get_system_shared_memory_status().regions)],
        }
    finally:
        client.unregister_system_shared_memory()
        memory.destroy_shared_memory_region(given)
        memory.destroy_shared_memory_region(taken)


@flow
def ensemble(address: str) -> Any:
    """Twice `simple`, one after the other: C = 2 A, D = 2 B. In a call, in a stream, and through shared memory."""
    client, size = triton.InferenceServerClient(address), FIRST.nbytes
    inputs = [tensor("A", FIRST, "INT32"), tensor("B", SECOND, "INT32")]
    answer = client.infer("ensemble", inputs, request_id="seven", parameters={"mine": 1}, timeout=10**7)
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("ensemble", inputs, request_id="eight")
    streamed, error = answers.get(timeout=60)
    client.stop_stream()
    config = client.get_model_config("ensemble", as_json=True)["config"]
    given = memory.create_shared_memory_region("given", "/edt_ensemble_given", 2 * size)
    taken = memory.create_shared_memory_region("taken", "/edt_ensemble_taken", size)
    try:
        memory.set_shared_memory_region(given, [FIRST, SECOND])
        client.register_system_shared_memory("given", "/edt_ensemble_given", 2 * size)
        client.register_system_shared_memory("taken", "/edt_ensemble_taken", size)
        shared = [triton.InferInput(name, [1, 16], "INT32") for name in "AB"]
        for index, each in enumerate(shared):
            each.set_shared_memory("given", size, offset=index * size)
        output = triton.InferRequestedOutput("D")
        output.set_shared_memory("taken", size)
        client.infer("ensemble", shared, outputs=[output])
        in_memory = memory.get_contents_as_numpy(taken, np.int32, [1, 16]).tolist()
    finally:
        client.unregister_system_shared_memory()
        memory.destroy_shared_memory_region(given)
        memory.destroy_shared_memory_region(taken)
    classes = client.infer("ensemble", inputs, outputs=[triton.InferRequestedOutput("C", class_count=1)])
    return {
        "ready": client.is_model_ready("ensemble"),
        "C": answer.as_numpy("C").tolist(),
        "D": answer.as_numpy("D").tolist(),
        "id": answer.get_response().id,
        "streamed": [str(error), streamed.as_numpy("C").tolist(), streamed.get_response().id],
        "config": [config["platform"], [each["model_name"] for each in config["ensemble_scheduling"]["step"]]],
        "shapes": [list(each.shape) for each in client.get_model_metadata("ensemble").inputs],
        "shared": in_memory,
        "classes": [text.decode() for text in classes.as_numpy("C").ravel()],
        "wrong": refusal(lambda: client.infer("ensemble", inputs[:1])),
    }


@flow
def strings_in_shared_memory(address: str) -> Any:
    client = triton.InferenceServerClient(address)
    texts = np.array([["a", "", "Größe"]], np.object_)
    data = serialize_byte_tensor(texts)
    size = len(data.item())
    given = memory.create_shared_memory_region("texts", "/edt_texts", size)
    try:
        memory.set_shared_memory_region(given, [data])
        client.register_system_shared_memory("texts", "/edt_texts", size)
        made = triton.InferInput("INPUT0", [1, 3], "BYTES")
        made.set_shared_memory("texts", size)
        answer = client.infer("simple_identity", [made]).as_numpy("OUTPUT0")
        return [text.decode() for text in answer.ravel()]
    finally:
        client.unregister_system_shared_memory()
        memory.destroy_shared_memory_region(given)


@flow
def streams_that_fail(address: str) -> Any:
    def ask(client: Any) -> None:
        client.async_stream_infer("missing", pair(), request_id="lost")
        client.async_stream_infer("simple", pair(), request_id="found")

    lost, found = collected(address, ask, 2)
    client = triton.InferenceServerClient(address)
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error), headers={"triton_grpc_error": "true"})
    client.async_stream_infer("missing", pair())
    error = answers.get(timeout=30)
    client.stop_stream(cancel_requests=True)
    return {"lost": lost[1].message(), "found": is_right(found[0]), "status": [str(error.status()), error.message()]}


def main(address: str, wanted: list[str]) -> None:
    print(json.dumps({name: outcome(FLOWS[name], address) for name in wanted or FLOWS}))


def outcome(function: Callable[[str], Any], address: str) -> Any:
    """Return the findings of a flow, or its traceback."""
    try:
        return function(address)
    except Exception:
        return {"failed": traceback.format_exc()[-3000:]}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
