"""Requests of the Open Inference Protocol: reading of tensors and parameters, and errors that name invalid ones."""

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
    declared_inputs,
    inputs_of,
    options,
    outputs_of,
    place,
    requested_outputs,
)
from edged.backends.contract import Signature
from edged.backends.profile import Profile, Range
from edged.errors import InvalidInput, InvalidTensor
from edged.proto import open_inference_pb2 as pb
from edged.serving.work import InputTensor
from edged.tensors import DATATYPES, Array, TensorSpec, numpy_dtype, to_array, to_bytes

TYPED = dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents")
TYPED |= dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents")
TYPED |= {name: f"{name.lower()}_contents" for name in ("BOOL", "INT64", "UINT64", "FP32", "FP64", "BYTES")}
TWO = Signature(
    (TensorSpec("image", "FP32", ("n", 4)), TensorSpec("mode", "INT8", (2,))),
    (TensorSpec("boxes", "FP32", ("n", 4)), TensorSpec("scores", "FP32", ("n",))),
)
IMAGE, MODE = struct.pack("<4f", 1, 2, 3, 4), b"\1\xff"


def inputs(request: pb.ModelInferRequest, signature: Signature, **options: Any) -> tuple[InputTensor, ...]:
    locate = options.pop("locate", None)
    return inputs_of(wire.Request.of(request), declared_inputs(request, signature, **options), locate)


def one(datatype: str, *shape: int | str) -> Signature:
    return Signature((TensorSpec("x", datatype, shape),), ())


def raw_request(datatype: str, shape: tuple[int, ...], data: bytes) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(raw_input_contents=[data])
    request.inputs.add(name="x", datatype=datatype, shape=shape)
    return request


def typed_request(datatype: str, shape: tuple[int, ...], values: list[object], field: str = "") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest()
    tensor = request.inputs.add(name="x", datatype=datatype, shape=shape)
    getattr(tensor.contents, field or TYPED[datatype]).extend(values)
    return request


def two() -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(raw_input_contents=[IMAGE, MODE])
    request.inputs.add(name="image", datatype="FP32", shape=[1, 4])
    request.inputs.add(name="mode", datatype="INT8", shape=[2])
    return request


def arrays(request: pb.ModelInferRequest, signature: Signature) -> list[Array]:
    """Return the inputs as arrays, as the engine host reads them."""
    tensors = inputs(request, signature)
    assert all(isinstance(tensor.data, bytes | memoryview) for tensor in tensors)
    return [to_array(t.name, t.datatype, t.shape, t.data) for t in tensors]


def refused(request: pb.ModelInferRequest, signature: Signature, name: str) -> None:
    with pytest.raises(InvalidTensor, match=name) as raised:
        arrays(request, signature)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


@given(st.sampled_from(DATATYPES), st.data())
def test_inputs_of_tensor_of_any_datatype_are_equal_raw_and_typed(datatype: str, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    if datatype == "BYTES":
        array = np.empty(shape, np.object_)
        array.ravel()[:] = data.draw(st.lists(st.binary(max_size=4), min_size=array.size, max_size=array.size))
    else:
        elements = st.floats(width=32, allow_nan=False) if datatype == "FP32" else None
        array = data.draw(hnp.arrays(numpy_dtype(datatype), shape, elements=elements))
    contents = bytes(to_bytes(array))
    signature = one(datatype, *(f"d{axis}" for axis in range(len(shape))))
    (raw,) = arrays(raw_request(datatype, shape, contents), signature)
    assert (raw.dtype, raw.shape, bytes(to_bytes(raw))) == (array.dtype, shape, contents)
    if datatype in TYPED:
        (typed,) = arrays(typed_request(datatype, shape, array.ravel().tolist()), signature)
        assert bytes(to_bytes(typed)) == contents


def test_inputs_of_request_keep_its_order() -> None:
    assert [(t.name, t.datatype, t.shape, t.data) for t in inputs(two(), TWO)] == [
        ("image", "FP32", (1, 4), IMAGE),
        ("mode", "INT8", (2,), MODE),
    ]
    assert inputs(pb.ModelInferRequest(), Signature((), ())) == ()


WRONG: dict[str, tuple[Callable[[pb.ModelInferRequest], object], str]] = {
    "unknown": (lambda r: (r.inputs.add(name="more", datatype="FP32"), r.raw_input_contents.append(b"")), "'more'"),
    "duplicate": (lambda r: (r.inputs.add().CopyFrom(r.inputs[1]), r.raw_input_contents.append(MODE)), "'mode'"),
    "missing": (lambda r: (r.inputs.pop(), r.raw_input_contents.pop()), "'mode'"),
    "misspelt": (lambda r: setattr(r.inputs[0], "name", "Image"), "'image'"),
    "no inputs at all": (lambda r: (r.ClearField("inputs"), r.ClearField("raw_input_contents")), "'image'"),
    "a byte less": (lambda r: r.raw_input_contents.__setitem__(0, IMAGE[:-1]), "'image' has 15 bytes"),
    "a byte more": (lambda r: r.raw_input_contents.__setitem__(1, MODE + b"x"), "'mode' has 3 bytes"),
    "nothing": (lambda r: r.raw_input_contents.__setitem__(0, b""), "'image' has 0 bytes"),
    "another dtype": (lambda r: setattr(r.inputs[1], "datatype", "UINT8"), "'mode' of the model is INT8"),
    "no dtype": (lambda r: setattr(r.inputs[1], "datatype", ""), "'mode' of the model is INT8"),
    "an unknown dtype": (lambda r: setattr(r.inputs[1], "datatype", "FP8" * 100), "'mode' of the model is INT8"),
    "another rank": (lambda r: r.inputs[0].shape.append(1), "'image'"),
    "no shape": (lambda r: r.inputs[0].ClearField("shape"), "'image'"),
    "another size": (lambda r: r.inputs[0].shape.__setitem__(1, 5), "'image'"),
    "a negative size": (lambda r: r.inputs[0].shape.__setitem__(0, -1), "'image'"),
    "a positive product": (lambda r: r.inputs[0].shape.__setitem__(slice(0, 2), (-1, -4)), "'image'"),
    "an overflow": (lambda r: r.inputs[0].shape.__setitem__(0, 2**62), "'image'"),
    "the largest size": (lambda r: r.inputs[0].shape.__setitem__(0, 2**63 - 1), "'image'"),
    "many dimensions": (lambda r: r.inputs[0].shape.extend([1] * 100_000), "'image'"),
    "raw and typed": (lambda r: r.inputs[1].contents.int_contents.extend([1, 2]), "'mode'"),
    "raw and empty typed": (lambda r: r.inputs[1].contents.SetInParent(), "'mode'"),
    "too few raw contents": (lambda r: r.raw_input_contents.pop(), "2 inputs but 1 raw contents"),
    "too many raw contents": (lambda r: r.raw_input_contents.append(b""), "2 inputs but 3 raw contents"),
    "no contents at all": (lambda r: r.ClearField("raw_input_contents"), "'image' has 0 values"),
}


@pytest.mark.parametrize(("change", "name"), WRONG.values(), ids=WRONG)
def test_inputs_of_invalid_request_are_refused(change: Callable[[pb.ModelInferRequest], object], name: str) -> None:
    request = two()
    change(request)
    refused(request, TWO, name)


def filler(datatype: str) -> object:
    return b"a" if datatype == "BYTES" else datatype == "BOOL" or 1


@pytest.mark.parametrize(
    ("request_", "signature"),
    [
        *(
            (typed_request(name, (2,), [filler(name)] * count), one(name, 2))
            for name in sorted(TYPED)
            for count in (0, 1, 3)
        ),
        *(
            (typed_request(name, (2,), [0, value]), one(name, 2))
            for name, value in (("INT8", 128), ("INT8", -129), ("INT16", 2**15), ("INT16", -(2**15) - 1))
        ),
        *((typed_request(name, (2,), [0, value]), one(name, 2)) for name, value in (("UINT8", 256), ("UINT16", 2**16))),
        *((typed_request(name, (1,), [1.0], "fp32_contents"), one(name, 1)) for name in ("FP16", "BF16")),
        (typed_request("INT64", (1,), [1], "int_contents"), one("INT64", 1)),
        *(
            (raw_request("BYTES", (1,), data), one("BYTES", 1))
            for data in (b"", b"\1", b"\5\0\0\0abc", b"\xff\xff\xff\xff", b"\1\0\0\0a\1\0\0\0b", b"\1\0\0\0ab")
        ),
        (raw_request("FP32", (0, 2**62), b""), one("FP32", "n", "m")),
        (raw_request("FP32", (1,), bytes(4)), Signature((), ())),
    ],
)
def test_inputs_of_contents_that_do_not_fit_are_refused(request_: pb.ModelInferRequest, signature: Signature) -> None:
    refused(request_, signature, "'x'")


@pytest.mark.parametrize("datatype", [name for name, field in TYPED.items() if "int" in field])
def test_inputs_of_extreme_typed_values_are_exact(datatype: str) -> None:
    limits = np.iinfo(numpy_dtype(datatype))
    (array,) = arrays(typed_request(datatype, (2,), [int(limits.min), int(limits.max)]), one(datatype, 2))
    assert array.tolist() == [limits.min, limits.max]


def test_inputs_of_empty_tensor_need_no_contents() -> None:
    bare = pb.ModelInferRequest()
    bare.inputs.add(name="x", datatype="FP32", shape=[0, 4])
    for request in (raw_request("FP32", (0, 4), b""), typed_request("FP32", (0, 4), []), bare):
        assert arrays(request, one("FP32", "n", 4))[0].shape == (0, 4)


def test_inputs_of_optional_input_may_be_given_or_missing() -> None:
    optional, request = (TensorSpec("w", "FP32", (2,)),), raw_request("FP32", (1,), bytes(4))
    assert [each.name for each in inputs(request, one("FP32", 1), optional=optional)] == ["x"]
    request.inputs.add(name="w", datatype="FP32", shape=(2,))
    request.raw_input_contents.append(bytes(8))
    assert [each.name for each in inputs(request, one("FP32", 1), optional=optional)] == ["x", "w"]
    refused(request, one("FP32", 1), "'w'")
    request.inputs[1].shape[0] = 3
    with pytest.raises(InvalidTensor, match="'w'"):
        inputs(request, one("FP32", 1), optional=optional)


def test_inputs_of_filled_input_must_be_missing() -> None:
    request = two()
    with pytest.raises(InvalidTensor, match="'mode'"):
        inputs(request, TWO, filled={"mode"})
    del request.inputs[1], request.raw_input_contents[1]
    assert [each.name for each in inputs(request, TWO, filled={"mode"})] == ["image"]


@given(st.binary(max_size=120))
def test_inputs_and_outputs_of_any_request_are_read_or_refused(data: bytes) -> None:
    request = two()
    try:
        request.MergeFromString(data)
    except DecodeError:
        return
    with contextlib.suppress(InvalidInput):
        inputs(request, TWO)
        outputs_of(request, TWO)


def test_inputs_of_model_with_many_tensors_has_a_short_refusal() -> None:
    signature = Signature(tuple(TensorSpec(f"past_key_values.{n}", "FP32", (1, 2)) for n in range(500)), ())
    with pytest.raises(InvalidTensor) as refusal:
        inputs(pb.ModelInferRequest(), signature)
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize(("batch", "is_taken"), [(0, False), (1, True), (3, True), (8, True), (9, False)])
def test_inputs_of_shape_outside_of_the_bounds_is_refused(batch: int, is_taken: bool) -> None:
    bounds = Bounds(Profile((Range("x", (1, 4), (1, 4), (8, 4)),)))
    request, signature = raw_request("FP32", (batch, 4), bytes(16 * batch)), one("FP32", "n", 4)
    assert inputs(request, signature)[0].shape == (batch, 4)
    if is_taken:
        assert inputs(request, signature, bounds=bounds)[0].shape == (batch, 4)
    else:
        with pytest.raises(InvalidTensor, match=r"profile\.x"):
            inputs(request, signature, bounds=bounds)


# -- shared memory --------------------------------------------------------------------------------------------------


class Elsewhere:
    """A tensor in a region that the test never reads."""

    def __init__(self, place: Place, tensor: str) -> None:
        self.place, self.size = place, place.size

    def read_into(self, place: memoryview) -> None:
        raise AssertionError


def in_memory(index: int, size: int, offset: int = 0) -> pb.ModelInferRequest:
    """Return a request whose input `index` is in the region `r`, without raw contents for it."""
    request = two()
    place = {"shared_memory_region": "r", "shared_memory_byte_size": size, "shared_memory_offset": offset}
    for key, value in parameters(**place).items():
        request.inputs[index].parameters[key].CopyFrom(value)
    del request.raw_input_contents[index]
    return request


def test_inputs_of_tensor_in_shared_memory_are_located() -> None:
    image, mode = inputs(in_memory(0, 16, offset=64), TWO, locate=Elsewhere)
    assert isinstance(image.data, Elsewhere)
    assert (image.data.place, mode.data) == (Place("r", 64, 16), MODE)
    image, mode = inputs(in_memory(1, 2), TWO, locate=Elsewhere)
    assert image.data == IMAGE
    assert isinstance(mode.data, Elsewhere)


@pytest.mark.parametrize(
    ("size", "change", "locate"),
    [
        (15, lambda r: None, Elsewhere),
        (16, lambda r: r.raw_input_contents.append(IMAGE), Elsewhere),
        (16, lambda r: r.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4]), Elsewhere),
        (16, lambda r: None, None),
    ],
)
def test_inputs_of_shared_memory_that_does_not_fit_are_refused(
    size: int, change: Callable[[pb.ModelInferRequest], object], locate: Any
) -> None:
    request = in_memory(0, size)
    change(request)
    with pytest.raises(InvalidTensor):
        inputs(request, TWO, locate=locate)


# -- parameters and outputs -----------------------------------------------------------------------------------------


def parameters(**values: Any) -> dict[str, pb.InferParameter]:
    """Return parameters as clients send them, with whole numbers as int64."""
    fields = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return {key: pb.InferParameter(**{fields[type(value)]: value}) for key, value in values.items()}


def output(name: str, **values: Any) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    return pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters(**values))


def test_options_read_every_known_parameter() -> None:
    flags = {"sequence_start": True, "sequence_end": True, "triton_enable_empty_final_response": True}
    found = options(parameters(sequence_id=7, priority=2, timeout=1500, mine="x", headers=1.5, **flags))
    assert found == Options(7, True, True, 2, 0.0015, True)
    assert options({}) == Options()
    assert options(parameters(sequence_id="camera 3")).sequence == "camera 3"
    assert options({"sequence_id": pb.InferParameter(uint64_param=2**64 - 1)}).sequence == 2**64 - 1
    assert options({"priority": pb.InferParameter(uint64_param=2**64 - 1)}).priority == 2**64 - 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("sequence_id", value) for value in (1.5, True, "x" * 300)),
        ("sequence_start", 1),
        *(("priority", value) for value in (-1, True)),
        *(("timeout", value) for value in (-1, "1")),
        *((key, True) for key in ("triton_final_response", "triton_")),
    ],
)
def test_options_parameter_of_the_wrong_kind_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"'{key}'"):
        options(parameters(**{key: value}))


VALUES = st.one_of(
    st.builds(lambda v: pb.InferParameter(bool_param=v), st.booleans()),
    st.builds(lambda v: pb.InferParameter(int64_param=v), st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda v: pb.InferParameter(uint64_param=v), st.integers(0, 2**64 - 1)),
    st.builds(lambda v: pb.InferParameter(double_param=v), st.floats()),
    st.builds(lambda v: pb.InferParameter(string_param=v), st.text(max_size=20)),
    st.just(pb.InferParameter()),
)
KNOWN = ["sequence_id", "priority", "timeout", "sequence_start", "sequence_end", "triton_enable_empty_final_response"]


@given(st.dictionaries(st.one_of(st.sampled_from([*KNOWN, "mine"]), st.text(max_size=8)), VALUES, max_size=6))
def test_options_of_any_parameters_are_read_or_refused(values: dict[str, pb.InferParameter]) -> None:
    with contextlib.suppress(InvalidInput):
        found = options(values)
        assert found.priority >= 0
        assert found.timeout_s >= 0
        assert not any(key.startswith("triton_") for key in values if key != "triton_enable_empty_final_response")


PLACE = {"shared_memory_region": "r", "shared_memory_byte_size": 4}


@pytest.mark.parametrize(
    "values",
    [
        *({"classification": value} for value in (-1, 2**40, 1.0)),
        {"classification": 1, **PLACE},
        {"shared_memory_region": "r"},
        {"shared_memory_byte_size": 4},
        {"shared_memory_offset": 4},
        *({**PLACE, "shared_memory_region": value} for value in ("", 1)),
        {**PLACE, "shared_memory_byte_size": -4},
        {**PLACE, "shared_memory_offset": -1},
    ],
)
def test_requested_outputs_invalid_parameter_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="'y'"):
        requested_outputs([output("y", **values)])


def test_requested_outputs_are_plain_classified_or_in_memory() -> None:
    outputs = [
        output("plain", binary_data=False),
        output("best", classification=3),
        output("memory", shared_memory_region="r", shared_memory_byte_size=64, shared_memory_offset=8),
        output("all", classification=0),
        output("plain", classification=1),  # of equal names the last entry counts
    ]
    assert requested_outputs(outputs) == (
        RequestedOutput("plain", 1),
        RequestedOutput("best", 3),
        RequestedOutput("memory", 0, Place("r", 8, 64)),
        RequestedOutput("all"),
    )
    assert place(parameters(binary_data_size=4), "input 'x'") is None
    with pytest.raises(InvalidInput) as refusal:
        requested_outputs([output("y" * 100_000, classification=-1)])
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("names", [(), ("scores",), ("scores", "boxes")])
def test_outputs_of_request_keep_its_order(names: tuple[str, ...]) -> None:
    request = pb.ModelInferRequest(outputs=[output(name) for name in names])
    assert [each.name for each in outputs_of(request, TWO)] == list(names)


@pytest.mark.parametrize("name", ["score", ""])
def test_outputs_of_unknown_output_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidTensor, match=f"'{name}'"):
        outputs_of(pb.ModelInferRequest(outputs=[output(name)]), TWO)
