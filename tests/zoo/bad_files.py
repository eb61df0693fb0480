"""Files that users pass by mistake, and damaged or truncated models."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import socket
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from onnx import numpy_helper

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Hall, refused
from tests.zoo.parts import dense, relu

HALL = Hall()
_NOT_A_FILE = refused(Stage.FILE, Category.NOT_A_FILE)
_NOT_ONNX = refused(Stage.PARSE, Category.NOT_ONNX)
_DAMAGED = refused(Stage.PARSE, Category.DAMAGED)


# -- no file, or an unreadable one -----------------------------------------------------------------------------------


@HALL.file(*refused(Stage.FILE, Category.EMPTY))
def empty(path: Path) -> None:
    """A file without a byte"""
    path.touch()


@HALL.file(*_NOT_A_FILE)
def fifo(path: Path) -> None:
    """A named pipe without a writer: opening it blocks"""
    os.mkfifo(path)


@HALL.file(*_NOT_A_FILE)
def directory(path: Path) -> None:
    """A folder with the name of a model"""
    path.mkdir()


@HALL.file(*_NOT_A_FILE)
def device(path: Path) -> None:
    """A link to an endless device"""
    path.symlink_to("/dev/zero")


@HALL.file(*_NOT_A_FILE)
def unix_socket(path: Path) -> None:
    """A socket, bound through a descriptor because the path may be too long for an address"""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


@HALL.file(*refused(Stage.FILE, Category.MISSING))
def dangling_link(path: Path) -> None:
    """A link to nothing"""
    path.symlink_to("nowhere.onnx")


# Unreadable, not missing: the entry exists and leads nowhere.
@HALL.file(*refused(Stage.FILE, Category.UNREADABLE))
def link_to_itself(path: Path) -> None:
    """A link that leads to itself"""
    path.symlink_to(path.name)


@HALL.file(*refused(Stage.FILE, Category.UNREADABLE), not_as_root=True)
def unreadable(path: Path) -> None:
    """A file without read permission"""
    path.write_bytes(relu().SerializeToString())
    path.chmod(0)


@HALL.file(*refused(Stage.FILE, Category.TOO_LARGE))
def larger_than_protobuf_takes(path: Path) -> None:
    """A sparse file of three gigabytes; protobuf messages have at most two"""
    path.write_bytes(relu().SerializeToString())
    os.truncate(path, 3 << 30)


@HALL.file(*_NOT_A_FILE)
def saved_model(path: Path) -> None:
    """The folder that TensorFlow writes"""
    path.mkdir()
    (path / "saved_model.pb").write_bytes(b"\x08\x01")


@HALL.file(*_NOT_A_FILE)
def folder_of_a_model(path: Path) -> None:
    """A folder with a model in it"""
    path.mkdir()
    (path / "yolo.onnx").touch()


# -- other formats ---------------------------------------------------------------------------------------------------


def _zip(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


def _tar() -> bytes:
    packed, content = io.BytesIO(), relu().SerializeToString()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("model.onnx")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _numpy() -> bytes:
    packed = io.BytesIO()
    np.save(packed, np.arange(64))
    return packed.getvalue()


_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 12345678\n"
_TENSOR = numpy_helper.from_array(np.ones((2, 3), np.float32), "input")
_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
_MISTAKES: dict[str, tuple[str, bytes]] = {
    "zip": ("a zip archive with a model inside", _zip("model.onnx", relu().SerializeToString())),
    "checkpoint": ("a PyTorch checkpoint", _zip("yolo/data.pkl", b"\x80\x02}.")),
    "pickle": ("a PyTorch checkpoint in the old format", pickle.dumps({"w": 1}, 2)),
    "keras": ("a Keras model", b"\x89HDF\r\n\x1a\n" + bytes(64)),
    "gzip": ("a model, compressed", gzip.compress(relu().SerializeToString(), mtime=0)),
    "tar": ("an archive with a model inside", _tar()),
    "html": ("a web page instead of a download", b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n"),
    "html_after_spaces": ("a web page that begins with empty lines", b"\n\n  <html></html>\n"),
    "xml": ("OpenVINO's own format", b'<?xml version="1.0"?>\n<net name="model" version="11"></net>\n'),
    "lfs_pointer": ("a Git LFS pointer instead of the file", _POINTER.encode()),
    "text": ("a note", b"This is not a model.\n" * 20),
    "text_other_alphabet": ("a note in Greek", "αυτό δεν είναι μοντέλο\n".encode() * 20),
    "text_cut_in_a_letter": (
        "a note whose first part, which is inspected, ends inside a character",
        ("h" + "ä" * 5000).encode(),
    ),
    "text_latin": ("a word in Latin-1", "nächst".encode("latin-1")),
    "text_wide": ("a note in UTF-16, as on Windows", "not a model\n".encode("utf-16")),
    "json": ("an error message of a server", b'{"error": {"code": 403, "message": "Forbidden"}}\n'),
    "png": ("the beginning of a picture", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(64)),
    "elf": ("the beginning of a program", b"\x7fELF\x02\x01\x01" + bytes(57)),
    "tflite": ("a model of another kind", b"\x1c\x00\x00\x00TFL3" + bytes(64)),
    "ort_format": ("ONNX Runtime's own format", b"\x18\x00\x00\x00ORTM" + bytes(64)),
    "numpy": ("an array", _numpy()),
    "tensor": ("an input of a test data set, also in protobuf", _TENSOR.SerializeToString()),
    "safetensors": ("weights without a graph", struct.pack("<Q", len(_HEADER)) + _HEADER + bytes(8)),
    "safetensors_bracket": (
        "weights without a graph; the length begins with an angle bracket, as a web page does",
        b"<" + bytes(7) + b'{"w":{}}'.ljust(60) + bytes(8),
    ),
    "tensorrt_plan": ("a built engine", b"ftrt" + bytes(28) + bytes(range(256))),
}
# A format without magic bytes is only known not to parse.
_OTHER = _NOT_ONNX + _DAMAGED
_SURE = (
    "tensor",
    "zip",
    "gzip",
    "html",
    "html_after_spaces",
    "xml",
    "lfs_pointer",
    "text",
    "text_other_alphabet",
    "json",
)


for _name, (_how, _content) in _MISTAKES.items():
    _endings = _NOT_ONNX if _name in _SURE else _OTHER
    HALL.content(_name, _how, _content, _endings)


# -- damage ----------------------------------------------------------------------------------------------------------


_DENSE, _RELU = dense(), relu().SerializeToString()
_WHOLE = _DENSE.SerializeToString()
_NOISE = random.Random(7)


def _overwritten(whole: bytes, at: int, content: bytes) -> bytes:
    return whole[:at] + content + whole[at + len(content) :]


def _with_flipped_length() -> bytes:
    at = _WHOLE.index(_DENSE.graph.SerializeToString()[:32]) - 1
    return _overwritten(_WHOLE, at, bytes([_WHOLE[at] ^ 0x40]))


_DAMAGE: dict[str, tuple[str, bytes]] = {
    "truncated_by_a_byte": ("all but the last byte", _WHOLE[:-1]),
    "truncated_with_zeros": (
        "zeros in the second half, as after an incomplete download",
        _WHOLE[: len(_WHOLE) // 2].ljust(len(_WHOLE), b"\0"),
    ),
    "all_zeros": ("a block of zeros, as after a crash of the machine", bytes(1 << 16)),
    "all_random": ("noise", _NOISE.randbytes(1 << 16)),
    "noise_after_the_end": ("a complete model followed by noise", _RELU + random.Random(8).randbytes(512)),
    "rot_in_a_length": ("one bit of the graph's length flipped: it ends after the file", _with_flipped_length()),
}
for _percent in (10, 50, 90):
    _cut = _WHOLE[: int(len(_WHOLE) * (_percent / 100))]
    _DAMAGE[f"truncated_to_{_percent}"] = (f"the first {_percent} % of a model", _cut)
# This model has hardly any weights, so that every position is structure.
for _percent in (0, 25, 50, 75):
    _rotten = _overwritten(_RELU * 2, len(_RELU) * 2 * _percent // 100, b"\xff" * 8)
    _DAMAGE[f"rot_at_{_percent}"] = (f"eight bytes overwritten after {_percent} % of the file", _rotten)
for _name, (_how, _content) in _DAMAGE.items():
    HALL.content(_name, _how, _content, _DAMAGED)
# Two bytes can end between two fields: then it is a valid message in which nearly everything is missing.
_TWO_BYTES = _DAMAGED + refused(Stage.PARSE, Category.NOT_ONNX, Category.NO_GRAPH)
HALL.content("truncated_to_two_bytes", "the first two bytes, which are a complete field", _WHOLE[:2], _TWO_BYTES)


# Only a digest from elsewhere could show that the weights have changed.
@HALL.file(SERVED)
def rot_in_weights(path: Path) -> None:
    """One flipped bit in the last digit of a weight"""
    proto = dense()
    data = bytearray(proto.graph.initializer[0].raw_data)
    data[400] ^= 1
    proto.graph.initializer[0].raw_data = bytes(data)
    path.write_bytes(proto.SerializeToString())
