"""Bodies of HTTP inference requests: JSON, binary tensors after it, and compression."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.api.http import bodies, tensors
from edged.api.http.tensors import OutputFormat
from edged.errors import InvalidInput, InvalidTensor, TooLarge, Unsupported
from edged.proto import open_inference_pb2 as pb


def body(*inputs: dict[str, Any], behind: bytes = b"", **more: Any) -> tuple[bytes, int]:
    text = json.dumps({"inputs": list(inputs), **more}).encode()
    return text + behind, len(text)


def one(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2], **changes}


def read(*inputs: dict[str, Any], behind: bytes = b"", **more: Any) -> tensors.InferRequest:
    whole, length = body(*inputs, behind=behind, **more)
    return tensors.read("m", "", whole, length if behind else None)


def test_read_json_inputs_become_raw_contents_in_order() -> None:
    asked = tensors.read("m", "3", body(one(), one(name="y", datatype="INT64", data=[[5], [6]]), id="seven")[0], None)
    assert (asked.message.model_name, asked.message.model_version, asked.message.id) == ("m", "3", "seven")
    assert [(each.name, each.datatype, list(each.shape)) for each in asked.message.inputs] == [
        ("x", "FP32", [1, 2]),
        ("y", "INT64", [1, 2]),
    ]
    assert [bytes(raw) for raw in asked.raw] == [np.float32([1, 2]).tobytes(), np.int64([5, 6]).tobytes()]
    assert not asked.format.is_binary("z")


def test_read_mixed_binary_and_json_inputs() -> None:
    first = one(parameters={"binary_data_size": 8})
    del first["data"]
    third = {**first, "name": "z", "parameters": {"binary_data_size": 3}}
    asked = read(first, one(name="y"), third, behind=b"\1" * 8 + b"abc")
    assert [bytes(raw) for raw in asked.raw] == [b"\1" * 8, np.float32([1, 2]).tobytes(), b"abc"]
    assert all(not each.parameters for each in asked.message.inputs)


@pytest.mark.parametrize("indent", [None, 1])
def test_read_long_lists_equals_numpy(indent: int | None) -> None:
    numbers = np.random.default_rng(5).standard_normal((2, 30_000)).astype(np.float32)
    numbers[1, 7] = np.nan
    long = one(name="long", shape=[2, 30_000], data=numbers.tolist())
    inputs = [long, one(), {**long, "name": "after"}, one(name="y", datatype="INT64", data=[[5], [6]])]
    text = json.dumps({"inputs": inputs, "outputs": [{"name": "z"}]}, indent=indent).encode()
    asked = tensors.read("m", "", text, None)
    contents = [bytes(raw) for raw in asked.raw]
    short, whole = np.array([1, 2], np.float32).tobytes(), numbers.tobytes()
    assert contents == [whole, short, whole, np.array([5, 6], np.int64).tobytes()]
    assert [each.name for each in asked.message.outputs] == ["z"]


_LONG = "[" + "1," * 200_000 + "1]"


def test_read_long_list_outside_of_data_is_ignored() -> None:
    body = json.dumps({"inputs": [one()], "more": "@"}).replace('"@"', _LONG).encode()
    (contents,) = tensors.read("m", "", body, None).raw
    assert bytes(contents) == np.array([1, 2], np.float32).tobytes()


@pytest.mark.parametrize(
    "data",
    [
        _LONG[:-1],
        _LONG + "]",
        "[" + _LONG,
        _LONG.replace("1,1]", "1,]"),
        _LONG.replace("1,1]", "1 1]"),
        _LONG.replace("1,1]", "1][1]"),
        _LONG.replace("1,1]", '"1",1]'),
        _LONG.replace("1,1]", "1,{}]"),
        _LONG.replace("1,1]", "1,true]"),
    ],
)
def test_read_long_list_that_is_malformed_or_not_of_numbers_is_refused(data: str) -> None:
    text = json.dumps({"inputs": [one(shape=[200_001], data="@")]}).replace('"@"', data).encode()
    with pytest.raises(InvalidInput):
        tensors.read("m", "", text, None)


def test_read_input_in_shared_memory_has_no_contents() -> None:
    asked = read(one(data=None, parameters={"shared_memory_region": "r", "shared_memory_offset": 16}), one(name="y"))
    assert len(asked.raw) == 1
    assert asked.message.inputs[0].parameters["shared_memory_region"].string_param == "r"
    assert asked.message.inputs[0].parameters["shared_memory_offset"].int64_param == 16


def test_read_parameters_keep_their_kinds() -> None:
    given_ = {"bool": True, "int64": -5, "uint64": 2**63, "double": 0.5, "string": "x", "binary_data_output": True}
    asked = read(one(), parameters=given_)
    kinds = {key: value.WhichOneof("parameter_choice") for key, value in asked.message.parameters.items()}
    assert kinds == {name: f"{name}_param" for name in ("bool", "int64", "uint64", "double", "string")}
    assert asked.format.is_binary("anything")


def test_read_requested_outputs_choose_binary_or_json() -> None:
    outputs = [
        {"name": "p", "parameters": {"binary_data": True, "classification": 3}},
        {"name": "q", "parameters": {"binary_data": False}},
        {"name": "r"},
    ]
    asked = read(one(), outputs=outputs, parameters={"binary_data_output": True})
    assert [each.name for each in asked.message.outputs] == ["p", "q", "r"]
    assert dict(asked.message.outputs[0].parameters.items()) == {"classification": pb.InferParameter(int64_param=3)}
    assert [asked.format.is_binary(name) for name in "pqr"] == [True, False, True]


@pytest.mark.parametrize(
    ("inputs", "behind", "words"),
    [
        ([one(data=None)], b"", "'x' has no values"),
        ([one(parameters={"binary_data_size": 8})], b"12345678", "'x' is sent in two ways"),
        ([one(parameters={"shared_memory_region": "r"})], b"", "'x' is sent in two ways"),
        ([one(data=None, parameters={"binary_data_size": 9})], b"12345678", "only 8 bytes follow"),
        ([one(data=None, parameters={"binary_data_size": -1})], b"12345678", "not a whole number"),
        ([one(data=None, parameters={"binary_data_size": True})], b"1", "not a whole number"),
        ([one(data=None, parameters={"binary_data_size": "8"})], b"12345678", "not a whole number"),
        ([one()], b"1", "1 bytes follow the JSON, but the inputs need 0"),
        ([one(datatype="FP31")], b"", "'FP31'"),
        ([one(shape=[2**63])], b"", "do not fit 64 bits"),
        ([one(parameters={"a": 2**64})], b"", "does not fit 64 bits"),
        ([one(shape="2")], b"", "cannot parse the request's JSON"),
        ([one(shape=[1] * 65)], b"", "length <= 64"),
        ([one()] * 1025, b"", "length <= 1024"),
        ([{"name": "x"}], b"", "cannot parse the request's JSON"),
    ],
)
def test_parse_invalid_input_names_the_problem(inputs: list[dict[str, Any]], behind: bytes, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(*inputs, behind=behind)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"[]", b"{", b'{"inputs":{}}', b"\xff", b"[" * 100_000, b'{"inputs":[' + b"[" * 100_000, b"NaN"],
    ids=range(9),
)
def test_parse_invalid_body_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="cannot parse the request's JSON"):
        tensors.read("m", "", text, None)


def test_read_json_length_beyond_the_body_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is 100"):
        tensors.read("m", "", b"{}", 100)


@given(st.binary(max_size=200), st.none() | st.integers(0, 220))
def test_parse_random_body_is_parsed_or_refused(text: bytes, length: int | None) -> None:
    with contextlib.suppress(InvalidInput):
        tensors.read("m", "", text, length)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("name", "datatype", "shape", "data", "parameters"), _json)))
def test_parse_random_input_is_parsed_or_refused(changes: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidInput):
        tensors.read("m", "", body(one(**changes))[0], None)


def answered() -> tuple[pb.ModelInferResponse, list[bytes]]:
    message = pb.ModelInferResponse(model_name="m", model_version="1", id="seven")
    message.outputs.add(name="p", datatype="INT64", shape=[2])
    message.outputs.add(name="q", datatype="FP16", shape=[1])
    message.outputs.add(name="r", datatype="FP32", shape=[2]).parameters["shared_memory_region"].string_param = "r"
    return message, [np.int64([2**53 + 1, -1]).tobytes(), b"\0\x3c", b""]


def test_write_puts_raw_contents_after_the_json() -> None:
    answer = tensors.write(*answered(), OutputFormat(False, {"q": True}))
    text, contents = answer.parts
    assert dict(answer.headers)["inference-header-content-length"] == str(len(text))
    assert bytes(contents) == b"\0\x3c"
    assert json.loads(text) == {
        "id": "seven",
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "p", "datatype": "INT64", "shape": [2], "data": [2**53 + 1, -1]},
            {"name": "q", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}},
            {"name": "r", "datatype": "FP32", "shape": [2], "parameters": {"shared_memory_region": "r"}},
        ],
    }


def test_write_datatype_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidTensor, match="'q'"):
        tensors.write(*answered(), OutputFormat())


def spec(datatype: str, *shape: int) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name="x", datatype=datatype, shape=shape)


@pytest.mark.parametrize(
    ("datatype", "shape", "size", "wanted"),
    [
        ("FP32", (2, 3), 24, [2, 3]),
        ("FP32", (-1, 3), 24, [2, 3]),
        ("INT8", (-1, -1, 4), 12, [1, 3, 4]),
        ("BYTES", (-1,), 7, [1]),
    ],
)
def test_raw_request_input_is_the_whole_body(
    datatype: str, shape: tuple[int, ...], size: int, wanted: list[int]
) -> None:
    asked = tensors.raw_request("m", "", [spec(datatype, *shape)], b"a" * size)
    assert list(asked.message.inputs[0].shape) == wanted
    assert bytes(asked.raw[0]) == (b"\7\0\0\0" if datatype == "BYTES" else b"") + b"a" * size
    assert asked.format.is_binary("anything")


@pytest.mark.parametrize("inputs", [[spec("FP32", 1)] * 2, [spec("FP32", 3, -1, -1)]])
def test_raw_request_of_two_inputs_or_two_open_dimensions_is_refused(
    inputs: list[pb.ModelMetadataResponse.TensorMetadata],
) -> None:
    with pytest.raises(InvalidInput):
        tensors.raw_request("m", "", inputs, b"")


@given(st.binary(max_size=500), st.sampled_from(["gzip", "deflate"]))
def test_unpacked_reverses_packed(data: bytes, encoding: str) -> None:
    assert bodies.unpacked(bodies.packed([data], encoding), encoding, 500) == data
    theirs = gzip.compress(data) if encoding == "gzip" else zlib.compress(data)
    assert bodies.unpacked(theirs, encoding, 500) == data


@given(st.binary(max_size=100))
def test_unpacked_damaged_body_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        bodies.unpacked(b"\x1f\x8b" + data, "gzip", 1 << 20)


def test_unpack_beyond_the_limit_is_refused() -> None:
    with pytest.raises(TooLarge):
        bodies.unpacked(gzip.compress(bytes(10_000_000)), "gzip", 1 << 20)


def test_unpack_unknown_encoding_or_trailing_bytes_is_refused() -> None:
    with pytest.raises(Unsupported):
        bodies.unpacked(b"", "br", 10)
    with pytest.raises(InvalidInput):
        bodies.unpacked(gzip.compress(b"a") + b"more", "gzip", 100)


@pytest.mark.parametrize(
    ("header", "chosen"),
    [("", None), ("gzip", "gzip"), ("br, deflate;q=0.5", "deflate"), ("gzip;q=0, deflate", "deflate"), ("*", None)],
)
def test_accepted_is_the_first_known_encoding(header: str, chosen: str | None) -> None:
    assert bodies.accepted(header) == chosen
