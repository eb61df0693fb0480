"""Tensor values in JSON: valid ones round-trip, invalid ones are refused with the tensor's name."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.api.http import values
from edged.errors import InvalidInput, InvalidTensor, TooLarge
from edged.tensors import numpy_dtype, to_array

_NUMBERS = [
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP32", "FP64",
]  # fmt: skip


def elements(datatype: str) -> st.SearchStrategy[Any]:
    if datatype == "BOOL":
        return st.booleans()
    if datatype.startswith("FP"):
        return st.floats(width=32 if datatype == "FP32" else 64, allow_nan=False, allow_infinity=False)
    bounds = np.iinfo(numpy_dtype(datatype).name)
    return st.integers(int(bounds.min), int(bounds.max))


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, Any]:
    datatype = draw(st.sampled_from(_NUMBERS))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = math.prod(shape)
    flat = draw(st.lists(elements(datatype), min_size=count, max_size=count))
    return datatype, np.array(flat, numpy_dtype(datatype)).reshape(shape)


@given(tensors(), st.booleans(), st.sampled_from([None, 2]))
@settings(max_examples=300, deadline=None)
def test_read_and_write_numbers_round_trip(tensor: tuple[str, Any], is_nested: bool, indent: int | None) -> None:
    datatype, array = tensor
    listed = array.tolist() if is_nested and array.ndim else array.reshape(-1).tolist()
    text = json.dumps(listed, indent=indent).encode()
    raw = values.read("x", datatype, list(array.shape), text)
    assert bytes(raw) == array.tobytes()
    written = json.loads(values.write("x", datatype, array.shape, raw))
    assert np.array(written, array.dtype).tobytes() == array.tobytes()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_read_and_write_strings_round_trip(texts: list[str]) -> None:
    raw = values.read("x", "BYTES", [len(texts)], json.dumps(texts).encode())
    assert to_array("x", "BYTES", (len(texts),), raw).tolist() == [text.encode() for text in texts]
    assert json.loads(values.write("x", "BYTES", (len(texts),), raw)) == texts


@given(st.binary(max_size=60), st.sampled_from([*_NUMBERS, "BYTES", "FP16"]))
def test_values_random_text_is_parsed_or_refused(text: bytes, datatype: str) -> None:
    with contextlib.suppress(InvalidInput):
        raw = values.read("x", datatype, [2], b"[" + text)
        assert to_array("x", datatype, (2,), raw).shape == (2,)


def test_read_and_write_large_tensor_round_trip() -> None:
    array = np.random.default_rng(3).standard_normal((3, 40_000)).astype(np.float32)
    raw = values.read("x", "FP32", [3, 40_000], json.dumps(array.tolist()).encode())
    assert bytes(raw) == array.tobytes()
    assert np.array_equal(np.array(json.loads(values.write("x", "FP32", array.shape, raw)), np.float32), array.ravel())


def test_read_and_write_64_bit_integers_are_exact() -> None:
    numbers = [2**63 - 1, -(2**63), 2**53 + 1]
    raw = values.read("x", "INT64", [3], json.dumps(numbers).encode())
    assert json.loads(values.write("x", "INT64", (3,), raw)) == numbers
    raw = values.read("x", "UINT64", [1], b"[18446744073709551615]")
    assert values.write("x", "UINT64", (1,), raw) == b"[18446744073709551615]"


def test_values_nan_and_infinities_are_bare_words() -> None:
    array = np.array([math.nan, math.inf, -math.inf, 1.5], np.float32)
    assert values.write("x", "FP32", (4,), array.tobytes()) == b"[NaN,Infinity,-Infinity,1.5]"
    text = values.with_bare_words(b"[NaN, Infinity, -Infinity, 1.5]")
    assert np.array_equal(np.frombuffer(values.read("x", "FP32", [4], text), np.float32), array, equal_nan=True)


@pytest.mark.parametrize(
    ("datatype", "shape", "text", "words"),
    [
        ("UINT8", [1], b"[300]", "do not fit UINT8"),
        ("UINT8", [1], b"[-1]", "UINT8"),
        ("INT64", [1], b"[9223372036854775808]", "INT64"),
        ("UINT64", [1], b"[18446744073709551616]", "UINT64"),
        ("INT32", [1], b"[1.5]", "INT32"),
        ("INT32", [1], b'["1"]', "INT32"),
        ("INT32", [1], b"[null]", "INT32"),
        ("FP32", [1], b"[true]", "FP32"),
        ("FP32", [1], b'["many"]', "FP32"),
        ("FP64", [1], b"[1e999]", "FP64"),
        ("BOOL", [1], b"[1]", "BOOL"),
        ("FP32", [2], b"[1]", "has 1 values"),
        ("FP32", [1], b"[1,2]", "has 2 values"),
        ("FP32", [2, -1], b"[1,2]", "has 2 values"),
        ("FP32", [2**40, 2**40], b"[1,2]", "has 2 values"),
        ("FP32", [1], b"[[],1]", "has 2 values"),
        ("FP32", [2], b"[[],1]", "FP32"),
        ("FP32", [1], b"7", "not a list"),
        ("FP32", [1], b'{"a":1}', "not a list"),
        ("BYTES", [1], b"[1]", "strings"),
        ("BYTES", [1], b'["\xff"]', "strings"),
        ("BYTES", [1], b'["a","b"]', "has 2 values"),
        ("BYTES", [1], b"[" * 200 + b'"a"' + b"]" * 200, "strings"),
        ("FP16", [1], b"[1]", "binary tensor data"),
        ("BF16", [1], b"[1]", "binary tensor data"),
    ],
)
def test_values_invalid_tensor_is_refused(datatype: str, shape: list[int], text: bytes, words: str) -> None:
    with pytest.raises(InvalidTensor, match="'x'") as caught:
        values.read("x", datatype, shape, text)
    assert words in str(caught.value)


@pytest.mark.parametrize(("datatype", "raw"), [("FP16", b"\0\0"), ("BYTES", b"\1\0\0\0\xff")])
def test_values_json_cannot_hold_are_refused(datatype: str, raw: bytes) -> None:
    with pytest.raises(InvalidTensor, match="binary"):
        values.write("y", datatype, (1,), raw)


def test_read_nested_lists_that_would_take_too_much_memory_are_refused() -> None:
    with pytest.raises(TooLarge, match="binary data"):
        values.read("x", "BYTES", [1], b"[" + b"[]," * (3 << 20) + b"[]]")
