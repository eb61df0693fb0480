"""Golden answers: the reference's answers to every probe, in a file that engines are compared with.

A probe that the reference itself cannot answer, such as indices out of range, is left out. At least one probe must
remain. A user's sample that cannot be read is skipped and reported, because a file that may be half copied should not
stop a serving model. Admission refuses a model whose samples cannot be read.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from edged.backends.contract import Session, Signature, Stoppable
from edged.decoding import ready
from edged.errors import BuildFailed, EngineUnusable, InvalidInput
from edged.files import read_regular
from edged.models.samples import is_tensors
from edged.store import atomic, sealed
from edged.tensors import Array, owned
from edged.verification import noise, user_samples
from edged.verification.noise import Maxima, Noise
from edged.verification.probes import USED, WIDE, Pictures, Probe, edges, made_sounds, tensors
from edged.verification.shape_range import ShapeRange
from edged.vision.family import Recognition
from edged.vision.placement import Placement

SUFFIX = ".golden"
_DIGEST_BYTES = 32  # of SHA-256, before the content
_MOST_BYTES = 256 << 20  # of all samples and pictures with their answers; the user's samples come first
# The time limit of an answer to wide values: a multiple of the slowest other answer, but at least some seconds. Without
# a limit, the reference could run 2^62 iterations if an input is a number of iterations.
_PATIENCE, _LEAST_SECONDS = 20.0, 5.0
_ANY = ShapeRange()


class Sample(msgspec.Struct, frozen=True):
    """One golden probe (see `probes.Probe`) with the reference's answer."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    kind: str = ""
    name: str = ""
    placement: Placement | None = None
    noise: dict[str, Noise] = {}  # of float outputs

    @property
    def size(self) -> int:
        return sum(array.nbytes for side in (self.inputs, self.outputs) for array in side.values())


class Golden(msgspec.Struct, frozen=True):
    """All samples, tensors first. `skipped` has a line with the reason for each user's sample that was left out."""

    samples: list[Sample]
    skipped: tuple[str, ...] = ()


def deciding(samples: Sequence[Sample], arithmetic: str) -> list[Sample]:
    """Return the samples that decide whether an engine is accepted. `arithmetic` is the coarser of two precisions: the
    engine's and its model's.

    A precision below float32 is good enough for the values that the model is used with. Other values may exceed the
    precision's range, and int8 is calibrated on pictures and saturates outside their range. So only the user's samples,
    pictures and sounds decide. If there are no such samples, all samples decide except those of kind WIDE, whose
    values are far outside the usual range.
    """
    if arithmetic == "fp32":
        return list(samples)
    used = [sample for sample in samples if sample.kind in USED]
    return used or [sample for sample in samples if sample.kind != WIDE] or list(samples)


def make(
    session: Session,
    signature: Signature,
    recognition: Recognition,
    samples: Sequence[str] = (),
    shape_range: ShapeRange = _ANY,
    notify: Callable[[], None] = lambda: None,
    *,
    most_bytes: int = _MOST_BYTES,
    least_seconds: float = _LEAST_SECONDS,
) -> Golden:
    """Run all probes on the reference, and return its answers. `samples` are paths of the user's samples. Pictures
    among them are used only if the model has a picture input. `notify` is called before each probe.

    Raises EngineUnusable, with the first error, if the reference answers no probe.
    """
    reference = _Reference(session, notify, most_bytes, least_seconds)
    own = Pictures(signature, recognition) if recognition.preprocess is not None else None
    pictures = [partial(own.sample, Path(path)) for path in samples if not is_tensors(path)] if own is not None else []
    reference.time([*user_samples.tensor_probes(signature, samples), *pictures])
    for probes in tensors(signature, recognition, shape_range):
        refusals = [reference.ask(probe, twice=True) for probe in probes]
        if "" in refusals:
            break
    for edge in edges(signature, recognition, shape_range):  # edges that the reference refuses are left out
        reference.ask(edge, twice=True)
    skipped = _ask_user_samples(reference, user_samples.tensor_probes(signature, samples))
    skipped += _ask_user_samples(reference, pictures)
    if own is not None:
        for drawn in own.drawn():
            reference.ask_within_limits(drawn)
    for made in made_sounds(recognition):
        reference.ask_within_limits(made)
    if not reference.samples:
        raise reference.first_error or EngineUnusable(
            "no golden input (test input) can be made, because all shapes that the model's inputs allow are too large;"
            " set profile.INPUT or preprocess.* to a smaller size"
        )
    return Golden(with_least_noise(reference.samples), tuple(skipped))


def with_least_noise(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples, each with the lower limits of the noise of its outputs (`Noise.least`). For a sample of kind
    WIDE, the limits are computed from that sample alone, because its values are huge. For the other samples, the limits
    are computed from all of these other samples together."""
    usual = noise.least(sample.outputs for sample in samples if sample.kind != WIDE)
    own = [noise.least([sample.outputs]) if sample.kind == WIDE else usual for sample in samples]
    return [
        msgspec.structs.replace(each, noise=_at_least(each, least)) for each, least in zip(samples, own, strict=True)
    ]


def _at_least(sample: Sample, least: Mapping[tuple[str, tuple[int, ...]], Maxima]) -> dict[str, Noise]:
    keys = [key for key in ((name, array.shape) for name, array in sample.outputs.items()) if key in least]
    return {k[0]: msgspec.structs.replace(sample.noise.get(k[0], noise.UNMEASURED), least=least[k]) for k in keys}


def _ask_user_samples(reference: _Reference, probes: Iterable[Callable[[], Probe]]) -> list[str]:
    """Run the user's samples on the reference; return a line for each that was left out."""
    skipped = []
    for probe in probes:
        try:
            reason = reference.ask_within_limits(probe())
        except InvalidInput as error:
            reason = str(error)
        if reason:
            skipped.append(reason)
    return skipped


class _Reference:
    """The reference, and the golden samples made with it so far."""

    def __init__(self, session: Session, notify: Callable[[], None], most_bytes: int, least_seconds: float) -> None:
        self.samples: list[Sample] = []
        self.first_error: EngineUnusable | None = None
        self._session, self._notify = session, notify
        self._most_bytes, self._least_seconds = most_bytes, least_seconds
        self._bytes = 0  # of samples and pictures, with their answers
        self._random: set[str] = set()  # outputs that differ between runs
        self._longest = 0.0  # seconds that the slowest answer took
        self._is_timed = False  # whether an answer to a sample of the user was timed

    def time(self, samples: Iterable[Callable[[], Probe]]) -> None:
        """Time the first of the user's samples that the reference answers. The time limit of generated probes follows
        from this, so that a probe that would run forever is stopped."""
        for sample in samples:
            with contextlib.suppress(EngineUnusable, InvalidInput):
                inputs, began = sample().inputs, time.monotonic()
                self._session.infer(inputs)
                self._longest, self._is_timed = time.monotonic() - began, True
                return

    def ask(self, probe: Probe, twice: bool) -> str:
        """Run a probe. Return why the probe has no answer; the text is empty if it has one. With `twice`, run the
        probe again, and exclude the outputs that differ between the two runs."""
        self._notify()
        try:
            is_wide, is_own = probe.kind == WIDE, probe.kind in USED
            with self._patience(is_bounded=is_wide or (self._is_timed and not is_own)):
                answer = owned(self._session.infer(probe.inputs))
                again = owned(self._session.infer(probe.inputs)) if twice else answer
            with self._patience(is_bounded=is_wide or self._is_timed):
                moved = self._moved(probe)
        except (EngineUnusable, InvalidInput) as error:
            self.first_error = self.first_error or EngineUnusable(str(error))
            return str(error)
        differing = {name for name, array in answer.items() if not _same(array, again[name])}
        self._random |= differing
        left_out = self._random if probe.kind in USED else differing
        outputs = {name: array for name, array in answer.items() if name not in left_out}
        own = noise.measured(outputs, moved)
        self.samples.append(Sample(probe.inputs, outputs, probe.kind, probe.name, probe.placement, own))
        return ""

    def _moved(self, probe: Probe) -> dict[str, Array]:
        """Return the answer to the probe's inputs after `noise.nudged`, which changes each float by one step of its
        type. Empty if the reference refuses the changed inputs."""
        try:
            return owned(self._session.infer(noise.nudged(probe.inputs)))
        except (EngineUnusable, InvalidInput):
            return {}

    @contextlib.contextmanager
    def _patience(self, *, is_bounded: bool) -> Iterator[None]:
        """A context that stops an inference at a time limit, so that the inference fails. If the inference is not
        `is_bounded`, or if the session is not `Stoppable`, the context only measures the time."""
        session, began = self._session, time.monotonic()
        if not is_bounded or not isinstance(session, Stoppable):
            yield
            self._longest = max(self._longest, time.monotonic() - began)
            return
        timer = threading.Timer(max(self._least_seconds, _PATIENCE * self._longest), session.stop)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            session.go_on()  # the stop may have come after the inference ended

    def ask_within_limits(self, probe: Probe) -> str:
        """Run a sample or picture. Return why it was left out; the text is empty if it was not left out."""
        last = self.samples[-1] if self._bytes else None
        if last is not None and self._bytes + last.size > self._most_bytes:
            return (
                f"sample {probe.name} is left out: with it, the golden answers exceed {self._most_bytes >> 20} MiB; "
                "give fewer samples"
            )
        # To save time, only the first sample is run twice: the generated probes find random outputs too.
        refusal = self.ask(probe, twice=not self._bytes)
        if refusal:
            return f"sample {probe.name} is left out, because the reference does not answer it: {refusal}"
        self._bytes += self.samples[-1].size
        return ""


# -- the file -------------------------------------------------------------------------------------------------------


def save(path: Path, samples: Sequence[Sample], skipped: Sequence[str] = ()) -> None:
    """Write samples to a file atomically. The file has the name, dtype, shape and bytes of each array."""
    packed = _File([_Packed.of(sample) for sample in samples], tuple(skipped))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.sweep(path.parent)
    body = msgspec.msgpack.encode(packed)
    atomic.write_file(path, hashlib.sha256(body).digest() + body)


def load(path: Path) -> Golden:
    """Read a file that `save` wrote. Raises BuildFailed if the file is missing or damaged. A damaged file is
    removed."""
    try:
        packed = msgspec.msgpack.decode(_proven(path), type=ready(_File))
        return Golden([sample.unpack() for sample in packed.samples], packed.skipped)
    except (OSError, ValueError, TypeError) as error:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise BuildFailed(f"golden answers {path.name} cannot be read and will be made again: {error}") from error


def is_whole(path: Path) -> bool:
    """Whether a file exists and is intact. A damaged file is counted and removed."""
    try:
        _proven(path)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        sealed.discard(path, "golden answers", str(error))
        return False
    return True


def _proven(path: Path) -> memoryview:
    content = memoryview(read_regular(path))
    body = content[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != content[:_DIGEST_BYTES]:
        raise ValueError("the file was altered on disk")
    return body


def prune(path: Path) -> None:
    """Remove a model's files of golden answers, except `path`, because the model's probes have changed.

    A file's name is the model's digest, a dash and a digest of everything else (`standard.py`). Two models with the
    same content and different samples remove each other's file, which only costs time when one of the models gets an
    engine.
    """
    model, dash, _ = path.name.partition("-")
    if not dash:
        return
    for other in path.parent.glob(f"{model}*{SUFFIX}"):
        if other != path:
            with contextlib.suppress(OSError):
                other.unlink()


class _Array(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: memoryview  # a view without a copy, because golden answers can be large
    texts: list[bytes]

    @classmethod
    def of(cls, array: Array) -> _Array:
        if array.dtype == np.object_:
            return cls("object", array.shape, memoryview(b""), array.ravel().tolist())
        return cls(array.dtype.str, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, [])

    def unpack(self) -> Array:
        if self.dtype == "object":
            return np.array(self.texts, dtype=np.object_).reshape(self.shape)
        # Copied, because runtimes need aligned arrays, and an array may begin anywhere in the file.
        array: Array = np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape).copy()
        return array


class _PackedMaxima(msgspec.Struct, frozen=True, array_like=True):
    rows: _Array
    columns: _Array

    @classmethod
    def of(cls, maxima: Maxima) -> _PackedMaxima:
        return cls(_Array.of(maxima.rows), _Array.of(maxima.columns))

    def unpack(self) -> Maxima:
        return Maxima(self.rows.unpack(), self.columns.unpack())


class _Packed(msgspec.Struct, frozen=True):
    inputs: dict[str, _Array]
    outputs: dict[str, _Array]
    kind: str
    name: str
    placement: Placement | None
    noise: dict[str, tuple[_PackedMaxima, _PackedMaxima]]

    @classmethod
    def of(cls, sample: Sample) -> _Packed:
        inputs, outputs = ({n: _Array.of(a) for n, a in side.items()} for side in (sample.inputs, sample.outputs))
        noise = {n: (_PackedMaxima.of(o.change), _PackedMaxima.of(o.least)) for n, o in sample.noise.items()}
        return cls(inputs, outputs, sample.kind, sample.name, sample.placement, noise)

    def unpack(self) -> Sample:
        inputs, outputs = ({n: a.unpack() for n, a in side.items()} for side in (self.inputs, self.outputs))
        noise = {n: Noise(change.unpack(), least.unpack()) for n, (change, least) in self.noise.items()}
        return Sample(inputs, outputs, self.kind, self.name, self.placement, noise)


class _File(msgspec.Struct, frozen=True):
    samples: list[_Packed]
    skipped: tuple[str, ...]


def _same(one: Array, other: Array) -> bool:
    """Whether an output is the same, up to rounding, in two runs of the reference. If not, it is not compared."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True))
