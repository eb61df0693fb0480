"""Opens and parses a model's file, and finds out why a file is no ONNX model: another format, truncated or damaged.

Formats: https://protobuf.dev/programming-guides/encoding, onnx/onnx.proto, and the first bytes of other files.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import onnx
from google.protobuf.unknown_fields import UnknownFieldSet

from edged.errors import ModelRefused
from edged.files import read_regular
from edged.models.finding import Category, Finding, Stage
from edged.models.inspection import too_large
from edged.references import kept

_TRITON_NAME = "model.onnx"  # the file name in Triton's layout: MODEL/VERSION/model.onnx


def require(path: Path) -> int:
    """Return the size of a model's file in bytes. Raises ModelRefused if the file cannot be read or be a model."""
    try:
        status = path.stat()
    except OSError as error:
        raise _unopened(path, error).refusal() from error
    if stat.S_ISDIR(status.st_mode):
        raise Finding(Stage.FILE, Category.NOT_A_FILE, f"{path.name} is a folder", _in_folder(path)).refusal()
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would hang
        message = f"{path.name} is not a regular file"
        raise Finding(Stage.FILE, Category.NOT_A_FILE, message, "name the .onnx file itself").refusal()
    if status.st_size == 0:
        raise Finding(Stage.FILE, Category.EMPTY, f"{path.name} is empty", "copy the model again").refusal()
    if (finding := too_large(path.name, status.st_size)) is not None:
        raise finding.refusal()
    if not os.access(path, os.R_OK):
        message = f"{path.name} cannot be read: permission denied"
        raise Finding(Stage.FILE, Category.UNREADABLE, message, "give edged's user read permission").refusal()
    return status.st_size


def _unopened(path: Path, error: OSError) -> Finding:
    name = path.name
    if error.errno == errno.ELOOP:
        message = f"{name} is a symbolic link that leads back to itself"
        return Finding(Stage.FILE, Category.UNREADABLE, message, "name the .onnx file itself, or link to it")
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            message = f"{name} is a symbolic link to a file that does not exist"
            return Finding(Stage.FILE, Category.MISSING, message, "correct the link, or copy the file itself")
        end = Path(*path.parts[-3:]) if name == _TRITON_NAME else name
        return Finding(Stage.FILE, Category.MISSING, f"file {end} does not exist", _instead(path))
    is_closed = isinstance(error, PermissionError)  # not the file itself: a folder above it is closed to edged's user
    remedy = "give edged's user access to the file's folders" if is_closed else "correct the path, or check the disk"
    return Finding(Stage.FILE, Category.UNREADABLE, f"{name} cannot be opened: {error.strerror}", remedy)


def _instead(path: Path) -> str:
    """Return the remedy for a missing file."""
    if path.parent.parent.parent.name == kept.FOLDER:
        return "wait: edged fetches the file"
    found = _onnx_in(path.parent)
    if path.name == _TRITON_NAME and found:
        return f"rename {found} to {path.name}"
    return "copy the model there, or correct the path"


def _in_folder(path: Path) -> str:
    """Return the remedy for a model path that is a folder."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        names = []
    if "saved_model.pb" in names:
        return f"export TensorFlow's SavedModel: edged export {path.name}"
    found = _onnx_in(path)
    return f"name the .onnx file in it: {path.name}/{found}" if found else "name the .onnx file itself"


def _onnx_in(folder: Path) -> str:
    """Return the name of an .onnx file in a folder; empty if the folder has no such file."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    return next((name[:100] for name in names if name.endswith(".onnx") and name.isprintable()), "")


def parse(path: Path) -> tuple[onnx.ModelProto, str]:
    """Return the model in a file, and the SHA-256 of the parsed bytes as hexadecimal: the file may be replaced later.
    Raises ModelRefused if the file cannot be read or is not an ONNX model."""
    try:
        data = read_regular(path)
    except OSError as error:
        message = f"{path.name} cannot be read: {error.strerror}"
        raise Finding(
            Stage.FILE, Category.UNREADABLE, message, "check the disk, or copy the model again"
        ).refusal() from error
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except MemoryError:
        raise
    except Exception as error:  # the parser's errors have no common class
        _require_onnx(path.name, data)
        raise _unparsed(path.name, data) from error
    # Bytes of another format may happen to be a valid message.
    if not proto.graph.node and not proto.graph.output and not proto.opset_import:
        _require_onnx(path.name, data)
        if not proto.HasField("graph"):
            missing = f"{path.name} is not an ONNX model: it has no graph with outputs"
            raise _no_model(Category.NO_GRAPH, missing, "name the .onnx file itself, or copy it again")
    return proto, hashlib.sha256(data).hexdigest()


def _unparsed(name: str, data: bytes) -> ModelRefused:
    """Return the error for bytes that protobuf cannot parse."""
    trouble = wire_trouble(data)
    if trouble == "too deep":
        message = f"{name} nests graphs or types deeper than protobuf allows"
        return _no_model(Category.TOO_DEEP, message, "export the model with fewer nested loops and branches")
    reason = "it is truncated" if trouble == "truncated" else "it is damaged, or not a model"
    return _no_model(Category.DAMAGED, f"{name} cannot be parsed as an ONNX model: {reason}", "copy it again")


def _no_model(category: Category, message: str, remedy: str = "name the .onnx file itself") -> ModelRefused:
    return Finding(Stage.PARSE, category, message, remedy).refusal()


def _require_onnx(name: str, data: bytes) -> None:
    """Raise ModelRefused if a file is in another known format."""
    if (found := other_format(data)) is not None:
        raise _no_model(Category.NOT_ONNX, f"{name} is {found.kind}", found.remedy)
    if _is_tensor(data):
        kind = "a single tensor (TensorProto), such as an input of a test data set, not a model"
        remedy = (
            "name the .onnx file itself; to give its values as a sample, save them with numpy.savez and use --samples"
        )
        raise _no_model(Category.NOT_ONNX, f"{name} is {kind}", remedy)


def _is_tensor(data: bytes) -> bool:
    """Whether a file is a single TensorProto. False for a model, whose fields have other types."""
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(data)
    except Exception:  # the parser's errors have no common class
        return False
    holds = (tensor.raw_data, tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data)
    has_values = any(map(len, (*holds, tensor.uint64_data, tensor.string_data)))
    is_typed = tensor.data_type in onnx.TensorProto.DataType.values() and tensor.data_type != tensor.UNDEFINED
    return is_typed and has_values and len(UnknownFieldSet(tensor)) == 0


# -- other formats, by their first bytes ------------------------------------------------------------------------------

_TEXT = 4096  # the first bytes of a file, by which text is recognised
_UNPACK = "unpack it first"
_KERAS = "convert it with tf2onnx"
_ORIGINAL = "name the .onnx file that it was made from"
_EXPORT = "export it: edged export --help"


class OtherFormat(msgspec.Struct, frozen=True):
    """A format that is not ONNX. `kind` completes the sentence "FILE is ..."."""

    kind: str
    remedy: str


# Offset, bytes at that offset, format.
_MAGIC: tuple[tuple[int, bytes, OtherFormat], ...] = (
    (0, b"\x1f\x8b", OtherFormat("gzip-compressed", _UNPACK)),
    (0, b"BZh", OtherFormat("bzip2-compressed", _UNPACK)),
    (0, b"\xfd7zXZ\0", OtherFormat("xz-compressed", _UNPACK)),
    (0, b"\x28\xb5\x2f\xfd", OtherFormat("zstd-compressed", _UNPACK)),
    (0, b"7z\xbc\xaf\x27\x1c", OtherFormat("a 7-Zip archive", _UNPACK)),
    (257, b"ustar", OtherFormat("a tar archive", _UNPACK)),
    (0, b"version https://git-lfs", OtherFormat("a Git LFS pointer, not the file itself", "run git lfs pull")),
    (4, b"TFL3", OtherFormat("a TensorFlow Lite model", _KERAS)),
    (4, b"ORTM", OtherFormat("a model in ONNX Runtime's own format", _ORIGINAL)),
    (0, b"ftrt", OtherFormat("a TensorRT engine", _ORIGINAL)),
    (0, b"\x89HDF\r\n\x1a\n", OtherFormat("an HDF5 file, as Keras writes it", _KERAS)),
    (0, b"\x93NUMPY", OtherFormat("a NumPy array", "name the .onnx file itself")),
    (0, b"\x89PNG\r\n", OtherFormat("a picture", "name the .onnx file itself")),
    (0, b"\xff\xd8\xff", OtherFormat("a picture", "name the .onnx file itself")),
    (0, b"\x7fELF", OtherFormat("a program or library", "name the .onnx file itself")),
    (8, b'{"', OtherFormat("a safetensors file, which holds weights only", _EXPORT)),
)
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))


def other_format(data: bytes) -> OtherFormat | None:
    """Return the format of a file that is not an ONNX model; None if the format is not recognised."""
    if data.startswith(b"PK\x03\x04"):
        if b"/data.pkl" in data[:_TEXT]:
            return OtherFormat("a PyTorch checkpoint", _EXPORT)
        return OtherFormat("a zip archive", _UNPACK)
    if data.startswith(_PICKLES):
        return OtherFormat("a Python pickle, such as a PyTorch checkpoint", _EXPORT)
    for place, magic, found in _MAGIC:
        if data[place : place + len(magic)] == magic:
            return found
    return _text(data)


def _text(data: bytes) -> OtherFormat | None:
    if not _is_text(data):
        return None
    head = data[:_TEXT]
    if b"<net" in head:
        return OtherFormat("a model in OpenVINO's own format", _ORIGINAL)
    if head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"<"):
        return OtherFormat("a web page or XML, not an ONNX model", "download the file itself")
    return OtherFormat("a text file, not an ONNX model", "name the .onnx file itself")


def _is_text(data: bytes) -> bool:
    """Whether the beginning of a file is text."""
    head = data[:_TEXT]
    encoding = "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        # The last character may be incomplete.
        text = codecs.getincrementaldecoder(encoding)().decode(head, final=len(head) < _TEXT)
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character.isspace() for character in text)


# -- damage in protobuf's wire format ---------------------------------------------------------------------------------

Trouble: TypeAlias = Literal["truncated", "damaged", "too deep", ""]

# The fields that contain messages, by kind of message: field number and kind of the contained message.
_LEADS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node"},
    "graph": {1: "node", 11: "value", 12: "value", 13: "value"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph", 14: "type", 15: "type"},
    "value": {2: "type"},
    "type": {4: "inner", 9: "inner", 5: "map"},
    "inner": {1: "type"},
    "map": {2: "type"},
}
_DEEPEST = 99  # the deepest nesting of messages; protobuf's own limit is 100
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


def wire_trouble(data: bytes) -> Trouble:
    """Return the kind of damage in the wire format of a model; empty if no damage is found."""
    waiting = [("model", 0, len(data), 0)]
    found: Trouble = ""
    while waiting:
        kind, start, end, depth = waiting.pop()
        try:
            for number, first, after in _fields(data, start, end):
                inner = _LEADS[kind].get(number)
                if inner is None:
                    continue
                if depth >= _DEEPEST:
                    return "too deep"
                waiting.append((inner, first, after, depth + 1))
        except _Cut:
            found = found or ("truncated" if end == len(data) else "damaged")
        except ValueError:
            found = found or "damaged"
    return found


class _Cut(ValueError):
    """A field reaches beyond the end of its message."""


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each length-delimited field. Raises ValueError if the bytes are not a message."""
    while at < end:
        tag, at = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field of number 0")
        if kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind == _BYTES:
            size, at = _varint(data, at, end)
            if size > end - at:
                raise _Cut
            yield number, at, at + size
            at += size
        elif kind in (_EIGHT, _FOUR):
            at += 8 if kind == _EIGHT else 4
            if at > end:
                raise _Cut
        else:
            raise ValueError(f"a field of kind {kind}")


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= end:
            raise _Cut
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number of more than 64 bits")
