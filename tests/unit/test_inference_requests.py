"""Requests of the Open Inference Protocol: what is right comes through, what is wrong is refused by name."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edged.api.grpc import wire
from edged.api.inference.requests import (
    Bounds,
    Options,
    Place,
    RequestedOutput,
    options,
    outputs_of,
    place,
    requested_outputs,
)
from edged.api.inference.requests import inputs_of as checked
from edged.backends.contract import Signature
from edged.backends.profile import Profile, Range
from edged.errors import InvalidInput, InvalidTensor
from edged.proto import open_inference_pb2 as pb
from edged.raw_contents import to_array, to_bytes
from edged.serving.work import InputTensor
from edged.tensors import DATATYPES, Array, TensorSpec, numpy_dtype

TYPED = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
TWO = Signature(
    (TensorSpec("image", "FP32", ("n", 4)), TensorSpec("mode", "INT8", (2,))),
    (TensorSpec("boxes", "FP32", ("n", 4)), TensorSpec("scores", "FP32", ("n",))),
)
IMAGE, MODE = struct.pack("<4f", 1, 2, 3, 4), b"\1\xff"


def inputs_of(
    request: pb.ModelInferRequest,
    signature: Signature,
    profile: Profile = Profile(),  # noqa: B008 - it is frozen
) -> tuple[InputTensor, ...]:
    """What a request holds, however it was read."""
    return checked(wire.Request.of(request), signature, Bounds(profile))


def test_inputs_of_request_may_give_or_leave_out_what_has_a_default() -> None:
    default = (TensorSpec("w", "FP32", (2,)),)
    request = raw_request("FP32", (1,), bytes(4))
    assert [each.name for each in checked(wire.Request.of(request), one("FP32", 1), optional=default)] == ["x"]
    request.inputs.add(name="w", datatype="FP32", shape=(2,))
    request.raw_input_contents.append(bytes(8))
    assert [each.name for each in checked(wire.Request.of(request), one("FP32", 1), optional=default)] == ["x", "w"]
    request.inputs[1].shape[0] = 3
    with pytest.raises(InvalidTensor, match="'w'"):
        checked(wire.Request.of(request), one("FP32", 1), optional=default)
    with pytest.raises(InvalidTensor, match="no input 'w'"):
        checked(wire.Request.of(request), one("FP32", 1))


def one(datatype: str, *shape: int | str) -> Signature:
    return Signature((TensorSpec("x", datatype, shape),), ())


def raw_request(datatype: str, shape: tuple[int, ...], data: bytes, name: str = "x") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest()
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(data)
    return request


def typed_request(datatype: str, shape: tuple[int, ...], values: list[object], field: str = "") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest()
    tensor = request.inputs.add(name="x", datatype=datatype, shape=shape)
    getattr(tensor.contents, field or TYPED[datatype]).extend(values)
    return request


def two() -> pb.ModelInferRequest:
    request = pb.ModelInferRequest()
    request.inputs.add(name="image", datatype="FP32", shape=[1, 4])
    request.inputs.add(name="mode", datatype="INT8", shape=[2])
    request.raw_input_contents.extend([IMAGE, MODE])
    return request


def all_arrays(request: pb.ModelInferRequest, signature: Signature) -> list[Array]:
    tensors = inputs_of(request, signature)
    assert all(isinstance(tensor.data, bytes | memoryview) for tensor in tensors)
    return [to_array(t.name, t.datatype, t.shape, t.data) for t in tensors]


def read(request: pb.ModelInferRequest, signature: Signature) -> Array:
    """The one input as the engine host reads it."""
    (array,) = all_arrays(request, signature)
    return array


def refused(request: pb.ModelInferRequest, signature: Signature, *words: str) -> None:
    with pytest.raises(InvalidTensor) as raised:
        all_arrays(request, signature)
    for word in words:
        assert word in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


@given(st.sampled_from(DATATYPES), st.data())
def test_a_right_tensor_of_any_datatype_comes_through_and_typed_equals_raw(datatype: str, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    if datatype == "BYTES":
        array = np.empty(shape, np.object_)
        array.ravel()[:] = data.draw(st.lists(st.binary(max_size=4), min_size=array.size, max_size=array.size))
    else:
        dtype = numpy_dtype(datatype)
        elements = st.floats(width=32, allow_nan=False) if datatype == "FP32" else None
        array = data.draw(hnp.arrays(dtype, shape, elements=elements))
    contents = bytes(to_bytes(array))
    signature = one(datatype, *(f"d{axis}" for axis in range(len(shape))))
    raw = read(raw_request(datatype, shape, contents), signature)
    assert raw.dtype == array.dtype
    assert raw.shape == shape
    assert bytes(to_bytes(raw)) == contents
    if datatype in TYPED:
        typed = typed_request(datatype, shape, array.ravel().tolist())
        assert bytes(to_bytes(read(typed, signature))) == contents


def test_inputs_come_in_the_order_of_the_request_with_the_names_of_the_model() -> None:
    request = two()
    assert [(t.name, t.datatype, t.shape, t.data) for t in inputs_of(request, TWO)] == [
        ("image", "FP32", (1, 4), IMAGE),
        ("mode", "INT8", (2,), MODE),
    ]


WRONG: dict[str, tuple[Callable[[pb.ModelInferRequest], object], str]] = {
    "unknown": (lambda r: (r.inputs.add(name="more", datatype="FP32"), r.raw_input_contents.append(b"")), "'more'"),
    "duplicate": (
        lambda r: (r.inputs.add().CopyFrom(r.inputs[1]), r.raw_input_contents.append(MODE)),
        "'mode'",
    ),
    "missing": (lambda r: (r.inputs.pop(), r.raw_input_contents.pop()), "'mode'"),
    "misspelt": (lambda r: setattr(r.inputs[0], "name", "Image"), "'image'"),
    "no inputs at all": (lambda r: (r.ClearField("inputs"), r.ClearField("raw_input_contents")), "'image'"),
    "a byte less": (lambda r: r.raw_input_contents.__setitem__(0, IMAGE[:-1]), "'image' holds 15 bytes"),
    "a byte more": (lambda r: r.raw_input_contents.__setitem__(1, MODE + b"x"), "'mode' holds 3 bytes"),
    "nothing": (lambda r: r.raw_input_contents.__setitem__(0, b""), "'image' holds 0 bytes"),
    "another dtype": (lambda r: setattr(r.inputs[1], "datatype", "UINT8"), "'mode' is INT8"),
    "no dtype": (lambda r: setattr(r.inputs[1], "datatype", ""), "'mode' is INT8"),
    "a dtype nobody knows": (lambda r: setattr(r.inputs[1], "datatype", "FP8" * 100), "'mode' is INT8"),
    "another rank": (lambda r: r.inputs[0].shape.append(1), "'image'"),
    "no shape": (lambda r: r.inputs[0].ClearField("shape"), "'image'"),
    "another size": (lambda r: r.inputs[0].shape.__setitem__(1, 5), "'image'"),
    "a negative size": (lambda r: r.inputs[0].shape.__setitem__(0, -1), "'image' has the impossible shape"),
    "negative sizes with a positive product": (
        lambda r: (r.inputs[0].shape.__setitem__(0, -1), r.inputs[0].shape.__setitem__(1, -4)),
        "'image'",
    ),
    "an overflow": (lambda r: r.inputs[0].shape.__setitem__(0, 2**62), "'image' has the impossible shape"),
    "the largest size": (lambda r: r.inputs[0].shape.__setitem__(0, 2**63 - 1), "'image'"),
    "a shape of a million dimensions": (lambda r: r.inputs[0].shape.extend([1] * 100_000), "'image'"),
    "raw and typed together": (lambda r: r.inputs[1].contents.int_contents.extend([1, 2]), "'mode' has raw and typed"),
    "raw and empty typed together": (lambda r: r.inputs[1].contents.SetInParent(), "'mode'"),
    "too few raw contents": (lambda r: r.raw_input_contents.pop(), "2 inputs but 1 raw contents"),
    "too many raw contents": (lambda r: r.raw_input_contents.append(b""), "2 inputs but 3 raw contents"),
    "no contents at all": (lambda r: r.ClearField("raw_input_contents"), "'image' has 0 values"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_request_is_refused_by_name(what: str) -> None:
    change, words = WRONG[what]
    request = two()
    change(request)
    refused(request, TWO, words)


@pytest.mark.parametrize("datatype", sorted(TYPED))
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_typed_values_is_refused(datatype: str, count: int) -> None:
    value: object = b"a" if datatype == "BYTES" else datatype == "BOOL" or 1
    refused(typed_request(datatype, (2,), [value] * count), one(datatype, 2), "'x'", f"{count} values")


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("INT8", 128), ("INT8", -129), ("INT16", 2**15), ("INT16", -(2**15) - 1), ("UINT8", 256), ("UINT16", 2**16)],
)
def test_a_typed_value_out_of_range_is_refused(datatype: str, value: int) -> None:
    refused(typed_request(datatype, (2,), [0, value]), one(datatype, 2), "'x'", f"do not fit {datatype}")


@pytest.mark.parametrize("datatype", [name for name, field in TYPED.items() if "int" in field])
def test_the_least_and_the_greatest_typed_value_come_through(datatype: str) -> None:
    limits = np.iinfo(numpy_dtype(datatype))
    array = read(typed_request(datatype, (2,), [int(limits.min), int(limits.max)]), one(datatype, 2))
    assert array.tolist() == [limits.min, limits.max]


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_halves_have_no_typed_form(datatype: str) -> None:
    refused(typed_request(datatype, (1,), [1.0], "fp32_contents"), one(datatype, 1), "'x'", "raw")


def test_values_in_another_typed_field_are_not_taken() -> None:
    refused(typed_request("INT64", (1,), [1], "int_contents"), one("INT64", 1), "'x'", "int64_contents")


@pytest.mark.parametrize(
    "data",
    [b"", b"\1", b"\5\0\0\0abc", b"\xff\xff\xff\xff", b"\1\0\0\0a\1\0\0\0b", b"\1\0\0\0ab"],
)
def test_malformed_strings_are_refused_by_name_before_they_reach_a_runtime(data: bytes) -> None:
    refused(raw_request("BYTES", (1,), data), one("BYTES", 1), "'x'")


def test_an_empty_tensor_of_an_impossible_shape_is_refused() -> None:
    refused(raw_request("FP32", (0, 2**62), b""), one("FP32", "n", "m"), "'x'")


def test_an_empty_tensor_is_a_tensor() -> None:
    assert read(raw_request("FP32", (0, 4), b""), one("FP32", "n", 4)).shape == (0, 4)
    assert read(typed_request("FP32", (0, 4), []), one("FP32", "n", 4)).shape == (0, 4)
    request = pb.ModelInferRequest()
    request.inputs.add(name="x", datatype="FP32", shape=[0])
    assert read(request, one("FP32", "n")).shape == (0,)


def test_a_model_without_inputs_takes_an_empty_request() -> None:
    assert inputs_of(pb.ModelInferRequest(), Signature((), ())) == ()
    refused(raw_request("FP32", (1,), bytes(4)), Signature((), ()), "'x'", "none")


@given(st.binary(max_size=120))
def test_any_bytes_that_are_a_request_are_taken_or_refused(data: bytes) -> None:
    request = two()
    try:
        request.MergeFromString(data)
    except DecodeError:  # no request at all: the server's affair
        return
    with contextlib.suppress(InvalidInput):
        inputs_of(request, TWO)
        outputs_of(wire.Request.of(request), TWO)


# -- outputs --------------------------------------------------------------------------------------------------------


def asked(*names: str) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(id="42")
    for name in names:
        request.outputs.add(name=name)
    return request


def wanted(request: pb.ModelInferRequest) -> tuple[RequestedOutput, ...]:
    return outputs_of(wire.Request.of(request), TWO)


def test_outputs_are_those_asked_for_in_that_order_or_all() -> None:
    assert wanted(asked()) == ()
    assert wanted(asked("scores")) == (RequestedOutput("scores"),)
    assert wanted(asked("scores", "boxes")) == (RequestedOutput("scores"), RequestedOutput("boxes"))


@pytest.mark.parametrize(("names", "word"), [(["score"], "'score'"), ([""], "''")])
def test_outputs_that_cannot_be_given_are_refused_by_name(names: list[str], word: str) -> None:
    with pytest.raises(InvalidTensor, match=word):
        wanted(asked(*names))


# -- inputs that are not in the message -----------------------------------------------------------------------------


class Elsewhere:
    """A tensor in a region, which nobody reads here."""

    def __init__(self, place: Place) -> None:
        self.place, self.size = place, place.size

    def read_into(self, place: memoryview) -> None:
        raise AssertionError


def in_memory(request: pb.ModelInferRequest, index: int, size: int, offset: int = 0) -> pb.ModelInferRequest:
    """The request with one input in the region `r` and without its raw contents."""
    parameters = request.inputs[index].parameters
    parameters["shared_memory_region"].string_param = "r"
    parameters["shared_memory_byte_size"].int64_param = size
    if offset:
        parameters["shared_memory_offset"].int64_param = offset
    del request.raw_input_contents[index]
    return request


def located(request: pb.ModelInferRequest) -> tuple[InputTensor, ...]:
    return checked(wire.Request.of(request), TWO, locate=lambda place, tensor: Elsewhere(place))


def test_raw_contents_are_of_the_inputs_that_are_not_in_shared_memory() -> None:
    image, mode = located(in_memory(two(), 0, 16, offset=64))
    assert isinstance(image.data, Elsewhere)
    assert image.data.place == Place("r", 64, 16)
    assert mode.data == MODE
    image, mode = located(in_memory(two(), 1, 2))
    assert image.data == IMAGE
    assert isinstance(mode.data, Elsewhere)


def test_shared_memory_that_does_not_fit_its_tensor_is_refused_by_name() -> None:
    with pytest.raises(InvalidTensor, match="'image' holds 15 bytes"):
        located(in_memory(two(), 0, 15))
    request = in_memory(two(), 0, 16)
    request.raw_input_contents.append(IMAGE)
    with pytest.raises(InvalidTensor, match="1 inputs that are not in shared memory but 2 raw contents"):
        located(request)
    request = in_memory(two(), 0, 16)
    request.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    with pytest.raises(InvalidTensor, match="'image'"):
        located(request)
    with pytest.raises(InvalidTensor, match="not read here"):
        inputs_of(in_memory(two(), 0, 16), TWO)


def test_inputs_that_are_filled_in_may_be_missing_and_may_not_be_sent() -> None:
    request = two()
    with pytest.raises(InvalidTensor, match="'mode'"):
        checked(wire.Request.of(request), TWO, filled={"mode"})
    del request.inputs[1], request.raw_input_contents[1]
    (image,) = checked(wire.Request.of(request), TWO, filled={"mode"})
    assert image.name == "image"


# -- shapes that engines are made for -------------------------------------------------------------------------------

PROFILE = Profile((Range("x", (1, 4), (1, 4), (8, 4)),))


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_shape_within_what_engines_are_made_for_comes_through(batch: int) -> None:
    request = raw_request("FP32", (batch, 4), bytes(16 * batch))
    (tensor,) = inputs_of(request, one("FP32", "n", 4), PROFILE)
    assert tensor.shape == (batch, 4)


@pytest.mark.parametrize("batch", [0, 9])
def test_a_shape_beyond_it_is_refused_with_what_to_set(batch: int) -> None:
    request = raw_request("FP32", (batch, 4), bytes(16 * batch))
    with pytest.raises(InvalidTensor, match=r"takes \[1, 4\] to \[8, 4\] here; its setting profile\.x widens that"):
        inputs_of(request, one("FP32", "n", 4), PROFILE)
    assert inputs_of(request, one("FP32", "n", 4))  # where no engine needs a range, none is asked for


def test_a_refusal_is_short_however_many_tensors_a_model_has() -> None:
    signature = Signature(tuple(TensorSpec(f"past_key_values.{n}", "FP32", (1, 2)) for n in range(500)), ())
    with pytest.raises(InvalidTensor, match="484 more") as refused:
        checked(wire.Request.of(pb.ModelInferRequest()), signature)
    assert len(str(refused.value)) < 1000


VALUES = st.one_of(
    st.builds(lambda v: pb.InferParameter(bool_param=v), st.booleans()),
    st.builds(lambda v: pb.InferParameter(int64_param=v), st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda v: pb.InferParameter(uint64_param=v), st.integers(0, 2**64 - 1)),
    st.builds(lambda v: pb.InferParameter(double_param=v), st.floats()),
    st.builds(lambda v: pb.InferParameter(string_param=v), st.text(max_size=20)),
    st.just(pb.InferParameter()),
)
NUMBERS, FLAGS = ["sequence_id", "priority", "timeout"], ["sequence_start", "sequence_end"]
KEYS = st.sampled_from([*NUMBERS, *FLAGS, "mine", "triton_enable_empty_final_response"])


def given_as(**values: Any) -> dict[str, pb.InferParameter]:
    """Parameters as clients send them: whole numbers signed."""
    fields = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return {key: pb.InferParameter(**{fields[type(value)]: value}) for key, value in values.items()}


def output(name: str, **values: Any) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    return pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=given_as(**values))


def test_a_request_without_parameters_wants_nothing_special() -> None:
    assert options({}) == Options()


def test_every_known_parameter_is_read() -> None:
    found = options(
        given_as(
            sequence_id=7, sequence_start=True, sequence_end=True, priority=2, timeout=1500,
            triton_enable_empty_final_response=True, mine="x", headers=1.5,
        )
    )  # fmt: skip
    assert found == Options(7, True, True, 2, 0.0015, True)


def test_ids_of_sequences_are_numbers_or_text() -> None:
    assert options(given_as(sequence_id="camera 3")).sequence == "camera 3"
    assert options({"sequence_id": pb.InferParameter(uint64_param=2**64 - 1)}).sequence == 2**64 - 1
    assert options({"priority": pb.InferParameter(uint64_param=2**64 - 1)}).priority == 2**64 - 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sequence_id": 1.5}, "'sequence_id' is neither"),
        ({"sequence_id": True}, "'sequence_id' is neither"),
        ({"sequence_id": "x" * 300}, "longer than 256"),
        ({"sequence_start": 1}, "'sequence_start' is not true or false"),
        ({"priority": -1}, "'priority' of the request is not a whole number"),
        ({"priority": True}, "'priority'"),
        ({"timeout": -1}, "'timeout'"),
        ({"timeout": "1"}, "'timeout'"),
        ({"triton_final_response": True}, "reserved"),
        ({"triton_": 1}, "reserved"),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        options(given_as(**values))


@given(st.dictionaries(st.one_of(KEYS, st.text(max_size=8)), VALUES, max_size=6))
def test_any_parameters_are_taken_or_refused(values: dict[str, pb.InferParameter]) -> None:
    with contextlib.suppress(InvalidInput):
        found = options(values)
        assert found.priority >= 0
        assert found.timeout_s >= 0
        assert not any(key.startswith("triton_") for key in values if key != "triton_enable_empty_final_response")


def test_outputs_are_plain_classified_or_written_into_memory() -> None:
    outputs = [
        output("plain", binary_data=False),
        output("best", classification=3),
        output("memory", shared_memory_region="r", shared_memory_byte_size=64, shared_memory_offset=8),
        output("all", classification=0),
    ]
    assert requested_outputs(outputs) == (
        RequestedOutput("plain"),
        RequestedOutput("best", 3),
        RequestedOutput("memory", 0, Place("r", 8, 64)),
        RequestedOutput("all"),
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"classification": -1}, "'classification' of output 'y'"),
        ({"classification": 2**40}, "at most"),
        ({"classification": 1.0}, "'classification'"),
        ({"classification": 1, "shared_memory_region": "r", "shared_memory_byte_size": 4}, "cannot be classified into"),
        ({"shared_memory_region": "r"}, "no shared_memory_byte_size"),
        ({"shared_memory_byte_size": 4}, "name the region"),
        ({"shared_memory_offset": 4}, "name the region"),
        ({"shared_memory_region": "", "shared_memory_byte_size": 4}, "not the name of a region"),
        ({"shared_memory_region": 1, "shared_memory_byte_size": 4}, "not the name of a region"),
        ({"shared_memory_region": "r", "shared_memory_byte_size": -4}, "'shared_memory_byte_size' of output 'y'"),
        (
            {"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": -1},
            "shared_memory_offset",
        ),
    ],
)
def test_a_wrong_parameter_of_an_output_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        requested_outputs([output("y", **values)])


def test_wanted_output_requested_twice_comes_once_as_asked_for_last() -> None:
    assert requested_outputs([output("y"), output("z"), output("y", classification=1)]) == (
        RequestedOutput("y", 1),
        RequestedOutput("z"),
    )


def test_a_tensor_without_a_region_has_no_place() -> None:
    assert place(given_as(binary_data_size=4), "input 'x'") is None


def test_a_refusal_is_short_however_long_the_name() -> None:
    with pytest.raises(InvalidInput) as refused:
        requested_outputs([output("y" * 100_000, classification=-1)])
    assert len(str(refused.value)) < 200
