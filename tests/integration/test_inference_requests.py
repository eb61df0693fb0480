"""Inference requests on the wire: every datatype returns unchanged, and an invalid request gets INVALID_ARGUMENT or
another error of the client, with one line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edged.proto import open_inference_pb2 as pb
from edged.tensors import numpy_dtype, to_bytes
from tests import models, triton_models
from tests.integration import onnx_files
from tests.integration.daemon import Daemon
from tests.integration.inference_calls import infer, method, refusal, tell

pytestmark = pytest.mark.timeout(300)  # the first test waits until every model is read and open

BAD, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
NOT_UTF8 = [b"\xff\xd8\xff\xe0", b"", b"\x80 longer"]
SIXTEEN = np.arange(16, dtype=np.int32)


@pytest.fixture(scope="module")
def own() -> Iterator[Daemon]:
    daemon = Daemon(builds=False)
    triton_models.write_all(daemon.models)
    for datatype in onnx_files.DTYPES:
        onnx_files.identity(daemon.models / f"id_{datatype}.onnx", datatype)
    models.save(models.equals_text(NOT_UTF8), daemon.models / "not_utf8.onnx")
    with daemon:
        daemon.ready("not_utf8")
        for model in ("simple", "classes", "repeat_int32", "simple_sequence", *(f"id_{d}" for d in onnx_files.DTYPES)):
            daemon.ready(model)
        yield daemon


@pytest.fixture(scope="module")
def channel(own: Daemon) -> Iterator[grpc.Channel]:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(own.unix, options) as channel:
        yield channel


def simple(**parameters: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="simple", id="7")
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(SIXTEEN.tobytes())
    tell(request.parameters, **parameters)
    return request


# -- valid requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", onnx_files.DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_infer_every_datatype_returns_unchanged(channel: grpc.Channel, datatype: str, rows: int) -> None:
    if datatype == "BYTES":
        texts = [b"", b"a", "Größe".encode(), b"x" * 300] * rows
        data = bytes(to_bytes(np.array(texts, np.object_)))
    else:
        dtype = numpy_dtype(datatype)
        noise = np.random.default_rng(rows).integers(0, 256, rows * 4 * dtype.itemsize, np.uint8)
        data = (noise & 1 if datatype == "BOOL" else noise).tobytes()
    request = pb.ModelInferRequest(model_name=f"id_{datatype}", raw_input_contents=[data])
    request.inputs.add(name="x", datatype=datatype, shape=[rows, 4])
    answer = infer(channel, request)
    assert answer.raw_output_contents[0] == data
    assert [(o.name, o.datatype, list(o.shape)) for o in answer.outputs] == [("y", datatype, [rows, 4])]


@pytest.mark.parametrize("is_raw", [True, False], ids=["raw", "typed"])
def test_infer_bytes_that_are_not_utf8_reach_the_model(channel: grpc.Channel, is_raw: bool) -> None:
    request = pb.ModelInferRequest(model_name="not_utf8")
    tensor = request.inputs.add(name="x", datatype="BYTES", shape=[3])
    if is_raw:
        request.raw_input_contents.append(bytes(to_bytes(np.array(NOT_UTF8, np.object_))))
    else:
        tensor.contents.bytes_contents.extend(NOT_UTF8)
    assert infer(channel, request).raw_output_contents[0] == b"\1\1\1"


def test_infer_an_output_that_is_not_utf8_is_refused(channel: grpc.Channel) -> None:
    request = pb.ModelInferRequest(model_name="id_BYTES")
    request.inputs.add(name="x", datatype="BYTES", shape=[1, 4]).contents.bytes_contents.extend([b"\xff"] * 4)
    code, words = refusal(infer, channel, request)
    assert code is BAD
    assert "'y'" in words


def test_infer_requests_of_many_megabytes_return_unchanged(channel: grpc.Channel) -> None:
    data = np.random.default_rng(1).standard_normal(7 << 20, np.float32).tobytes()
    request = pb.ModelInferRequest(model_name="id_FP32", raw_input_contents=[data])
    request.inputs.add(name="x", datatype="FP32", shape=[len(data) // 16, 4])
    assert infer(channel, request).raw_output_contents[0] == data


def test_infer_request_parameters_and_output_options_apply(channel: grpc.Channel) -> None:
    request = simple(mine="x", priority=3, timeout=60_000_000)
    request.outputs.add(name="OUTPUT1")
    tell(request.outputs.add(name="OUTPUT0").parameters, classification=2)
    answer = infer(channel, request)
    assert answer.id == "7"
    assert [(o.name, o.datatype, list(o.shape)) for o in answer.outputs] == [
        ("OUTPUT1", "INT32", [1, 16]),
        ("OUTPUT0", "BYTES", [1, 2]),
    ]
    assert answer.raw_output_contents[0] == bytes(64)
    assert answer.raw_output_contents[1] == b"\x05\0\0\x0030:15\x05\0\0\x0028:14"
    assert not answer.parameters  # the client's own parameters are not returned


# -- invalid requests -----------------------------------------------------------------------------------------------


def output(request: pb.ModelInferRequest, name: str = "OUTPUT0", **parameters: Any) -> None:
    tell(request.outputs.add(name=name).parameters, **parameters)


def in_memory(request: pb.ModelInferRequest, **parameters: Any) -> None:
    tell(request.inputs[0].parameters, **parameters)
    del request.raw_input_contents[0]


PLACE = {"shared_memory_region": "nobody", "shared_memory_byte_size": 64}


def rows(request: pb.ModelInferRequest, *counts: int) -> None:
    for index, count in enumerate(counts):
        request.inputs[index].shape[0] = count
        request.raw_input_contents[index] = bytes(64 * count)


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda r: r.ClearField("model_name"), BAD, "names no model"),
        (lambda r: setattr(r, "model_name", "nobody"), MISSING, "'nobody'"),
        (lambda r: setattr(r, "model_version", "4"), MISSING, "version"),
        (lambda r: setattr(r, "model_version", "x"), BAD, "version"),
        (lambda r: setattr(r.inputs[1], "name", "INPUT2"), BAD, "'INPUT1'"),
        (lambda r: rows(r, 2, 1), BAD, "'INPUT1'"),
        (lambda r: rows(r, 9, 9), BAD, "batch size 9"),
        (lambda r: tell(r.parameters, priority="high"), BAD, "'priority'"),
        (lambda r: in_memory(r, **PLACE), MISSING, "'nobody'"),
        (lambda r: output(r, **PLACE), MISSING, "'nobody'"),
        (lambda r: setattr(r, "model_name", "repeat_int32"), grpc.StatusCode.UNIMPLEMENTED, "Stream"),
        (lambda r: setattr(r, "model_name", "simple_sequence"), BAD, "sequence_id"),
    ],
    ids=range(12),
)
def test_infer_invalid_request_is_refused_with_its_status(
    channel: grpc.Channel, change: Callable[[pb.ModelInferRequest], Any], code: grpc.StatusCode, words: str
) -> None:
    request = simple()
    change(request)
    found, line = refusal(infer, channel, request)
    assert found is code
    assert words in line
    assert infer(channel, simple()).raw_output_contents[1] == bytes(64)  # the daemon still serves


# -- shared memory on the wire --------------------------------------------------------------------------------------


@pytest.fixture
def region(channel: grpc.Channel) -> Iterator[Path]:
    """The file of shared memory that is registered as the region `r`, 64 bytes."""
    path = Path("/dev/shm") / f"edt_requests_{time.monotonic_ns()}"
    path.write_bytes(SIXTEEN.tobytes())
    path.chmod(0o600)
    register = pb.SystemSharedMemoryRegisterRequest(name="r", key=path.name, byte_size=64)
    method(channel, "SystemSharedMemoryRegister")(register, timeout=30)
    yield path
    method(channel, "SystemSharedMemoryUnregister")(pb.SystemSharedMemoryUnregisterRequest(), timeout=30)
    path.unlink(missing_ok=True)


def test_infer_truncated_shared_memory_fails_its_request_only(channel: grpc.Channel, region: Path) -> None:
    request = simple()
    in_memory(request, shared_memory_region="r", shared_memory_byte_size=64)
    output(request, "OUTPUT1", shared_memory_region="r", shared_memory_byte_size=64)
    assert list(infer(channel, request).raw_output_contents) == [b""]
    assert region.read_bytes() == bytes(64)
    with region.open("r+b") as file:
        file.truncate(10)
    code, words = refusal(infer, channel, request)
    assert code is BAD
    assert "10 bytes" in words
    assert region.stat().st_size == 10
    assert infer(channel, simple())


# -- deadlines and cancelling ---------------------------------------------------------------------------------------


def test_cancelled_calls_and_streams_leave_the_daemon_serving(channel: grpc.Channel) -> None:
    made = method(channel, "ModelInfer")
    for _ in range(30):
        made.future(simple(), timeout=20).cancel()
    stream = method(channel, "ModelStreamInfer")
    stop = threading.Event()

    def requests() -> Iterator[pb.ModelInferRequest]:
        while not stop.wait(0.001):
            yield simple()

    for _ in range(3):
        answers = stream(requests(), timeout=30)
        assert next(answers).infer_response.id == "7"
        answers.cancel()
    stop.set()
    assert infer(channel, simple()).id == "7"


def test_infer_message_over_the_limit_is_refused() -> None:
    daemon = Daemon(builds=False, config="max_message_mb = 1\n")
    onnx_files.identity(daemon.models / "id_FP32.onnx", "FP32")
    with daemon, grpc.insecure_channel(daemon.unix, [("grpc.max_receive_message_length", -1)]) as channel:
        daemon.ready("id_FP32")
        request = pb.ModelInferRequest(model_name="id_FP32", raw_input_contents=[bytes(1 << 19)])
        request.inputs.add(name="x", datatype="FP32", shape=[1 << 15, 4])
        assert infer(channel, request).raw_output_contents[0] == bytes(1 << 19)
        request.raw_input_contents[0] = bytes(1 << 21)
        code, words = refusal(infer, channel, request)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "more than 1048576" in words
