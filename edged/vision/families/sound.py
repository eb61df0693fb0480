"""Families of models that take sound: voice detection, and tags of sounds. These families return `Classes`.

Silero VAD, whose ONNX files are in the package `silero-vad`:

- Versions 5 and 6: `input` [N, context + samples], `state` [2, N, 128] and, in most exports, `sr` INT64 -> `output`
  [N, 1], `stateN`. At 16 kHz, a context of 64 samples comes before 512 samples. At 8 kHz, a context of 32 samples comes
  before 256 samples.
- Version 4: `input` [N, samples], `h` and `c` [2, N, 64], `sr` INT64 -> `output` [N, 1], `hn`, `cn`. No context.

The output is the probability of speech. The authors count 0.5 or more as speech. Source: `OnnxWrapper` of silero-vad
6.2.3; edged's results for the same windows are equal. The tensors of version 4 are known from programs that use this
version (`silero-vad-model` of VadFilterOnnx); this version was not verified on its file.

Tags: one input of samples [n] or [N, n], and an output of scores [rows, classes]. The score of a class is its highest
score in the rows. Several classes can apply at once.

- YAMNet: 521 classes at 16 kHz, a row of scores every 0.48 s. A window is 15600 samples (0.975 s), which give one row.
  Source: `yamnet.py` and `params.py` of tensorflow/models.
- PANNs: `clipwise_output` of 527 classes, mostly at 32 kHz. The window is 10 s, the length of the clips in training.
  Source: qiuqiangkong/audioset_tagging_cnn, and the configurations of programs that use it.

Neither export was verified on trained weights. Both compute probabilities in the graph. The user must give the names of
the classes, because neither file has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from edged.errors import ConfigError
from edged.tensors import TensorSpec
from edged.vision import settings as keys
from edged.vision.content import Classes
from edged.vision.families.classification import ACTIVATIONS
from edged.vision.families.contract import Claim, Reading, may_be
from edged.vision.families.decoding import ANY, Floats, Outputs, Size, Thresholds, at_least, checked_tensor
from edged.vision.nms import best_first
from edged.vision.signatures import Signature, patterns
from edged.vision.sound import Sound, State

_MOST_RATE, _MOST_WINDOW = 192_000, 1 << 20
_LEAST_SAMPLES = 4096  # a shorter input takes an embedding, such as the 1024 or 2048 values of these models
_INPUT, _OUTPUT, _RATE = "input", "output", "sr"
_VOICE_RATES = (16_000, 8_000)


class SoundEvidence(msgspec.Struct, frozen=True):
    """The facts about a model, from which rules recognise a family that takes sound."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    settings: Mapping[str, str] = {}

    @property
    def by_name(self) -> dict[str, TensorSpec]:
        return {spec.name: spec for spec in self.inputs}


class SoundFamily(msgspec.Struct, frozen=True):
    """Decodes a model's answer about a window of sound. Stateless, safe to share between threads."""

    name: ClassVar[str]
    signatures: ClassVar[tuple[Signature, ...]]
    thresholds: ClassVar[Thresholds] = Thresholds(score=0.5)

    sound: Sound
    names: tuple[str, ...]
    reading: Reading

    @classmethod
    def claim(cls, evidence: SoundEvidence, reason: str) -> Claim | None:
        """Match a model by its tensors. The reason of a claim without a family says which setting is missing. Raises
        ConfigError if a setting does not fit the model."""
        raise NotImplementedError

    @classmethod
    def by_rule(cls, evidence: SoundEvidence) -> Claim | None:
        """Match a model by tensors that only this family has."""
        raise NotImplementedError

    def scores(self, outputs: Outputs) -> Floats:
        """Return the score of each class in one window, float32 [classes]. Raises EngineUnusable if the outputs have
        another shape."""
        columns: Size = self.reading.classes or at_least(1)
        rows = checked_tensor(outputs, self.reading.outputs[0], ANY, columns).astype(np.float32)
        if self.reading.form:
            rows = np.stack([ACTIVATIONS[self.reading.form](row) for row in rows]) if len(rows) else rows
        rows[~np.isfinite(rows)] = 0.0
        found: Floats = rows.max(axis=0, initial=0.0)
        return found

    def classes(self, scores: Floats, thresholds: Thresholds) -> Classes:
        """Return the classes whose score is at least the threshold, the best first."""
        best = best_first(scores, thresholds.max_detections)
        best = best[scores[best] >= thresholds.score]
        return Classes.of(best, scores[best])


class SileroVad(SoundFamily, frozen=True):
    """Silero VAD: the probability of speech, with a state from window to window."""

    name = "silero-vad"
    signatures = patterns(
        "input [N, samples], state [2, N, 128], ... -> output [N, 1], stateN",
        "input [N, samples], h [2, N, 64], c [2, N, 64], ... -> output [N, 1], hn, cn",
    )

    @classmethod
    def claim(cls, evidence: SoundEvidence, reason: str) -> Claim | None:
        there, outputs = evidence.by_name, {spec.name: spec for spec in evidence.outputs}
        pairs, width = ((("state", "stateN"),), 128) if "state" in there else ((("h", "hn"), ("c", "cn")), 64)
        if there.keys() - {_RATE} != {_INPUT, *(given for given, _ in pairs)}:
            return None
        if outputs.keys() != {_OUTPUT, *(kept for _, kept in pairs)}:
            return None
        floats = [there[_INPUT], outputs[_OUTPUT], *(there[given] for given, _ in pairs)]
        if any(spec.datatype != "FP32" for spec in floats) or not may_be(outputs[_OUTPUT].shape, 1, 1):
            return None
        if not all(may_be(there[given].shape, 2, 1, width) for given, _ in pairs):
            return None
        if _RATE in there and (there[_RATE].datatype != "INT64" or there[_RATE].shape not in ((), (1,))):
            return None
        rate = _setting(evidence, "rate", _MOST_RATE) or _VOICE_RATES[0]
        if rate not in _VOICE_RATES[: 2 if _RATE in there else 1]:
            known = " or ".join(map(str, _VOICE_RATES[: 2 if _RATE in there else 1]))
            raise ConfigError(f"setting sound.rate={rate} is invalid; this model takes sound at {known} Hz")
        window, context = 512 * rate // 16_000, 64 * rate // 16_000 if width == 128 else 0
        if not may_be(there[_INPUT].shape, 1, context + window):
            return None
        if _setting(evidence, "window", _MOST_WINDOW) or _setting(evidence, "hop", _MOST_WINDOW):
            raise ConfigError(f"settings sound.window and sound.hop cannot be used with family {cls.name}; remove them")
        states = tuple(State(given, kept, (2, 1, width)) for given, kept in pairs)
        named = _RATE if _RATE in there else ""
        shape = (1,) if named and there[_RATE].shape else ()
        sound = Sound(_INPUT, rate, window, window, context, rate_input=named, rate_shape=shape, states=states)
        return Claim(cls.name, reason, Reading((_OUTPUT,)), 1, names=("speech",), sound=sound)

    @classmethod
    def by_rule(cls, evidence: SoundEvidence) -> Claim | None:
        return cls.claim(evidence, "inputs and outputs of Silero VAD")


# By the number of classes: the model, its rate, and the samples of a window.
_TAGGERS = {521: ("YAMNet", 16_000, 15_600), 527: ("PANNs", 32_000, 320_000)}


class AudioTags(SoundFamily, frozen=True):
    """Tags of sounds, such as YAMNet and PANNs: scores of many classes for each window."""

    name = "audio-tags"
    signatures = patterns("[samples] -> [rows, classes], ...", "[N, samples] -> [N, classes], ...")
    thresholds = Thresholds(score=0.3, max_detections=5)

    @classmethod
    def claim(cls, evidence: SoundEvidence, reason: str) -> Claim | None:
        tensors = _tagged(evidence)
        if tensors is None:
            return None
        given, scores = tensors
        columns = scores.shape[1] if isinstance(scores.shape[1], int) else None
        _, usual_rate, usual_window = _TAGGERS.get(columns or 0, ("", 0, 0))
        fixed = given.shape[-1] if isinstance(given.shape[-1], int) else 0
        rate = _setting(evidence, "rate", _MOST_RATE) or usual_rate
        window = _setting(evidence, "window", _MOST_WINDOW) or fixed or usual_window
        if not rate or not window:
            what = "sound.rate (samples a second)" if not rate else "sound.window (samples of a window)"
            return Claim(None, f"{reason}; set {what}")
        if fixed and window != fixed:
            raise ConfigError(f"setting sound.window={window} is invalid; the model takes windows of {fixed} samples")
        hop = _setting(evidence, "hop", window) or window
        form = keys.choice(evidence.settings, "decode.activation", tuple(ACTIVATIONS)) or ""
        sound = Sound(given.name, rate, window, hop, is_flat=len(given.shape) == 1)
        return Claim(cls.name, reason, Reading((scores.name,), form), columns, sound=sound)

    @classmethod
    def by_rule(cls, evidence: SoundEvidence) -> Claim | None:
        tensors = _tagged(evidence)
        columns = tensors[1].shape[1] if tensors is not None else None
        if tensors is None or not isinstance(columns, int) or columns not in _TAGGERS:
            return None
        length = tensors[0].shape[-1]
        if isinstance(length, int) and length < _LEAST_SAMPLES:
            return None
        return cls.claim(evidence, f"samples in, and the {columns} classes of {_TAGGERS[columns][0]} out")


SOUND_FAMILIES: dict[str, type[SoundFamily]] = {family.name: family for family in (SileroVad, AudioTags)}


def _tagged(evidence: SoundEvidence) -> tuple[TensorSpec, TensorSpec] | None:
    """Return the input of samples and the output of scores; None if the model's tensors do not fit. The scores are the
    first table with a column for each class of YAMNet or PANNs, or, without such a table, the first table."""
    if len(evidence.inputs) != 1:
        return None
    given = evidence.inputs[0]
    if given.datatype != "FP32" or not (may_be(given.shape, None) or may_be(given.shape, 1, None)):
        return None
    tables = [spec for spec in evidence.outputs if spec.datatype == "FP32" and len(spec.shape) == 2]
    known = (spec for spec in tables if spec.shape[1] in _TAGGERS)
    scores = next(known, tables[0] if tables else None)
    return None if scores is None else (given, scores)


def _setting(evidence: SoundEvidence, key: str, most: int) -> int | None:
    return keys.integer(evidence.settings, f"sound.{key}", 1, most)
