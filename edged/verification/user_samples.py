"""The user's samples of a model: tensors to probe it with, and pictures to calibrate int8 on.

Tensors are for a model that only accepts certain values, which generated probes do not have. They are in a *.npz file
of numpy.savez, with an array for each input by its name. Format:
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Files are untrusted: no pickle is read, and
nothing is unpacked before its size is known.

An engine is most accurate on its calibration pictures, so some pictures are only used to judge engines. These are every
second picture of the user, if there are enough, and a separate set of drawn pictures (`pictures.py`).

The daemon's event loop computes the digest of the calibration data of every planned engine. So nothing here decodes a
picture. Only the child that calibrates (`jobs/int8_pictures.py`) decodes pictures.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from edged.backends.contract import Signature
from edged.errors import InvalidInput
from edged.models.collected import Collected
from edged.models.samples import SHA_256, content, is_tensors
from edged.tensors import Array, TensorSpec, numpy_dtype
from edged.verification.probes import GIVEN, Probe, sample_content
from edged.vision.family import Recognition

_MOST_BYTES = 64 << 20  # of all arrays of a sample; more bytes would hardly fit into a request
_MEMBER = ".npy"
# How to convert an array, by the datatype of the input; astype() for the others.
_WAYS = {
    "BYTES": "strings: astype('S')",
    "BF16": "BF16, the upper half of each float32: (a.astype('float32').view('uint32') >> 16).astype('uint16')",
}
_Header: TypeAlias = tuple[tuple[int, ...], bool, np.dtype[np.generic]]  # shape, whether in Fortran's order, type
_HEADERS: Mapping[tuple[int, int], Callable[[io.BytesIO], _Header]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# What zipfile, zlib and numpy raise for invalid files.
_DAMAGED = (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, NotImplementedError, EOFError, OSError)
# Increase this number with every change of the calibration (pictures.py, jobs/onnx_int8.py, jobs/int8_*.py).
_METHOD = 4
_MOST_FRAMES = 128  # collected frames to calibrate on
_ENOUGH = 4  # with fewer pictures of the user, all are used to calibrate


def tensor_probes(signature: Signature, samples: Sequence[str]) -> Iterator[Callable[[], Probe]]:
    """Yield, for each file of tensors, a function that reads the file: see `read_tensors`."""
    yield from (partial(read_tensors, Path(path), signature) for path in samples if is_tensors(path))


def read_tensors(path: Path, signature: Signature, content: str = "") -> Probe:
    """Read the inputs in a file. Raises InvalidInput, with the file's name, if the file cannot be used with the model.
    Raises Superseded if `content` is given and is not the file's SHA-256."""
    encoded = sample_content(path, content)
    try:
        with zipfile.ZipFile(io.BytesIO(encoded)) as archive:
            arrays = _arrays(archive, {spec.name: spec for spec in signature.inputs})
    except InvalidInput as error:
        raise InvalidInput(f"sample {path.name} cannot be used: {error}") from error
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:200]
        message = f"sample {path.name} cannot be used: not a complete file of numpy.savez ({reason})"
        raise InvalidInput(message) from error
    return Probe(arrays, GIVEN, path.name)


def _arrays(archive: zipfile.ZipFile, specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    members = {member.filename.removesuffix(_MEMBER): member for member in archive.infolist()}
    if sum(member.file_size for member in members.values()) > _MOST_BYTES:
        raise InvalidInput(f"the arrays in the file take more than {_MOST_BYTES >> 20} MiB together")
    for name in members:
        if name not in specs:
            raise InvalidInput(
                f"array {name[:80]!r} is not an input of the model, whose inputs are {', '.join(map(repr, specs))}"
            )
    for name in specs:
        if name not in members:
            raise InvalidInput(f"the file has no array {name[:80]!r}; give an array for each input of the model")
    return {name: _array(archive.read(members[name]), spec) for name, spec in specs.items()}


def _array(member: bytes, spec: TensorSpec) -> Array:
    """Return one array in C order and in the dtype of the input. Raises InvalidInput if the array does not fit."""
    file = io.BytesIO(member)
    shape, is_fortran, dtype = _header(file, spec)
    if not spec.admits(shape):
        raise InvalidInput(f"array {spec.name[:80]!r} has shape {list(shape)}, but the model takes {list(spec.dims)}")
    wanted = numpy_dtype(spec.datatype)
    is_text = spec.datatype == "BYTES" and dtype.kind in "SU"
    if not is_text and (dtype.hasobject or dtype.newbyteorder("=") != wanted):
        way = _WAYS.get(spec.datatype, f"{spec.datatype}: astype({wanted.name!r})")
        raise InvalidInput(f"array {spec.name[:80]!r} has dtype {dtype}, but the model takes {way}")
    data = file.read()
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise InvalidInput(f"array {spec.name[:80]!r} is damaged: its data has the wrong size for its shape")
    flat = np.frombuffer(data, dtype)
    array = flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)
    if is_text:
        return np.array([_text(text) for text in array.ravel().tolist()], np.object_).reshape(shape)
    return np.array(array, wanted, order="C")


def _header(file: io.BytesIO, spec: TensorSpec) -> _Header:
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        found = ".".join(map(str, version))
        raise InvalidInput(f"array {spec.name[:80]!r} has .npy version {found}; edged reads versions 1.0 and 2.0")
    try:
        return _HEADERS[version](file)
    except Exception as error:  # numpy parses it as a Python literal; the errors have no common base class
        raise InvalidInput(f"array {spec.name[:80]!r} has a damaged header") from error


def _text(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def calibration_pictures(samples: Sequence[str], digest_of: Callable[[str], str] = content) -> dict[str, str]:
    """Return the user's pictures to calibrate on: all, or every second one if there are at least four. The result maps
    the SHA-256 of each picture's content to its path, sorted by SHA-256.

    `digest_of` returns the SHA-256 of a file. Equal pictures count as one, names have no effect, and files that cannot
    be read are left out.
    """
    pictures = sorted((path for path in samples if not is_tensors(path)), reverse=True)
    found = {named: path for path in pictures if SHA_256.fullmatch(named := digest_of(path))}
    return {named: found[named] for named in sorted(found)[:: 2 if len(found) >= _ENOUGH else 1]}


def calibration_frames(collected: Collected | None) -> Collected | None:
    """Return the part of a model's collected frames that int8 is calibrated on. The frames, in the order of time, are
    divided into at most `_MOST_FRAMES` groups of about the same size. The frame with the smallest digest of each group
    is returned. This is like a random choice, so no camera is preferred."""
    if collected is None:
        return None
    frames = list(collected.calibrate.items())  # in the order of time
    count = min(len(frames), _MOST_FRAMES)
    spans = [frames[len(frames) * at // count : len(frames) * (at + 1) // count] for at in range(count)]
    return Collected(collected.id, dict(min(span, key=lambda frame: frame[1]) for span in spans))


def calibration_digest(
    recognition: Recognition, samples: Sequence[str], digest_of: Callable[[str], str] = content, collection: str = ""
) -> str:
    """Return a digest (12 hexadecimal digits) of everything that calibration depends on, except the model. `samples`
    are paths; `collection` is the id of the model's collected frames; empty if no frames are collected.

    Return an empty text for a model that takes no pictures, because such a model cannot be calibrated.
    """
    if not recognition.preprocess:
        return ""
    return calibration_name(recognition, calibration_pictures(samples, digest_of), collection)


def calibration_name(recognition: Recognition, contents: Iterable[str], collection: str = "") -> str:
    """Return the digest of `calibration_digest`. `contents` are the SHA-256 digests of the chosen pictures."""
    parts = [_METHOD, recognition.preprocess, [*contents], *([collection] if collection else [])]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:12]
