"""Synthetic signals for models with a sound input: a voice-like signal, a whistle, noise and near silence. Pure.

The random generator has a fixed seed, so all engines of a model get the same samples. A voice detector answers the
voice-like signal with a high score and the others with a low one, so errors of an engine show.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edged.vision.families.decoding import Floats

_SEED = 20240229
_PITCH = 120.0  # Hz
_FORMANTS = ((700.0, 110.0), (1220.0, 120.0), (2600.0, 160.0))  # centre and width in Hz, about those of an "ah"
_SYLLABLES = 4.0  # a second


def made(count: int, rate: int) -> Iterator[tuple[str, Floats]]:
    """Yield the name and the samples of each signal: float32 [count], -1 to 1, at `rate` samples per second."""
    random = np.random.default_rng([_SEED, rate])
    yield "made voice", voice(count, rate)
    seconds = np.arange(count) / rate
    yield "made whistle", (0.4 * np.sin(2 * np.pi * (1500 + 200 * seconds) * seconds)).astype(np.float32)
    yield "made noise", (0.1 * random.standard_normal(count)).clip(-1, 1).astype(np.float32)
    yield "made near silence", (1e-4 * random.standard_normal(count)).astype(np.float32)


def voice(count: int, rate: int) -> Floats:
    """Return a voice-like signal, float32 [count]. It has the harmonics of a varying pitch. The harmonics near three
    formants are louder, and the loudness rises and falls with each syllable."""
    seconds = np.arange(count) / rate
    phase = 2 * np.pi * _PITCH * (seconds + 0.01 * np.sin(2 * np.pi * 2.5 * seconds))
    total = np.zeros(count)
    for number in range(1, int(min(4000.0, rate / 2) / _PITCH)):
        gain = sum(1 / (1 + ((number * _PITCH - centre) / width) ** 2) for centre, width in _FORMANTS)
        total += gain / number**0.5 * np.sin(number * phase)
    total *= np.sin(np.pi * _SYLLABLES * seconds + 0.4) ** 2
    return (0.5 * total / max(float(np.abs(total).max(initial=0.0)), 1e-9)).astype(np.float32)
