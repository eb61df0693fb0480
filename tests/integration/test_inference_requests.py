"""Requests as they arrive on the wire: every datatype comes back as it went, and whatever is wrong with one is its
sender's fault, told in one line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edged.proto import open_inference_pb2 as pb
from edged.raw_contents import to_bytes
from edged.tensors import numpy_dtype
from tests import models, triton_models
from tests.integration import onnx_files
from tests.integration.daemon import Daemon

pytestmark = pytest.mark.timeout(300)  # the first test of all waits for every model to be read and opened

SERVICE = "/inference.GRPCInferenceService/"
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


def call(channel: grpc.Channel, method: str, request: Any, response: Any, timeout: float = 30) -> Any:
    made = channel.unary_unary(SERVICE + method, type(request).SerializeToString, response.FromString)
    return made(request, timeout=timeout)


def infer(channel: grpc.Channel, request: pb.ModelInferRequest, timeout: float = 30) -> pb.ModelInferResponse:
    answer: pb.ModelInferResponse = call(channel, "ModelInfer", request, pb.ModelInferResponse, timeout)
    return answer


def simple(**parameters: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="simple", id="7")
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(SIXTEEN.tobytes())
    tell(request.parameters, **parameters)
    return request


def tell(parameters: Any, **values: Any) -> None:
    fields = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for key, value in values.items():
        setattr(parameters[key], fields[type(value)], value)


# -- what is right --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", onnx_files.DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_every_datatype_comes_back_bit_by_bit(channel: grpc.Channel, datatype: str, rows: int) -> None:
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
    with pytest.raises(grpc.RpcError) as raised:
        infer(channel, request)
    assert raised.value.code() == BAD
    assert "'y'" in raised.value.details()


def test_requests_of_many_megabytes_come_back_whole(channel: grpc.Channel) -> None:
    data = np.random.default_rng(1).standard_normal(7 << 20, np.float32).tobytes()
    request = pb.ModelInferRequest(model_name="id_FP32", raw_input_contents=[data])
    request.inputs.add(name="x", datatype="FP32", shape=[len(data) // 16, 4])
    assert infer(channel, request).raw_output_contents[0] == data


def test_inputs_and_outputs_may_each_have_their_way(channel: grpc.Channel) -> None:
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
    assert not answer.parameters  # what clients say for themselves is not told back


# -- what is wrong --------------------------------------------------------------------------------------------------


def output(request: pb.ModelInferRequest, name: str = "OUTPUT0", **parameters: Any) -> None:
    tell(request.outputs.add(name=name).parameters, **parameters)


def in_memory(request: pb.ModelInferRequest, **parameters: Any) -> None:
    tell(request.inputs[0].parameters, **parameters)
    del request.raw_input_contents[0]


PLACE = {"shared_memory_region": "nobody", "shared_memory_byte_size": 64}
WRONG: dict[str, tuple[Callable[[pb.ModelInferRequest], Any], grpc.StatusCode, str]] = {
    "no model": (lambda r: r.ClearField("model_name"), BAD, "names no model"),
    "an unknown model": (lambda r: setattr(r, "model_name", "nobody"), MISSING, "'nobody'"),
    "an unknown version": (lambda r: setattr(r, "model_version", "4"), MISSING, "version"),
    "no version at all": (lambda r: setattr(r, "model_version", "x"), BAD, "version"),
    "an unknown input": (lambda r: setattr(r.inputs[1], "name", "INPUT2"), BAD, "'INPUT1' is missing"),
    "an input twice": (lambda r: setattr(r.inputs[1], "name", "INPUT0"), BAD, "more than once"),
    "an input too many": (lambda r: r.inputs.add(name="x", datatype="FP32"), BAD, "'x'"),
    "a missing input": (lambda r: (r.inputs.pop(), r.raw_input_contents.pop()), BAD, "'INPUT1' is missing"),
    "a byte less": (lambda r: r.raw_input_contents.__setitem__(0, bytes(63)), BAD, "holds 63 bytes"),
    "another dtype": (lambda r: setattr(r.inputs[0], "datatype", "UINT32"), BAD, "is INT32"),
    "a negative dimension": (lambda r: r.inputs[0].shape.__setitem__(0, -1), BAD, "impossible shape"),
    "an overflow": (lambda r: r.inputs[0].shape.__setitem__(0, 2**62), BAD, "impossible shape"),
    "unequal rows": (
        lambda r: (r.inputs[0].shape.__setitem__(0, 2), r.raw_input_contents.__setitem__(0, bytes(128))),
        BAD,
        "input 'INPUT1' is [1, 16], and its dimension 0 ('n') must equal that of input 'INPUT0', [2, 16]",
    ),
    "too many rows": (
        lambda r: [
            (r.inputs[i].shape.__setitem__(0, 9), r.raw_input_contents.__setitem__(i, bytes(9 * 64))) for i in (0, 1)
        ],
        BAD,
        "takes 8 at a time",
    ),
    "raw and typed": (lambda r: r.inputs[0].contents.int_contents.extend([1] * 16), BAD, "raw and typed"),
    "too few raw contents": (lambda r: r.raw_input_contents.pop(), BAD, "2 inputs but 1 raw"),
    "too many raw contents": (lambda r: r.raw_input_contents.append(b""), BAD, "2 inputs but 3 raw"),
    "an unknown output": (lambda r: output(r, "OUTPUT2"), BAD, "'OUTPUT2'"),
    "a reserved parameter": (lambda r: tell(r.parameters, triton_x=1), BAD, "reserved"),
    "a parameter of another kind": (lambda r: tell(r.parameters, priority="high"), BAD, "'priority'"),
    "a negative timeout": (lambda r: tell(r.parameters, timeout=-1), BAD, "'timeout'"),
    "classes of a negative number": (lambda r: output(r, classification=-1), BAD, "'classification'"),
    "classes in shared memory": (lambda r: output(r, classification=1, **PLACE), BAD, "cannot be classified"),
    "an unknown region": (lambda r: in_memory(r, **PLACE), MISSING, "'nobody'"),
    "an unknown region for an output": (lambda r: output(r, **PLACE), MISSING, "'nobody'"),
    "a region without a size": (lambda r: in_memory(r, shared_memory_region="nobody"), BAD, "byte_size"),
    "contents beside a region": (lambda r: tell(r.inputs[0].parameters, **PLACE), BAD, "1 inputs"),
    "a decoupled model": (lambda r: setattr(r, "model_name", "repeat_int32"), grpc.StatusCode.UNIMPLEMENTED, "Stream"),
    "no sequence": (lambda r: setattr(r, "model_name", "simple_sequence"), BAD, "sequence_id"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_request_is_its_senders_fault(channel: grpc.Channel, what: str) -> None:
    change, code, words = WRONG[what]
    request = simple()
    change(request)
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, request)
    assert caught.value.code() is code
    told = caught.value.details()
    assert words in told
    assert "\n" not in told
    assert len(told) < 400
    assert infer(channel, simple()).raw_output_contents[1] == bytes(64)  # and it serves on


def test_bytes_that_are_no_request_are_refused(channel: grpc.Channel) -> None:
    ask = channel.unary_unary(SERVICE + "ModelInfer", lambda data: data)
    for data in (
        b"\xff\xff\xff\xff",
        simple().SerializeToString()[:-3],
        b"\x3a" + b"\xff" * 9 + b"\x01" + bytes(1 << 16),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            ask(data, timeout=20)
        assert caught.value.code() is BAD
        assert "as ModelInferRequest" in caught.value.details()


ANY = st.one_of(st.booleans(), st.integers(-3, 2**40), st.text(max_size=3), st.floats(allow_nan=False))
SAID = ["sequence_id", "sequence_start", "priority", "timeout", "classification", "triton_x", "shared_memory_offset"]
KEYS = st.sampled_from([*SAID, *PLACE])
NAMES = st.sampled_from(["INPUT0", "INPUT1", "OUTPUT0", "scores", "IN", ""])
PARAMETERS = st.dictionaries(KEYS, ANY, max_size=2)


@given(
    st.sampled_from(["simple", "classes", "repeat_int32", "simple_sequence"]),
    st.lists(
        st.tuples(NAMES, st.sampled_from(["INT32", "FP32", ""]), st.lists(st.integers(-1, 17), max_size=3), PARAMETERS)
    ),
    st.lists(st.tuples(NAMES, PARAMETERS), max_size=2),
    st.lists(st.binary(max_size=70), max_size=3),
    PARAMETERS,
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_is_ever_the_daemons_fault(
    channel: grpc.Channel, model: str, inputs: Any, outputs: Any, raw: list[bytes], parameters: dict[str, Any]
) -> None:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=raw)
    for name, datatype, shape, said in inputs:
        tell(request.inputs.add(name=name, datatype=datatype, shape=shape).parameters, **said)
    for name, said in outputs:
        tell(request.outputs.add(name=name).parameters, **said)
    tell(request.parameters, **parameters)
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, request)
    assert caught.value.code() in (BAD, MISSING, grpc.StatusCode.UNIMPLEMENTED)


# -- shared memory on the wire --------------------------------------------------------------------------------------


@pytest.fixture
def region(channel: grpc.Channel) -> Iterator[Path]:
    """The object behind the region `r` of 64 bytes."""
    path = Path("/dev/shm") / f"edt_requests_{time.monotonic_ns()}"
    path.write_bytes(SIXTEEN.tobytes())
    path.chmod(0o600)
    register(channel, "r", path.name, 0, 64)
    yield path
    call(channel, "SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(),
         pb.SystemSharedMemoryUnregisterResponse)  # fmt: skip
    path.unlink(missing_ok=True)


def register(channel: grpc.Channel, name: str, key: str, offset: int, size: int) -> None:
    request = pb.SystemSharedMemoryRegisterRequest(name=name, key=key, offset=offset, byte_size=size)
    call(channel, "SystemSharedMemoryRegister", request, pb.SystemSharedMemoryRegisterResponse)


def refused(code: grpc.StatusCode, function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        function(*arguments)
    assert caught.value.code() is code
    return str(caught.value.details())


def test_memory_that_is_cut_off_spoils_the_request_that_uses_it_and_nothing_else(
    channel: grpc.Channel, region: Path
) -> None:
    request = simple()
    in_memory(request, shared_memory_region="r", shared_memory_byte_size=64)
    output(request, "OUTPUT1", shared_memory_region="r", shared_memory_byte_size=64)
    assert list(infer(channel, request).raw_output_contents) == [b""]
    assert region.read_bytes() == bytes(64)
    with region.open("r+b") as file:
        file.truncate(10)
    assert "which has 10" in refused(BAD, infer, channel, request)
    assert region.stat().st_size == 10
    assert infer(channel, simple())


def test_an_output_that_does_not_fit_its_place_is_refused_and_writes_nothing(
    channel: grpc.Channel, region: Path
) -> None:
    request = simple()
    output(request, "OUTPUT1", shared_memory_region="r", shared_memory_byte_size=60)
    assert "has 64 bytes, its place" in refused(BAD, infer, channel, request)
    output(request, "OUTPUT0", shared_memory_region="r", shared_memory_byte_size=64, shared_memory_offset=1)
    del request.outputs[0]
    assert "are not in shared memory 'r'" in refused(BAD, infer, channel, request)
    assert region.read_bytes() == SIXTEEN.tobytes()


@pytest.mark.parametrize("key", ["/../etc/passwd", "/etc/passwd", "../shm/x", "", "/", "nobody"])
def test_only_objects_in_the_folder_of_shared_memory_can_be_registered(channel: grpc.Channel, key: str) -> None:
    assert "shared memory" in refused(BAD, register, channel, "x", key, 0, 8)


def test_a_region_larger_than_its_object_is_refused(channel: grpc.Channel, region: Path) -> None:
    assert "which has 64" in refused(BAD, register, channel, "s", region.name, 0, 65)
    assert "registered already" in refused(grpc.StatusCode.ALREADY_EXISTS, register, channel, "r", region.name, 0, 8)
    status = call(channel, "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="r"),
                  pb.SystemSharedMemoryStatusResponse)  # fmt: skip
    assert status.regions["r"].key == region.name
    unknown = pb.SystemSharedMemoryStatusRequest(name="s")
    response = pb.SystemSharedMemoryStatusResponse
    assert "'s'" in refused(MISSING, call, channel, "SystemSharedMemoryStatus", unknown, response)


# -- deadlines and cancelling ---------------------------------------------------------------------------------------


def test_timeout_of_a_request_counts_only_with_a_queue_policy(channel: grpc.Channel) -> None:
    assert infer(channel, simple(timeout=1)).raw_output_contents


def test_cancelled_calls_and_streams_leave_the_daemon_serving(channel: grpc.Channel) -> None:
    made = channel.unary_unary(
        SERVICE + "ModelInfer", pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
    )
    for _ in range(30):
        made.future(simple(), timeout=20).cancel()
    stream = channel.stream_stream(
        SERVICE + "ModelStreamInfer", pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
    )
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


def test_a_message_larger_than_the_daemon_takes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "edged.toml").write_text("max_message_mb = 1\n")
    daemon = Daemon("--config", str(tmp_path / "edged.toml"), builds=False)
    onnx_files.identity(daemon.models / "id_FP32.onnx", "FP32")
    with daemon, grpc.insecure_channel(daemon.unix, [("grpc.max_receive_message_length", -1)]) as channel:
        daemon.ready("id_FP32")
        request = pb.ModelInferRequest(model_name="id_FP32", raw_input_contents=[bytes(1 << 19)])
        request.inputs.add(name="x", datatype="FP32", shape=[1 << 15, 4])
        assert infer(channel, request).raw_output_contents[0] == bytes(1 << 19)
        request.raw_input_contents[0] = bytes(1 << 21)
        assert "larger than max" in refused(grpc.StatusCode.RESOURCE_EXHAUSTED, infer, channel, request)
