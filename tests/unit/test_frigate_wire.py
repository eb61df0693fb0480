"""Frigate's detector messages, the conversion of its tensors for models, and the rows of answers."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.api.endpoints import frigate_wire as wire
from edged.api.endpoints.frigate_wire import MODEL_TYPES, Form, Reader
from edged.backends.contract import Signature
from edged.errors import InvalidInput, Unsupported
from edged.family_packages import Package
from edged.ipc import messages as m
from edged.models.entries import check_name, plain_entry
from edged.models.inspection import Inspection
from edged.models.model import Model
from edged.serving.work import Answered, EngineRef, FrameWork, OutputTensor, TensorWork
from edged.tensors import Shape, TensorSpec
from edged.vision import family as families
from edged.vision.detections import Detections
from edged.vision.family import Thresholds
from tests.waiting import run


def parse(header: Any, *data: bytes) -> wire.Message:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return wire.parse([memoryview(text), *map(memoryview, data)])


def tensor(shape: tuple[int, ...], dtype: str = "uint8") -> wire.Tensor:
    values = np.arange(math.prod(shape)) % 256
    message = parse({"shape": shape, "dtype": dtype, "model_type": "yologeneric"}, values.astype(dtype).tobytes())
    assert isinstance(message, wire.Tensor)
    return message


def test_parse_handshake_and_upload() -> None:
    assert parse({"model_request": True, "model_name": "a.onnx", "newer": 5}) == wire.ModelAsked("a.onnx")
    sent = parse({"model_data": True, "model_name": "a.onnx"}, b"onnx")
    assert isinstance(sent, wire.ModelSent)
    assert (sent.name, bytes(sent.data)) == ("a.onnx", b"onnx")


def test_parse_deeply_nested_header_is_refused() -> None:
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
def test_parse_tensor_has_the_layout_of_its_shape(
    shape: tuple[int, ...], planar: bool, size: tuple[int, int], channels: int, dtype: str
) -> None:
    found = tensor(shape, dtype)
    assert (found.is_planar, found.size, found.channels) == (planar, size, channels)
    assert found.pixels.dtype == dtype
    assert found.is_packed == (dtype == "uint8" and not planar)
    assert np.array_equal(found.pixels.ravel(), (np.arange(math.prod(shape)) % 256).astype(dtype))


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
def test_parse_malformed_message_is_refused_in_one_line(header: Any, data: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse(header, *data)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_parse_any_bytes_are_accepted_or_refused(frames: list[bytes]) -> None:
    with contextlib.suppress(InvalidInput):
        wire.parse([memoryview(frame) for frame in frames])


def found(answer: bytes) -> np.ndarray:
    assert len(answer) == 480
    return np.frombuffer(answer, np.float32).reshape(20, 6)


def test_rows_are_normalised_with_y_first_and_padded_with_zeros() -> None:
    table = found(wire.rows(Detections.of([[10, 20, 50, 40]], [0.5], [2]), 100, 40, 3))
    assert table[0].tolist() == pytest.approx([2, 0.5, 0.5, 0.1, 1.0, 0.5])
    assert not table[1:].any()
    assert wire.rows(Detections.empty(), 9, 9, 1) == wire.NOTHING


numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.tuples(st.tuples(numbers, numbers, numbers, numbers), numbers, st.integers(-5, 100)), max_size=60),
    st.integers(0, 91),
)
def test_rows_any_detections_give_valid_rows(given_: list[tuple[tuple[float, ...], float, int]], labels: int) -> None:
    boxes, scores, classes = ([each[i] for each in given_] for i in range(3))
    table = found(wire.rows(Detections.of(boxes, scores, classes), 320, 240, labels))
    assert np.isfinite(table).all()
    assert ((table[:, 2:] >= 0) & (table[:, 2:] <= 1)).all()
    known = [s for b, s, c in given_ if 0 <= c < labels and np.isfinite([*b, s]).all()]
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
def test_model_name_of_a_file(file: str, name: str) -> None:
    assert wire.model_name(file) == name


@pytest.mark.parametrize("file", ["", "/", "..", ".onnx", "---"])
def test_model_name_of_a_file_without_a_name_is_refused(file: str) -> None:
    with pytest.raises(InvalidInput):
        wire.model_name(file)


@given(st.text())
def test_model_name_of_any_file_is_valid_in_the_repository(file: str) -> None:
    name = ""
    with contextlib.suppress(InvalidInput):
        name = wire.model_name(file)
    if name:
        check_name(name)


_CELLS = 84  # 64 + 16 + 4 cells of a 64 x 64 input


def model(
    datatype: str = "FP32", shape: Shape = (1, 3, 64, 64), outputs: Shape = (1, 4 + 2, _CELLS), **settings: str
) -> Model:
    signature = Signature((TensorSpec("images", datatype, shape),), (TensorSpec("output0", "FP32", outputs),))
    facts = Inspection("d", "d", 1, 10, {"": 20}, "tests", {}, signature, {"Conv": 1}, 0, 0, 0, ())
    return Model.of(plain_entry("tiny", Path("/nowhere/tiny.onnx"), settings), facts)


def reader(of: Model, model_type: str = "yologeneric", score: float | None = None, labels: int = 0) -> Reader:
    return Reader(of, model_type, "rgb", score, labels)


def test_reader_of_another_packages_family_lets_the_host_decode() -> None:
    """The daemon does not run the package's code, so it must not get raw outputs."""
    own = model(family="ultralytics")
    known = msgspec.structs.replace(own.recognition, family="tiles", package=Package("p", "1", "digest"))
    other = msgspec.structs.replace(own, recognition=known)
    floats = tensor((1, 3, 64, 64), "float32")
    assert reader(own).form(floats).spec is not None
    form = reader(other).form(floats)
    assert (form.spec, form.pixel_format, form.width, form.height) == (None, "rgb", 64, 64)
    assert isinstance(work(form), FrameWork)
    with pytest.raises(Unsupported):
        reader(other).read(answered(other, None, (table(1, 1, 1, 1),)), form)


def work(form: Form) -> FrameWork | TensorWork:
    async def make() -> FrameWork | TensorWork:
        return form.work(Thresholds(), 5.0)

    return run(make())


@pytest.mark.parametrize(
    ("of", "shape", "pixel_format", "stride"),
    [
        *((model(*kind), (1, 64, 64, 3), "rgb", 192) for kind in ((), ("FP16",), ("UINT8",), ("FP32", (1, 64, 64, 3)))),
        (model(), (1, 3, 64, 64), "rgb", 192),
        (model(shape=(1, 1, 64, 64)), (1, 64, 64, 1), "gray", 64),
    ],
)
def test_form_of_bytes_is_a_picture(of: Model, shape: tuple[int, ...], pixel_format: str, stride: int) -> None:
    sent = tensor(shape)
    form = reader(of).form(sent)
    made = work(form)
    assert isinstance(made, FrameWork)
    assert (made.pixel_format, made.width, made.height, made.stride) == (pixel_format, 64, 64, stride)
    assert (made.expires, form.spec) == (5.0, None)
    pixels = sent.pixels[0].transpose(1, 2, 0) if sent.is_planar else sent.pixels
    assert bytes(form.data) == pixels.tobytes()
    assert np.shares_memory(np.frombuffer(form.data, np.uint8), sent.pixels) == sent.is_packed


@pytest.mark.parametrize("takes", [(1, 3, 64, 64), (1, 64, 64, 3), ("n", 3, "h", "w")])
@pytest.mark.parametrize("sent", [(1, 3, 64, 64), (1, 64, 64, 3)])
@pytest.mark.parametrize(("datatype", "dtype"), [("FP32", np.float32), ("FP16", np.float16)])
def test_form_of_floats_is_a_tensor_in_the_models_order_of_axes(
    takes: Shape, sent: tuple[int, ...], datatype: str, dtype: type[np.generic]
) -> None:
    settings = {} if takes[0] == 1 else {"preprocess.width": "64", "preprocess.height": "64"}
    given = tensor(sent, "float32")
    form = reader(model(datatype, takes, **settings)).form(given)
    made = work(form)
    assert isinstance(made, TensorWork)
    (one,) = made.inputs
    assert (one.name, one.datatype) == ("images", datatype)
    wanted = given.pixels.transpose(0, 2, 3, 1) if given.is_planar else given.pixels
    got = np.frombuffer(one.data, dtype).reshape(one.shape)
    got = got.transpose(0, 2, 3, 1) if got.shape[1] == 3 else got
    assert np.array_equal(got, wanted.astype(dtype))


@pytest.mark.parametrize("divisor", [1, 255])
def test_form_of_floats_that_do_not_fit_the_model_is_a_picture(divisor: int) -> None:
    original = tensor((1, 32, 32, 3))
    floats = wire.Tensor(original.pixels.astype(np.float32) / np.float32(divisor), "yologeneric")
    for of in (model("UINT8"), model()):  # another datatype, then another size
        form = reader(of).form(floats)
        assert form.spec is None
        assert bytes(form.data) == original.pixels.tobytes()


def test_form_of_floats_that_are_not_finite_is_a_picture() -> None:
    odd = np.array([np.nan, np.inf, -np.inf] * 1024, np.float32).reshape(1, 32, 32, 3)
    form = reader(model("UINT8")).form(wire.Tensor(odd, ""))
    assert set(bytes(form.data)) == {0, 255}


def test_form_for_a_model_without_pictures_is_a_tensor_or_refused() -> None:
    of = model(shape=(1, 3, 64, 64), outputs=(1, 5), **{"preprocess.width": "64"})
    assert reader(of).form(tensor((1, 3, 64, 64), "float32")).spec is not None
    blind = model(shape=(1, 7, 64, 64), outputs=(1, 5))
    with pytest.raises(InvalidInput, match="nor pictures"):
        reader(blind).form(tensor((1, 64, 64, 3)))


def answered(of: Model, detections: Detections | None = None, outputs: tuple[OutputTensor, ...] = ()) -> Answered:
    packed = None if detections is None else detections.pack()
    return Answered(EngineRef("k", "fake", "d", of.recognition), packed, outputs, 64, 64, 0.0, m.Times())


def test_read_boxes_are_relative_to_the_picture_as_sent() -> None:
    of = model()
    made = reader(of, labels=3)
    form = made.form(tensor((1, 128, 128, 3)))
    rows = found(made.read(answered(of, Detections.of([[0, 32, 64, 128]], [0.5], [2])), form))
    assert rows[0].tolist() == [2, 0.5, 0.25, 0, 1, 0.5]


def table(x: float, y: float, score: float, label: int) -> OutputTensor:
    """Return an output with one box of 16 x 16 pixels in the first cell."""
    values = np.zeros((1, 6, _CELLS), np.float32)
    values[0, :4, 0] = (x, y, 16, 16)
    values[0, 4 + label, 0] = score
    return OutputTensor("output0", "FP32", (1, 6, _CELLS), values.tobytes())


@pytest.mark.parametrize("settings", [{}, {"family": "raw"}])
def test_read_raw_outputs_uses_the_models_family_or_frigates_type(settings: dict[str, str]) -> None:
    of = model(**settings)
    made = reader(of, score=0.2)
    form = made.form(tensor((1, 3, 64, 64), "float32"))
    rows = found(made.read(answered(of, None, (table(32, 16, 0.75, 1),)), form))
    assert rows[0].tolist() == pytest.approx([1, 0.75, 8 / 64, 24 / 64, 24 / 64, 40 / 64])
    assert not rows[1:].any()
    assert not found(made.read(answered(of, None, (table(32, 16, 0.1, 1),)), form)).any(), "below the threshold"


@pytest.mark.parametrize("model_type", ["", "ssd", "unheard"])
def test_read_outputs_of_no_known_family_is_unsupported(model_type: str) -> None:
    of = model(family="raw")
    made = reader(of, model_type)
    with pytest.raises(Unsupported, match="set the model's `family`"):
        made.read(answered(of, None, (table(1, 1, 1, 1),)), made.form(tensor((1, 64, 64, 3))))


def test_reader_labels_are_the_models_names_or_as_configured() -> None:
    assert reader(model(names="a, b")).labels == 2
    assert reader(model()).labels == 91
    assert reader(model(names="a, b"), labels=7).labels == 7


def test_families_of_model_types_exist() -> None:
    assert {name for names in MODEL_TYPES.values() for name in names} <= set(families.FAMILIES)
