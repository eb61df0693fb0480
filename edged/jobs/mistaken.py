"""What people hand over in place of an ONNX file, by how it begins, and what to do instead. Pure.

Asked of what could not be parsed as ONNX, never before: a model may begin with any of these by chance.
"""

from __future__ import annotations

import codecs

import msgspec

_TEXT = 4096  # bytes that tell a text from anything else
_UNPACK = "unpack it first"
_KERAS = "convert it with tf2onnx"
_ORIGINAL = "name the .onnx file that it was made of"
_EXPORT = "export it with torch.onnx.export, or with its project's own exporter"


class Mistake(msgspec.Struct, frozen=True):
    """`kind` completes "FILE is ..."."""

    kind: str
    remedy: str


# Where it is, what is there.
_MAGIC: tuple[tuple[int, bytes, Mistake], ...] = (
    (0, b"\x1f\x8b", Mistake("gzip-compressed", _UNPACK)),
    (0, b"BZh", Mistake("bzip2-compressed", _UNPACK)),
    (0, b"\xfd7zXZ\0", Mistake("xz-compressed", _UNPACK)),
    (0, b"\x28\xb5\x2f\xfd", Mistake("zstd-compressed", _UNPACK)),
    (0, b"7z\xbc\xaf\x27\x1c", Mistake("a 7-Zip archive", _UNPACK)),
    (257, b"ustar", Mistake("a tar archive", _UNPACK)),
    (0, b"version https://git-lfs", Mistake("a Git LFS pointer, not the file itself", "run git lfs pull")),
    (4, b"TFL3", Mistake("a TensorFlow Lite model", _KERAS)),
    (4, b"ORTM", Mistake("a model in ONNX Runtime's own format", _ORIGINAL)),
    (0, b"ftrt", Mistake("an engine of TensorRT's", _ORIGINAL)),
    (0, b"\x89HDF\r\n\x1a\n", Mistake("an HDF5 file, as Keras writes it", _KERAS)),
    (0, b"\x93NUMPY", Mistake("an array of NumPy's", "name the .onnx file itself")),
    (0, b"\x89PNG\r\n", Mistake("a picture", "name the .onnx file itself")),
    (0, b"\xff\xd8\xff", Mistake("a picture", "name the .onnx file itself")),
    (0, b"\x7fELF", Mistake("a program or library", "name the .onnx file itself")),
    (8, b'{"', Mistake("a safetensors file, which holds weights only", _EXPORT)),
)
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))


def mistake(data: bytes) -> Mistake | None:
    """What a file is that is no ONNX model; None where it is nothing that is known."""
    if data.startswith(b"PK\x03\x04"):
        if b"/data.pkl" in data[:_TEXT]:
            return Mistake("a PyTorch checkpoint", _EXPORT)
        return Mistake("a zip archive", _UNPACK)
    if data.startswith(_PICKLES):
        return Mistake("a Python pickle, such as a PyTorch checkpoint", _EXPORT)
    for place, magic, found in _MAGIC:
        if data[place : place + len(magic)] == magic:
            return found
    return _text(data)


def _text(data: bytes) -> Mistake | None:
    if not is_text(data):
        return None
    head = data[:_TEXT]
    if b"<net" in head:
        return Mistake("a model in OpenVINO's own format", _ORIGINAL)
    if head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"<"):
        return Mistake("a web page or XML, not an ONNX model", "download the file itself")
    return Mistake("a text file, not a whole ONNX model", "name the .onnx file itself")


def is_text(data: bytes) -> bool:
    """Whether a file begins as text does."""
    head = data[:_TEXT]
    encoding = "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        # The last character may be cut in two.
        text = codecs.getincrementaldecoder(encoding)().decode(head, final=len(head) < _TEXT)
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character.isspace() for character in text)
