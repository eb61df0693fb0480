"""What Frigate's detector may say, and the rows that it is answered with."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.api.lanes import frigate_wire as wire
from edged.errors import InvalidInput
from edged.models.repository import check_name
from edged.vision.detections import Detections


def parse(header: Any, *data: bytes) -> wire.Message:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return wire.parse([memoryview(text), *map(memoryview, data)])


def tensor(shape: tuple[int, ...], dtype: str = "uint8", model_type: str = "yologeneric") -> wire.Tensor:
    data = np.arange(np.prod(shape)).astype(dtype).tobytes()
    message = parse({"shape": shape, "dtype": dtype, "model_type": model_type}, data)
    assert isinstance(message, wire.Tensor)
    return message


def test_a_handshake_is_told_from_an_upload() -> None:
    assert parse({"model_request": True, "model_name": "a.onnx"}) == wire.ModelAsked("a.onnx")
    sent = parse({"model_data": True, "model_name": "a.onnx"}, b"onnx")
    assert isinstance(sent, wire.ModelSent)
    assert (sent.name, bytes(sent.data)) == ("a.onnx", b"onnx")


def test_a_header_that_is_nested_too_deeply_is_none() -> None:
    with pytest.raises(InvalidInput, match="not one of Frigate"):
        parse(b'{"newer":' + b"[" * 4000, b"x")


@pytest.mark.parametrize(
    ("shape", "planar", "size", "channels"),
    [
        ((1, 240, 320, 3), False, (320, 240), 3),
        ((1, 3, 240, 320), True, (320, 240), 3),
        ((1, 1, 240, 320), True, (320, 240), 1),
        ((1, 240, 320, 1), False, (320, 240), 1),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_the_shape_tells_the_layout(
    shape: tuple[int, ...], planar: bool, size: tuple[int, int], channels: int, dtype: str
) -> None:
    found = tensor(shape, dtype)
    assert (found.is_planar, found.size, found.channels) == (planar, size, channels)
    assert found.pixels.dtype == dtype
    assert found.is_packed == (dtype == "uint8" and not planar)
    assert np.array_equal(found.pixels.ravel(), np.arange(np.prod(shape)).astype(dtype))


def test_keys_of_newer_frigates_are_passed_over() -> None:
    assert parse({"model_request": True, "model_name": "a", "nonce": 5}) == wire.ModelAsked("a")


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"", ()),
        (b"\xff\xfe", (b"",)),
        (b"[]", (b"",)),
        (b"{", ()),
        (b" " * 5000 + b"{}", (b"",)),
        ({}, ()),
        ({}, (b"", b"")),
        ({"model_data": True}, ()),
        ({"model_data": True}, (b"", b"")),
        ({"model_request": "yes"}, ()),
        ({"shape": [1, 2, 2, 3], "dtype": "float64"}, (bytes(96),)),
        ({"shape": [1, 2, 2, 3], "dtype": "uint8"}, (bytes(11),)),
        ({"shape": [1, 2, 2, 3], "dtype": "uint8"}, (bytes(13),)),
        ({"shape": [1, 2, 2, 3], "dtype": "float32"}, (bytes(12),)),
        ({"shape": [2, 2, 3], "dtype": "uint8"}, (bytes(12),)),
        ({"shape": [2, 2, 2, 3], "dtype": "uint8"}, (bytes(24),)),
        ({"shape": [1, 2, 2, 4], "dtype": "uint8"}, (bytes(16),)),
        ({"shape": [1, 0, 2, 3], "dtype": "uint8"}, (b"",)),
        ({"shape": [1, -2, -2, 3], "dtype": "uint8"}, (bytes(12),)),
        ({"shape": [1, 1 << 40, 1, 3], "dtype": "uint8"}, (bytes(12),)),
        ({"shape": [1, 2.5, 2, 3], "dtype": "uint8"}, (bytes(15),)),
        ({"shape": [], "dtype": "uint8"}, (bytes(1),)),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(header: Any, data: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse(header, *data)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_no_bytes_do_more_than_be_refused(frames: list[bytes]) -> None:
    with contextlib.suppress(InvalidInput):
        wire.parse([memoryview(frame) for frame in frames])


def test_no_message_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput):
        wire.parse([])


def read(answer: bytes) -> np.ndarray:
    assert len(answer) == 480
    return np.frombuffer(answer, np.float32).reshape(20, 6)


def test_rows_are_normalised_with_y_first() -> None:
    found = Detections.of([[10, 20, 50, 40]], [0.5], [2])
    assert read(wire.rows(found, 100, 40, 3))[0].tolist() == pytest.approx([2, 0.5, 0.5, 0.1, 1.0, 0.5])


def test_the_rest_is_zeros() -> None:
    assert not read(wire.rows(Detections.of([[1, 1, 2, 2]], [0.5], [0]), 9, 9, 1))[1:].any()
    assert wire.rows(Detections.empty(), 9, 9, 1) == wire.NOTHING


numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.tuples(st.tuples(numbers, numbers, numbers, numbers), numbers, st.integers(-5, 100)), max_size=60),
    st.integers(0, 91),
)
def test_rows_hold_only_what_frigate_can_take(found: list[tuple[tuple[float, ...], float, int]], labels: int) -> None:
    boxes, scores, classes = ([each[i] for each in found] for i in range(3))
    table = read(wire.rows(Detections.of(boxes, scores, classes), 320, 240, labels))
    assert np.isfinite(table).all()
    assert ((table[:, 2:] >= 0) & (table[:, 2:] <= 1)).all()
    known = [s for b, s, c in found if 0 <= c < labels and np.isfinite([*b, s]).all()]
    best = sorted(known, reverse=True)[:20]
    assert table[: len(best), 1].tolist() == pytest.approx(best)
    assert not table[len(best) :].any()
    assert all(0 <= c < max(labels, 1) for c in table[:, 0])


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("yolov9-t-320.onnx", "yolov9-t-320"),
        ("/config/model_cache/yolo.onnx", "yolo"),
        ("../../etc/passwd", "passwd"),
        ("C:\\models\\a.onnx", "a"),
        (".hidden.onnx", "hidden"),
        ("a;rm -rf.onnx", "a_rm -rf"),
        ("plain", "plain"),
        ("x" * 300, "x" * 128),
    ],
)
def test_a_file_stands_for_a_model(file: str, name: str) -> None:
    assert wire.model_name(file) == name


@pytest.mark.parametrize("file", ["", "/", "..", ".onnx", "---"])
def test_a_file_without_a_name_stands_for_none(file: str) -> None:
    with pytest.raises(InvalidInput):
        wire.model_name(file)


@given(st.text())
def test_every_name_is_one_that_the_repository_takes(file: str) -> None:
    with contextlib.suppress(InvalidInput):
        name = wire.model_name(file)
        assert accepts(name)


def accepts(name: str) -> bool:
    try:
        check_name(name)
    except InvalidInput:
        return False
    return True
