"""Probes that an engine must answer before it may serve: seeded tensors of several kinds, the user's pictures and
tensors (`user_samples.py`), synthetic pictures, and synthetic sounds (`sounds.py`).

Pictures are prepared as in serving. They are needed because random tensors do not show all errors of an engine: a
detector rarely detects anything in random values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from edged.backends.contract import Signature
from edged.errors import EdgedError, InvalidInput, Superseded
from edged.files import read_regular
from edged.models.samples import check_size
from edged.tensors import Array, TensorSpec, numpy_dtype
from edged.verification import pictures, sounds
from edged.verification.shape_range import ShapeRange, Shapes
from edged.vision.family import Recognition, is_decoded_here, open_family
from edged.vision.placement import Fit, Placement, Roi, place
from edged.vision.sound import Sound

if TYPE_CHECKING:
    from edged.vision.image import Decoded, Image

_SEED = 20240229
# Sizes tried for dynamic dimensions other than the first, in this order, until the reference accepts one.
_SIZES = (64, 224, 32, 16, 8, 4, 2, 1, 512, 1024, 48, 96, 112, 128, 256, 320, 384, 416, 640, 16384)
_KINDS = ("unit", "normal", "wide")
_CONSTANTS = ("zeros", "ones")  # for models that only accept certain values: tried if no other probe is answered
_LARGEST = 1 << 28  # elements of one golden input
WIDE = "wide"  # the kind with values far outside the range that a model is made for
PICTURE = "picture"
GIVEN = "given"  # the user's tensors
SOUND = "sound"
USED = (GIVEN, PICTURE, SOUND)  # kinds with values that a model is used with


class Probe(msgspec.Struct, frozen=True):
    """The inputs of one inference, by name. `name` is the name of a sample or picture. `placement` is the place of a
    picture in the input; the picture is the first of the batch."""

    inputs: dict[str, Array]
    kind: str
    name: str = ""
    placement: Placement | None = None


def tensors(signature: Signature, recognition: Recognition, shape_range: ShapeRange) -> Iterator[list[Probe]]:
    """Yield lists of probes with seeded tensors, one list for each way to fill dynamic dimensions. Each list has every
    kind of values. Then yield lists with constants for the same shapes. The caller needs only the first list in which
    the reference answers a probe.

    The usual shapes come first, then the other shapes in the model's range, because an engine for a range refuses
    shapes outside it.
    """
    for kinds in (_KINDS, _CONSTANTS):
        for shapes in _candidates(signature, recognition, shape_range):
            yield [_tensors(signature, recognition, shapes, kind) for kind in kinds]


def one_by_one(
    signature: Signature,
    recognition: Recognition,
    shape_range: ShapeRange,
    most_bytes: int,
    answered: AbstractSet[str] = frozenset(),
) -> Iterator[Callable[[], Probe]]:
    """Yield functions that make the probes of `tensors`, in the same order. The probes are for a serving host, or for
    admission.

    Probes of more than `most_bytes` and probes of kind WIDE are left out. If an input is a count or a size, a huge
    number would keep the process busy for ever, or use up its memory. The caller may add the kinds of answered probes
    to `answered`. If `answered` has a kind, only the remaining probes with the current shapes follow.
    """
    for kinds in (_KINDS, _CONSTANTS):
        for shapes in _candidates(signature, recognition, shape_range):
            if _bytes(signature, shapes) <= most_bytes:
                if answered:
                    return
                yield from (partial(_tensors, signature, recognition, shapes, kind) for kind in kinds if kind != WIDE)


def _bytes(signature: Signature, shapes: Shapes) -> float:
    sizes = (np.prod(shapes[s.name], dtype=np.float64) * numpy_dtype(s.datatype).itemsize for s in signature.inputs)
    return sum(sizes)


def edges(signature: Signature, recognition: Recognition, shape_range: ShapeRange) -> list[Probe]:
    """Return probes with seeded tensors at the limits of the model's shape range. Empty if neither settings nor traffic
    define a range."""
    return [_tensors(signature, recognition, shapes, _KINDS[0]) for shapes in shape_range.edges(signature)]


class Pictures:
    """Makes probes of pictures. Raises InvalidInput if the model has no picture input (`recognition.preprocess`)."""

    def __init__(self, signature: Signature, recognition: Recognition) -> None:
        if recognition.preprocess is None:
            raise InvalidInput(f"this model takes no pictures: {recognition.picture}")
        from edged.vision.prepare import Preparer  # loads OpenCV, which the daemon does without

        self._preparer = Preparer(recognition.preprocess)
        self._companions = _Companions(recognition)
        self._input = recognition.input
        (first, *_) = next(spec.shape for spec in signature.inputs if spec.name == self._input)
        self._shape = (first if isinstance(first, int) else 1, *recognition.preprocess.shape)
        self._dtype = numpy_dtype(recognition.preprocess.datatype)

    def drawn(self, seed: int = pictures.TO_JUDGE) -> Iterator[Probe]:
        """Yield probes of the pictures that edged draws."""
        for number, pixels in enumerate(pictures.draw(seed), 1):
            yield self.of(f"drawn picture {number}", pixels)

    def sample(self, path: Path, content: str = "") -> Probe:
        """Return the probe of a user's picture. Raises InvalidInput, with the file's name, if the file cannot be used.
        Raises Superseded if `content` is given and is not the file's SHA-256."""
        return self.of(path.name, read_sample(path, content))

    def reduction(self, width: int, height: int, roi: Roi | None = None) -> float:
        """Return the factor by which a picture of this width and height, in pixels, may be reduced when it is decoded.
        See `Preparer.reduction`."""
        return self._preparer.reduction(width, height, roi)

    def of(self, name: str, pixels: Image | Decoded, roi: Roi | None = None) -> Probe:
        """Return the probe of a picture or of its region `roi`. A picture is BGR uint8 [height, width, 3]."""
        # As in serving: with a fixed batch the picture is the first and the rest stay zero.
        tensor = np.zeros(self._shape, self._dtype)
        placement = self._preparer.prepare(pixels, tensor[0], roi)
        inputs = {self._input: tensor, **self._companions.of([placement] * len(tensor))}
        return Probe(inputs, PICTURE, name, placement)


def made_sounds(recognition: Recognition) -> Iterator[Probe]:
    """Yield a probe for each sound that edged synthesises. Each probe is one window, with the model's states at the
    start of a stream. Yield nothing if the model has no sound input."""
    if (sound := recognition.sound) is not None:
        for name, samples in sounds.made(sound.context + sound.window, sound.rate):
            yield Probe(sound.inputs(samples, {}), SOUND, name)


class _Companions:
    """The inputs that a model's family fills in addition to the picture (`Family.extra_inputs`), such as the size of
    the picture. Random values would be invalid in these inputs. But a process that may not run the code of another
    package's family, such as the daemon, leaves them random. The engine may then refuse the probe, like any probe."""

    def __init__(self, recognition: Recognition) -> None:
        self._family = open_family(recognition) if is_decoded_here(recognition) else None

    def of(self, placements: Sequence[Placement]) -> dict[str, Array]:
        return dict(self._family.extra_inputs(placements)) if self._family is not None else {}


def read_sample(path: Path, content: str = "") -> Image:
    """Return a user's picture, BGR uint8 [height, width, 3]. Raises InvalidInput, with the file's name, if the file
    cannot be used. Raises Superseded if `content` is given and is not the file's SHA-256."""
    from edged.vision.image import decode  # loads OpenCV, which the daemon does without

    encoded = sample_content(path, content)
    try:
        return decode(encoded)
    except EdgedError as error:
        raise InvalidInput(f"sample {path.name} cannot be used: {error}") from error


def sample_content(path: Path, content: str = "") -> bytes:
    """Return the bytes of a user's sample. Raises InvalidInput if the file is too large, or cannot be read. If
    `content` is given, raises Superseded instead if the file cannot be read or has another SHA-256."""
    try:
        encoded = read_regular(path)
    except OSError as error:
        if content:
            raise Superseded(f"sample {path.name} can no longer be read: {error.strerror or error}") from error
        raise InvalidInput(f"sample {path.name} cannot be read: {error.strerror or error}") from error
    if content and hashlib.sha256(encoded).hexdigest() != content:
        raise Superseded(f"sample {path.name} was changed after edged had planned to use it")
    check_size(path.name, len(encoded))
    return encoded


def _candidates(signature: Signature, recognition: Recognition, shape_range: ShapeRange) -> Iterator[Shapes]:
    """Yield concrete shapes to try, each once. Shapes outside the range come last, for models that accept no shapes
    inside the range."""
    usual, tried = shape_range.usual(signature), list(_shapes(signature, recognition))
    first = [usual] if usual is not None and _are_small(usual) else []
    ordered = [*first, *filter(shape_range.contains, tried), *(s for s in tried if not shape_range.contains(s))]
    yield from (shapes for place, shapes in enumerate(ordered) if shapes not in ordered[:place])


def _are_small(shapes: Shapes) -> bool:
    return all(np.prod(shape, dtype=np.float64) <= _LARGEST for shape in shapes.values())


def _tensors(signature: Signature, recognition: Recognition, shapes: Shapes, kind: str) -> Probe:
    inputs = {s.name: _values(s.datatype, shapes[s.name], kind) for s in signature.inputs}
    if recognition.preprocess is not None:
        size = recognition.preprocess.width, recognition.preprocess.height
        filled = place(*size, *size, Fit.STRETCH)
        inputs |= _Companions(recognition).of([filled] * len(inputs[recognition.input]))
    if recognition.sound is not None and recognition.sound.rate_input:
        inputs[recognition.sound.rate_input] = _rate(recognition.sound, shapes)
    return Probe(inputs, kind)


def _rate(sound: Sound, shapes: Shapes) -> Array:
    """Return the sample rate that the model is used with: another rate would choose another branch of the graph."""
    return np.full(shapes[sound.rate_input], sound.rate, np.int64)


def _shapes(signature: Signature, recognition: Recognition) -> Iterator[Shapes]:
    """Yield concrete shapes to try. A leading dynamic dimension is a batch of one. Dimensions with equal names get
    equal sizes.

    In some models, unnamed dimensions of different inputs must agree, such as the batch of a sound and of its state. So
    the last candidates fill the unnamed dimensions of only one input. In the other inputs these dimensions are 1.
    """
    preprocess = recognition.preprocess
    if recognition.sound is not None:
        yield recognition.sound.shapes
    inputs = [_with_channels(spec, recognition) for spec in signature.inputs]
    own = [(preprocess.width, preprocess.height)] if preprocess else []
    sizes = [*own, *((size, size) for size in _SIZES)]
    if all(spec.is_static for spec in signature.inputs):
        sizes = sizes[:1]
    unsaid = [spec.name for spec in inputs if "?" in spec.shape]
    for only in ("", *(unsaid if len(unsaid) > 1 else ())):
        for width, height in sizes:
            named: dict[str, int] = {}
            one = {name for name in unsaid if only and name != only}
            shapes = {s.name: _shape(s, *((1, 1) if s.name in one else (width, height)), named) for s in inputs}
            if _are_small(shapes):
                yield shapes


def _with_channels(spec: TensorSpec, recognition: Recognition) -> TensorSpec:
    """Return the input with the number of channels of its pictures, which Hugging Face's exports leave open."""
    preprocess = recognition.preprocess
    if preprocess is None or spec.name != recognition.input or preprocess.layout != "NCHW":
        return spec
    return msgspec.structs.replace(spec, shape=(spec.shape[0], preprocess.shape[0], *spec.shape[2:]))


def _shape(spec: TensorSpec, width: int, height: int, named: dict[str, int]) -> tuple[int, ...]:
    """Return a shape for one input. `named` has the sizes of named dimensions, for all inputs; new names are added."""
    rank = len(spec.shape)
    rows = None if rank != 4 else 1 if spec.shape[-1] in (1, 3) else 2  # the axis of a picture's height
    sizes = []
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            sizes.append(dim)
            continue
        size = 1 if axis == 0 else height if axis == rows else width
        sizes.append(size if dim == "?" else named.setdefault(dim, size))
    return tuple(sizes)


def _values(datatype: str, shape: tuple[int, ...], kind: str) -> Array:
    if kind in _CONSTANTS:
        return _constant(datatype, shape, _CONSTANTS.index(kind))
    random = np.random.default_rng([_SEED, _KINDS.index(kind)])
    dtype = numpy_dtype(datatype)
    if datatype == "BYTES":
        # Some models parse texts as numbers, some take words.
        words = [b"0", b"1", b"2"] if kind == "unit" else [b"edged", b"", "Größe".encode(), b"0", b"a b"]
        return np.array(random.choice(np.array(words, np.object_), size=shape), dtype=np.object_).reshape(shape)
    if datatype == "BF16":  # the upper half of a float32
        return np.asarray(_floats(random, shape, kind).view(np.uint32) >> 16, dtype=np.uint16).reshape(shape)
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, size=shape), dtype=dtype)
    if dtype.kind in "iu":
        bounds = np.iinfo(datatype.lower())
        low, high = {"unit": (0, 1), "normal": (0, 8), "wide": (bounds.min, bounds.max)}[kind]
        if datatype == "UINT8" and kind != "normal":
            low, high = 0, 255  # a picture
        return np.asarray(random.integers(low, high, size=shape, dtype=dtype, endpoint=True))
    return np.asarray(_floats(random, shape, kind), dtype=dtype).reshape(shape)


def _constant(datatype: str, shape: tuple[int, ...], value: int) -> Array:
    if datatype == "BYTES":
        return np.full(shape, str(value).encode(), np.object_)
    if datatype == "BF16":
        return np.full(shape, np.float32(value).view(np.uint32) >> 16, np.uint16)
    return np.full(shape, value, numpy_dtype(datatype))


def _floats(random: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.typing.NDArray[np.float32]:
    if kind == "unit":
        return np.asarray(random.random(shape), dtype=np.float32)
    return np.asarray(random.standard_normal(shape) * (1 if kind == "normal" else 64), dtype=np.float32)
