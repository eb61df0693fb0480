"""Weights in files next to the model, valid and invalid."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Ending, Exhibit, Hall, refused
from tests.zoo.good_graphs import calling, function
from tests.zoo.parts import body, chain, choice, constant, node, value

HALL = Hall()
WEIGHTS = "weights.bin"
_STAGE = Stage.EXTERNAL_DATA
_MISSING = refused(_STAGE, Category.EXTERNAL_MISSING)
_OUTSIDE = refused(_STAGE, Category.EXTERNAL_OUTSIDE)
_NOT_A_FILE = refused(_STAGE, Category.EXTERNAL_NOT_A_FILE)
_TRUNCATED = refused(_STAGE, Category.EXTERNAL_TRUNCATED)
_DAMAGED = refused(_STAGE, Category.EXTERNAL_DAMAGED)
_NUMBERS = np.array([1, 2, 3, 4], np.float32)


def _outside(tensor: onnx.TensorProto, entries: Mapping[str, str]) -> onnx.TensorProto:
    """Return the tensor with its bytes in an external file."""
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def _model(*places: Mapping[str, str]) -> onnx.ModelProto:
    """Return y = x times four numbers, multiplied once per place."""
    weights = [_outside(constant(f"w{at}", _NUMBERS), entries) for at, entries in enumerate(places)]
    names = ["x", *(f"t{at}" for at in range(1, len(places))), "y"]
    return chain(*(node("Mul", [names[at], f"w{at}"], [names[at + 1]]) for at in range(len(places))), constants=weights)


def _write(entries: Mapping[str, str], content: bytes | None, path: Path) -> None:
    path.write_bytes(_model(entries).SerializeToString())
    if content is not None:
        place = path.parent / entries.get("location", WEIGHTS)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


_WHOLE = _NUMBERS.tobytes()
_PADDED = bytes(64) + _WHOLE
_SHA_1 = hashlib.sha1(_WHOLE, usedforsecurity=False).hexdigest()
_AT = {"location": WEIGHTS, "offset": "0", "length": "16"}
# An impossible number may also be reported as a file that is too short.
_IMPOSSIBLE = _DAMAGED + _TRUNCATED
_NO_PLACE = _OUTSIDE + _DAMAGED + _MISSING  # no file can have such a name

# Changed entries of the reference, the content of the file (None: no file), and the expected outcomes.
_PLACES: dict[str, tuple[str, Mapping[str, str], bytes | None, tuple[Ending, ...]]] = {
    "external": ("weights in a file next to the model", {}, _WHOLE, (SERVED,)),
    "external_at_an_offset": ("weights after others", {"offset": "64"}, _PADDED, (SERVED,)),
    "external_in_a_folder": ("weights in a folder next to the model", {"location": "data/w.bin"}, _WHOLE, (SERVED,)),
    "external_unicode": ("weights in a file with an odd name", {"location": "größe 模型.bin"}, _WHOLE, (SERVED,)),
    "external_with_checksum": ("weights with their checksum", {"checksum": _SHA_1}, _WHOLE, (SERVED,)),
    "external_with_checksum_in_capitals": ("as before, in capitals", {"checksum": _SHA_1.upper()}, _WHOLE, (SERVED,)),
    "external_altered": ("weights that do not match the checksum", {"checksum": _SHA_1}, bytes(16), _DAMAGED),
    "external_checksum_odd": ("a checksum of another kind", {"checksum": "0" * 64}, _WHOLE, _DAMAGED),
    "external_missing": ("a missing file of weights", {}, None, _MISSING),
    "external_empty": ("an empty file of weights", {}, b"", _TRUNCATED),
    "external_truncated": ("weights that end too early", {}, _WHOLE[:10], _TRUNCATED),
    "external_offset_beyond": ("weights after the end of their file", {"offset": "4096"}, _WHOLE, _TRUNCATED),
    "external_offset_negative": ("weights before the beginning", {"offset": "-16"}, _PADDED, _DAMAGED),
    "external_length_negative": ("weights of a negative length", {"length": "-16"}, _WHOLE, _DAMAGED),
    "external_offset_huge": ("weights at an offset beyond any file", {"offset": str(2**62)}, _WHOLE, _IMPOSSIBLE),
    "external_length_huge": ("weights longer than any file", {"length": str(2**62)}, _WHOLE, _IMPOSSIBLE),
    "external_sum_overflows": ("an end beyond 64 bits", {"offset": str(2**63 - 8)}, _WHOLE, _IMPOSSIBLE),
    "external_beyond_64_bits": ("an offset of forty digits", {"offset": "9" * 40}, _WHOLE, _IMPOSSIBLE),
    "external_digits_galore": ("an offset of ten thousand digits", {"offset": "9" * 10_000}, _WHOLE, _IMPOSSIBLE),
    "external_offset_no_number": ("an offset that is not a decimal number", {"offset": "0x10"}, _PADDED, _DAMAGED),
    "external_length_wrong": ("fewer bytes than the shape says", {"length": "8"}, _WHOLE, _IMPOSSIBLE),
    "external_length_too_long": ("more bytes than the shape says", {"length": "80"}, _PADDED, _DAMAGED),
    "external_nowhere": ("weights in a file without a name", {"location": ""}, None, _NO_PLACE),
    "external_name_too_long": ("a name longer than file systems allow", {"location": "w" * 5000}, None, _NO_PLACE),
    "external_name_with_nul": ("a name with a NUL byte inside", {"location": "w\0.bin"}, None, _NO_PLACE),
    "external_absolute": ("a file of the system", {"location": "/etc/passwd"}, None, _OUTSIDE),
    "external_upwards": ("a file outside the model's folder", {"location": "../outside.bin"}, None, _OUTSIDE),
    "external_roundabout": (
        "outside, by a path through a subfolder",
        {"location": "data/../../outside.bin"},
        None,
        _OUTSIDE,
    ),
    "external_far_upwards": ("up to the root", {"location": "../" * 40 + "etc/passwd"}, None, _OUTSIDE),
}
for _name, (_how, _special, _content, _endings) in _PLACES.items():
    HALL.exhibits.append(Exhibit(_name, _how, partial(_write, {**_AT, **_special}, _content), _endings))
HALL.exhibits += [
    Exhibit(
        "external_without_length",
        "weights to the end of the file",
        partial(_write, {"location": WEIGHTS}, _WHOLE),
        (SERVED,),
    ),
    Exhibit(
        "external_without_location",
        "external weights without a location",
        partial(_write, {"offset": "0"}, None),
        _NO_PLACE,
    ),
]


# -- special files ---------------------------------------------------------------------------------------------------


def _placed(place: Callable[[Path], object], path: Path) -> None:
    path.write_bytes(_model(_AT).SerializeToString())
    place(path.parent / WEIGHTS)


def _link_outside(weights: Path) -> None:
    outside = weights.parent.parent / f"outside-{weights.parent.name}.bin"
    outside.write_bytes(_WHOLE)
    weights.symlink_to(outside)


def _link_inside(weights: Path) -> None:
    (weights.parent / "the weights.bin").write_bytes(_WHOLE)
    weights.symlink_to("the weights.bin")


# A link is not a regular file, and may lead outside, or nowhere.
_LINKED = _OUTSIDE + _NOT_A_FILE
for _name, _how, _place, _endings in (
    ("external_fifo", "a named pipe without a writer", os.mkfifo, _NOT_A_FILE),
    ("external_directory", "a folder where weights belong", Path.mkdir, _NOT_A_FILE),
    ("external_link_outside", "a link out of the model's folder", _link_outside, _LINKED),
    ("external_link_to_a_device", "a link to a device", lambda at: at.symlink_to("/dev/zero"), _LINKED),
    ("external_link_to_nothing", "a link to nothing", lambda at: at.symlink_to("lost"), _LINKED + _MISSING),
    ("external_link_to_itself", "a link to itself", lambda at: at.symlink_to(WEIGHTS), _LINKED + _MISSING),
    # Harmless by itself, but its target can change at any moment.
    ("external_link_inside", "a link to a file in the same folder", _link_inside, (SERVED, *_LINKED)),
):
    HALL.exhibits.append(Exhibit(_name, _how, partial(_placed, _place), _endings))


@HALL.file(*_OUTSIDE)
def external_through_a_linked_folder(path: Path) -> None:
    """A folder next to the model that is a link to a folder outside"""
    outside = path.parent.parent / f"outside-{path.parent.name}"
    outside.mkdir()
    (outside / "w.bin").write_bytes(_WHOLE)
    (path.parent / "data").symlink_to(outside)
    path.write_bytes(_model({**_AT, "location": "data/w.bin"}).SerializeToString())


@HALL.file(SERVED)
def external_many_files(path: Path) -> None:
    """A file for every tensor"""
    path.write_bytes(_model(*({**_AT, "location": f"w{at}.bin"} for at in range(50))).SerializeToString())
    for at in range(50):
        (path.parent / f"w{at}.bin").write_bytes(_WHOLE)


@HALL.file(SERVED)
def external_shared(path: Path) -> None:
    """Two tensors with the same bytes"""
    path.write_bytes(_model(_AT, _AT).SerializeToString())
    (path.parent / WEIGHTS).write_bytes(_WHOLE)


@HALL.file(*_MISSING)
def external_one_of_many_missing(path: Path) -> None:
    """A file for every tensor, with the last one missing"""
    path.write_bytes(_model(*({**_AT, "location": f"w{at}.bin"} for at in range(9))).SerializeToString())
    for at in range(8):
        (path.parent / f"w{at}.bin").write_bytes(_WHOLE)


def _lost(name: str) -> onnx.TensorProto:
    return _outside(constant(name, _NUMBERS), _AT)


@HALL.model(*_MISSING)
def external_missing_in_a_branch() -> onnx.ModelProto:
    """Missing weights of a branch"""
    then = body(node("Mul", "x w", "t"), outputs=[value("t")])
    then.initializer.append(_lost("w"))
    other = body(node("Neg", "x", "e"), outputs=[value("e")])
    return chain(choice(then, other), inputs=[value("up", "BOOL", []), value("x")])


@HALL.model(*_MISSING)
def external_missing_in_an_attribute() -> onnx.ModelProto:
    """Missing value of a Constant node"""
    return chain(node("Constant", "", "w", value=_lost("")), node("Mul", "x w", "y"))


@HALL.model(*_MISSING)
def external_missing_in_a_function() -> onnx.ModelProto:
    """Missing constant of a function"""
    return calling(function("Outer", [node("Constant", "", "w", value=_lost("")), node("Mul", "a w", "b")]))


@HALL.model(*_MISSING)
def external_missing_in_a_branch_of_a_function() -> onnx.ModelProto:
    """Missing constant in a branch of a function"""
    then = body(node("Mul", "a w", "t"), outputs=[value("t")])
    then.initializer.append(_lost("w"))
    other = body(node("Neg", "a", "e"), outputs=[value("e")])
    up = node("Constant", "", "up", value=constant("", True, np.bool_))
    return calling(function("Outer", [up, choice(then, other, output="b")]))


_BIG = 2_200 << 20  # bytes, more than a protobuf message can have


@HALL.file(SERVED, costly=True)
def external_beyond_two_gigabytes(path: Path) -> None:
    """Weights of more than two gigabytes, in a sparse file"""
    row = 1 << 20
    table = onnx.TensorProto(name="table", data_type=onnx.TensorProto.UINT8, dims=[_BIG // row, row])
    entries = {"location": WEIGHTS, "offset": "0", "length": str(_BIG)}
    nodes = node("Gather", "table row", "line", axis=0), node("Slice", "line from to", "y")
    constants = [constant("from", [0, 0], np.int64), constant("to", [1, 8], np.int64)]
    proto = chain(
        *nodes,
        inputs=[value("row", "INT64", [1])],
        outputs=[value("y", "UINT8", [1, 8])],
        constants=[_outside(table, entries), *constants],
    )
    path.write_bytes(proto.SerializeToString())
    weights = path.parent / WEIGHTS
    weights.write_bytes(b"\1" * 8)
    os.truncate(weights, _BIG)
