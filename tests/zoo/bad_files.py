"""What people hand over by mistake, and what a disk or a download leaves of a model."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import socket
import struct
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from onnx import numpy_helper

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Exhibit, Hall, refused
from tests.zoo.parts import dense, relu

HALL = Hall()
_NOT_A_FILE = refused(Stage.FILE, Category.NOT_A_FILE)
_NOT_ONNX = refused(Stage.PARSE, Category.NOT_ONNX)
_DAMAGED = refused(Stage.PARSE, Category.DAMAGED)


# -- no file, or none that can be read -------------------------------------------------------------------------------


@HALL.file(*refused(Stage.FILE, Category.EMPTY))
def empty(path: Path) -> None:
    """Not a byte"""
    path.touch()


@HALL.file(*_NOT_A_FILE)
def fifo(path: Path) -> None:
    """A named pipe that nobody writes to: who opens it waits for ever"""
    os.mkfifo(path)


@HALL.file(*_NOT_A_FILE)
def directory(path: Path) -> None:
    """A folder called like a model"""
    path.mkdir()


@HALL.file(*_NOT_A_FILE)
def device(path: Path) -> None:
    """A link to a device that never ends"""
    path.symlink_to("/dev/zero")


@HALL.file(*_NOT_A_FILE)
def unix_socket(path: Path) -> None:
    """A socket, by the way of a descriptor since the path may be longer than an address can be"""
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


# Unreadable rather than missing: there is an entry, and it leads nowhere.
@HALL.file(*refused(Stage.FILE, Category.UNREADABLE))
def link_to_itself(path: Path) -> None:
    """A link that leads to itself"""
    path.symlink_to(path.name)


@HALL.file(*refused(Stage.FILE, Category.UNREADABLE), not_as_root=True)
def unreadable(path: Path) -> None:
    """A file that only somebody else may read"""
    path.write_bytes(relu().SerializeToString())
    path.chmod(0)


@HALL.file(*refused(Stage.FILE, Category.TOO_LARGE))
def larger_than_protobuf_takes(path: Path) -> None:
    """A file of three gigabytes, all hole: no message of protobuf is larger than two"""
    path.write_bytes(relu().SerializeToString())
    os.truncate(path, 3 << 30)


@HALL.file(*_NOT_A_FILE)
def saved_model(path: Path) -> None:
    """The folder that TensorFlow writes"""
    path.mkdir()
    (path / "saved_model.pb").write_bytes(b"\x08\x01")


# -- something else --------------------------------------------------------------------------------------------------


def _zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("model.onnx"), relu().SerializeToString())
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
_MISTAKES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "zip": ("a zip archive with a model inside, which is also what PyTorch writes", _zip),
    "gzip": ("a model, compressed", lambda: gzip.compress(relu().SerializeToString(), mtime=0)),
    "tar": ("an archive with a model inside", _tar),
    "html": ("the web page of a download", lambda: b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n"),
    "html_after_spaces": ("a web page that begins with empty lines", lambda: b"\n\n  <html></html>\n"),
    "xml": ("OpenVINO's own format", lambda: b'<?xml version="1.0"?>\n<net name="model" version="11"></net>\n'),
    "lfs_pointer": ("what Git leaves in place of a large file", _POINTER.encode),
    "text": ("a note", lambda: b"This is not a model.\n" * 20),
    "text_other_alphabet": ("a note in Greek", lambda: "αυτό δεν είναι μοντέλο\n".encode() * 20),
    "text_wide": ("a note as Windows writes it, two bytes to a letter", lambda: "not a model\n".encode("utf-16")),
    "json": ("an error message of a server", lambda: b'{"error": {"code": 403, "message": "Forbidden"}}\n'),
    "png": ("the beginning of a picture", lambda: b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(64)),
    "elf": ("the beginning of a program", lambda: b"\x7fELF\x02\x01\x01" + bytes(57)),
    "tflite": ("a model of another kind", lambda: b"\x1c\x00\x00\x00TFL3" + bytes(64)),
    "ort_format": ("ONNX Runtime's own format", lambda: b"\x18\x00\x00\x00ORTM" + bytes(64)),
    "numpy": ("an array", _numpy),
    "tensor": ("an input of a test data set, in protobuf as a model is", _TENSOR.SerializeToString),
    "safetensors": ("weights without a graph", lambda: struct.pack("<Q", len(_HEADER)) + _HEADER + bytes(8)),
    "tensorrt_plan": ("a built engine", lambda: b"ftrt" + bytes(28) + bytes(range(256))),
}
# Of a format that announces itself by no first bytes nothing is known but that it does not parse.
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


def _write(content: Callable[[], bytes], path: Path) -> None:
    path.write_bytes(content())


for _name, (_how, _content) in _MISTAKES.items():
    _endings = _NOT_ONNX if _name in _SURE else _OTHER
    HALL.exhibits.append(Exhibit(_name, _how, partial(_write, _content), _endings))


# -- damage ----------------------------------------------------------------------------------------------------------


def _cut(share: float, path: Path) -> None:
    whole = dense().SerializeToString()
    path.write_bytes(whole[: int(len(whole) * share)])


for _percent in (10, 50, 90):
    _how = f"the first {_percent} % of a model"
    HALL.exhibits.append(Exhibit(f"truncated_to_{_percent}", _how, partial(_cut, _percent / 100), _DAMAGED))


@HALL.file(*_DAMAGED)
def truncated_by_a_byte(path: Path) -> None:
    """All but the last byte"""
    path.write_bytes(dense().SerializeToString()[:-1])


# Eight bytes can be cut between two fields: then it is a whole message, of which nearly everything is missing.
@HALL.file(*_DAMAGED, *refused(Stage.PARSE, Category.NOT_ONNX, Category.NO_GRAPH))
def truncated_to_two_bytes(path: Path) -> None:
    """The first two bytes, which are a whole field"""
    path.write_bytes(dense().SerializeToString()[:2])


@HALL.file(*_DAMAGED)
def truncated_with_zeros(path: Path) -> None:
    """The second half is zeros, as after a download that reserved its room"""
    whole = dense().SerializeToString()
    path.write_bytes(whole[: len(whole) // 2].ljust(len(whole), b"\0"))


@HALL.file(*_DAMAGED)
def all_zeros(path: Path) -> None:
    """A block of zeros, as a file system leaves it after a crash"""
    path.write_bytes(bytes(1 << 16))


@HALL.file(*_DAMAGED)
def all_random(path: Path) -> None:
    """Nothing but noise"""
    path.write_bytes(random.Random(7).randbytes(1 << 16))


@HALL.file(*_DAMAGED)
def noise_after_the_end(path: Path) -> None:
    """A whole model and noise behind it"""
    path.write_bytes(relu().SerializeToString() + random.Random(8).randbytes(512))


def _overwritten(at: float, with_: bytes, path: Path) -> None:
    """Structure is hit wherever this falls: the model has no weights to speak of."""
    whole = bytearray(relu().SerializeToString() + relu().SerializeToString())
    place = int(len(whole) * at)
    whole[place : place + len(with_)] = with_
    path.write_bytes(whole)


for _at in (0.0, 0.25, 0.5, 0.75):
    _how = f"eight bytes overwritten after {_at:.0%} of the file"
    _rot = Exhibit(f"rot_at_{int(_at * 100)}", _how, partial(_overwritten, _at, b"\xff" * 8), _DAMAGED)
    HALL.exhibits.append(_rot)


@HALL.file(*_DAMAGED)
def rot_in_a_length(path: Path) -> None:
    """One bit of the length of the graph flipped: it reaches beyond the end of the file"""
    proto = dense()
    whole = bytearray(proto.SerializeToString())
    at = whole.index(proto.graph.SerializeToString()[:32]) - 1
    whole[at] ^= 0x40
    path.write_bytes(whole)


# Nothing in an ONNX file tells whether weights are as they were trained: only a digest from elsewhere could.
@HALL.file(SERVED)
def rot_in_weights(path: Path) -> None:
    """One bit of a weight flipped, in the last digit"""
    proto = dense()
    data = bytearray(proto.graph.initializer[0].raw_data)
    data[400] ^= 1
    proto.graph.initializer[0].raw_data = bytes(data)
    path.write_bytes(proto.SerializeToString())
