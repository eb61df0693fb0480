"""Encoding of tensors as raw contents, and decoding."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edged.errors import InvalidInput, InvalidTensor
from edged.tensors import DATATYPES, Array, TensorSpec, byte_size, numpy_dtype, to_array, to_bytes

DENSE = [name for name in DATATYPES if name != "BYTES"]


@given(st.sampled_from(DENSE), st.data())
def test_codec_dense_tensor_round_trips_bit_for_bit(datatype: str, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    raw = data.draw(st.binary(min_size=byte_size(datatype, shape), max_size=byte_size(datatype, shape)))
    raw = bytes(b & 1 for b in raw) if datatype == "BOOL" else raw
    array = to_array("x", datatype, shape, memoryview(raw))
    assert array.dtype == numpy_dtype(datatype)
    assert array.shape == shape
    assert not array.flags.writeable
    assert bytes(to_bytes(array)) == raw


@given(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3), st.data())
def test_codec_strings_round_trip(shape: tuple[int, ...], data: st.DataObject) -> None:
    count = int(np.prod(shape))
    elements = data.draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
    array = np.empty(shape, np.object_)
    array.ravel()[:] = elements
    again = to_array("x", "BYTES", shape, memoryview(to_bytes(array)))
    assert again.shape == shape
    assert again.ravel().tolist() == elements


def test_to_bytes_array_of_any_layout_is_in_c_order() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert bytes(to_bytes(array.T)) == np.ascontiguousarray(array.T).tobytes()
    assert bytes(to_bytes(array[:, ::-1])) == array[:, ::-1].tobytes()


def test_to_bytes_strings_have_a_length_and_content() -> None:
    assert to_bytes(np.array([b"ab", b""], np.object_)) == b"\x02\0\0\0ab\0\0\0\0"


def test_to_array_dense_tensor_is_not_copied() -> None:
    data = bytearray(struct.pack("<2i", 1, 2))
    array = to_array("x", "INT32", (2,), memoryview(data))
    data[0] = 9
    assert array.tolist() == [9, 2]


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_to_array_wrong_number_of_bytes_is_refused_by_name(size: int) -> None:
    with pytest.raises(InvalidTensor, match=rf"'x' has {size} bytes, but INT32\[2\] needs 8"):
        to_array("x", "INT32", (2,), bytes(size))


MALFORMED = {
    "cut in a length": b"\x01\0\0",
    "cut in an element": b"\x05\0\0\0abc",
    "a length beyond all": b"\xff\xff\xff\xffabc",
    "one too many": b"\x01\0\0\0a\x01\0\0\0b\x01\0\0\0c",
    "one too few": b"\x01\0\0\0a",
    "none": b"",
    "trailing bytes": b"\x01\0\0\0a\x01\0\0\0bx",
}


@pytest.mark.parametrize("what", MALFORMED)
def test_to_array_malformed_strings_are_refused_by_name(what: str) -> None:
    with pytest.raises(InvalidTensor, match="'x'"):
        to_array("x", "BYTES", (2,), MALFORMED[what])


@given(st.binary(max_size=40), st.integers(0, 4))
def test_to_array_any_bytes_are_strings_or_refused(data: bytes, count: int) -> None:
    try:
        array = to_array("x", "BYTES", (count,), data)
    except InvalidInput:
        return
    assert bytes(to_bytes(array)) == data


# -- shapes and datatypes -------------------------------------------------------------------------------------------


def test_admits_only_shapes_with_the_fixed_dimensions() -> None:
    spec = TensorSpec("x", "FP32", ("n", 3, "?"))
    assert spec.dims == (-1, 3, -1)
    assert not spec.is_static
    assert spec.admits((0, 3, 7))
    for wrong in ((1, 4, 7), (1, 3), (1, 3, 7, 1), ()):
        assert not spec.admits(wrong)
    assert TensorSpec("x", "FP32", (2,)).is_static


def test_byte_size_of_dense_tensors_and_errors_for_strings() -> None:
    assert byte_size("FP64", (2, 3)) == 48
    assert byte_size("BF16", ()) == 2
    assert byte_size("INT8", (0, 5)) == 0
    with pytest.raises(ValueError):
        byte_size("BYTES", (1,))
    with pytest.raises(KeyError):
        numpy_dtype("FP8")


def test_to_bytes_every_dense_datatype_has_its_item_size() -> None:
    arrays: list[Array] = [np.zeros(2, numpy_dtype(name)) for name in DENSE]
    assert all(len(bytes(to_bytes(a))) == 2 * a.itemsize for a in arrays)
