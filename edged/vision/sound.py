"""Prepares sound for models: converts bytes to samples, and cuts a stream of samples into windows. Pure.

Samples are mono. In memory, samples are float32 in -1..1. On the wire, samples are float32 or 16-bit integers, which
are divided by 32768.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from edged.errors import InvalidInput
from edged.tensors import Array
from edged.vision.families.decoding import Floats

S16, F32 = "s16", "f32"
_DTYPES: dict[str, np.dtype[np.number]] = {S16: np.dtype("<i2"), F32: np.dtype("<f4")}
_FULL_SCALE = np.float32(1 << 15)
_MOST_SECONDS = 600  # of one frame; a longer recording is sent as a stream


class State(msgspec.Struct, frozen=True):
    """A tensor that a model passes from one window to the next. In the first window, the input gets zeros. After that,
    the input gets the output of the previous window."""

    input: str
    output: str
    shape: tuple[int, ...]


class Sound(msgspec.Struct, frozen=True):
    """How a model is fed with sound, as plain data.

    The input of one inference has the `context` samples before the window (zeros at the start), then the `window`
    samples. The next window begins `hop` samples later. The tensor `input` is FP32 [samples] if `is_flat`, otherwise
    [1, samples]. `rate_input` is the name of the input that gets the rate, INT64 of the shape `rate_shape`; empty if
    the model has no such input.
    """

    input: str
    rate: int  # samples a second
    window: int
    hop: int
    context: int = 0
    is_flat: bool = False
    rate_input: str = ""
    rate_shape: tuple[int, ...] = ()
    states: tuple[State, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the samples of one inference."""
        samples = self.context + self.window
        return (samples,) if self.is_flat else (1, samples)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all inputs of one inference, with the names of the inputs as keys."""
        rate: dict[str, tuple[int, ...]] = {self.rate_input: self.rate_shape} if self.rate_input else {}
        return {self.input: self.shape, **{state.input: state.shape for state in self.states}, **rate}

    def inputs(self, samples: Floats, states: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs of one inference. `samples` are [context + window]. `states` maps names of inputs to their
        states; a missing state is zeros."""
        found: dict[str, Array] = {self.input: samples.reshape(self.shape)}
        for state in self.states:
            kept = states.get(state.input)
            found[state.input] = np.zeros(state.shape, np.float32) if kept is None else kept
        if self.rate_input:
            found[self.rate_input] = np.full(self.rate_shape, self.rate, np.int64)
        return found

    def __str__(self) -> str:
        text = f"mono sound at {self.rate} Hz, in windows of {self.window} samples ({self.window / self.rate:.3g} s)"
        return text if self.hop == self.window else f"{text}, a window every {self.hop} samples"


def samples_of(data: bytes | memoryview, form: str, rate: int) -> Floats:
    """Convert little-endian bytes to samples, float32 [n]. `form` is "s16" or "f32".

    Raises InvalidInput if the bytes are not a whole number of samples, if a sample is not finite, or if the sound is
    longer than ten minutes.
    """
    dtype = _DTYPES[form]
    if len(data) % dtype.itemsize:
        raise InvalidInput(f"{len(data)} bytes are not a whole number of {form} samples of {dtype.itemsize} bytes")
    if len(data) > _MOST_SECONDS * rate * dtype.itemsize:
        raise InvalidInput(f"the frame has more than {_MOST_SECONDS} s of sound; send a stream of shorter frames")
    found: Floats = np.frombuffer(data, dtype).astype(np.float32)
    if form == S16:
        found /= _FULL_SCALE
    elif not np.isfinite(found).all():
        raise InvalidInput("the samples have NaN or infinity; send numbers in -1..1")
    return found


class Windows:
    """Cuts windows from the samples of one source, and keeps the samples that the next window needs."""

    def __init__(self, sound: Sound) -> None:
        self._sound = sound
        self._held: Floats = np.zeros(sound.context, np.float32)
        self._new = 0  # number of samples in `_held` that were in no window yet

    def feed(self, samples: Floats) -> list[Floats]:
        """Add samples. Return the windows that are full now, each [context + window], in order."""
        self._held = np.concatenate((self._held, samples))
        self._new += len(samples)
        size, hop, start = self._sound.context + self._sound.window, self._sound.hop, 0
        found = []
        while start + size <= len(self._held):
            found.append(self._held[start : start + size])
            start += hop
            self._new = len(self._held) - (start - hop + size)
        self._held = self._held[start:].copy()
        return found

    def rest(self) -> list[Floats]:
        """Return the last window of a source that has ended, filled up with zeros; empty if every sample was in a
        window."""
        missing = self._sound.context + self._sound.window - len(self._held)
        return self.feed(np.zeros(missing, np.float32)) if self._new else []
