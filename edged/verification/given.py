"""The tensors that a user gives with a model to ask it with: for one that answers certain values only, which nothing
that edged makes up would hit.

A sample is a file *.npz, as numpy.savez writes it, with an array for each input by its name. Format:
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Files are strangers': no pickle is read, and
nothing is unpacked before its size is known.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edged.backends.contract import Signature
from edged.errors import InvalidInput
from edged.models.samples import is_tensors
from edged.tensors import Array, TensorSpec, numpy_dtype
from edged.verification.questions import GIVEN, Question, sample_content

_MOST_BYTES = 64 << 20  # of all arrays of a sample: more would hardly pass a request
_MEMBER = ".npy"
_Header: TypeAlias = tuple[tuple[int, ...], bool, np.dtype[np.generic]]  # shape, whether in Fortran's order, type
_HEADERS: Mapping[tuple[int, int], Callable[[io.BytesIO], _Header]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# What zipfile, zlib and numpy raise of files that are not what they say.
_DAMAGED = (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, NotImplementedError, EOFError, OSError)


def questions(signature: Signature, samples: Sequence[str]) -> Iterator[Callable[[], Question]]:
    """One for each file of tensors, read when it is called: see `read`."""
    yield from (partial(read, Path(path), signature) for path in samples if is_tensors(path))


def read(path: Path, signature: Signature, content: str = "") -> Question:
    """The inputs that a file holds. InvalidInput, with the file's name, where they are not the model's; Superseded
    where it is not the `content`, a SHA-256, that it is said to be."""
    encoded = sample_content(path, content)
    try:
        with zipfile.ZipFile(io.BytesIO(encoded)) as archive:
            arrays = _arrays(archive, {spec.name: spec for spec in signature.inputs})
    except InvalidInput as error:
        raise InvalidInput(f"sample {path.name} cannot be used: {error}") from error
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:200]
        message = f"sample {path.name} cannot be used: it is no whole file of numpy.savez ({reason})"
        raise InvalidInput(message) from error
    return Question(arrays, GIVEN, path.name)


def _arrays(archive: zipfile.ZipFile, specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    members = {member.filename.removesuffix(_MEMBER): member for member in archive.infolist()}
    if sum(member.file_size for member in members.values()) > _MOST_BYTES:
        raise InvalidInput(f"its arrays take more than {_MOST_BYTES >> 20} MiB")
    for name in members:
        if name not in specs:
            raise InvalidInput(f"{name[:80]!r} is no input of the model, which has {', '.join(map(repr, specs))}")
    for name in specs:
        if name not in members:
            raise InvalidInput(f"it has no array {name[:80]!r}: give one for each input of the model")
    return {name: _array(archive.read(members[name]), spec) for name, spec in specs.items()}


def _array(member: bytes, spec: TensorSpec) -> Array:
    """One array, in C's order, as sessions take it."""
    file = io.BytesIO(member)
    shape, is_fortran, dtype = _header(file, spec)
    if not spec.admits(shape):
        raise InvalidInput(f"array {spec.name[:80]!r} is {list(shape)}, the model takes {list(spec.dims)}")
    wanted = numpy_dtype(spec.datatype)
    is_text = spec.datatype == "BYTES" and dtype.kind in "SU"
    if not is_text and (dtype.hasobject or dtype.newbyteorder("=") != wanted):
        way = "texts: astype('S')" if spec.datatype == "BYTES" else f"{spec.datatype}: astype({wanted.name!r})"
        raise InvalidInput(f"array {spec.name[:80]!r} is {dtype}, the model takes {way}")
    data = file.read()
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise InvalidInput(f"array {spec.name[:80]!r} is cut off")
    flat = np.frombuffer(data, dtype)
    array = flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)
    if is_text:
        return np.array([_text(text) for text in array.ravel().tolist()], np.object_).reshape(shape)
    return np.array(array, wanted, order="C")


def _header(file: io.BytesIO, spec: TensorSpec) -> _Header:
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise InvalidInput(f"array {spec.name[:80]!r} is of format {version}, of which edged knows 1.0 and 2.0")
    try:
        return _HEADERS[version](file)
    except Exception as error:  # it is read as Python's words are, whose errors share no base
        raise InvalidInput(f"array {spec.name[:80]!r} has a damaged header") from error


def _text(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
