"""Models that take one line of text: recognisers, and PP-OCR's classifier of upside-down lines.

These models expect the part of a picture that shows one line, such as the box of a text detector. edged feeds the whole
picture, or its region of interest. Lines must run from left to right. PaddleOCR first turns a part by 90 degrees
counterclockwise if the part is at least 1.5 times as high as wide.

Sources: PaddlePaddle/PaddleOCR: tools/infer/predict_cls.py (commit 0005f4d) and ppocr/postprocess/rec_postprocess.py
(commit 0002349); rapidocr 3.10.0 (ch_ppocr_rec, ch_ppocr_cls), which reads the same texts as edged with its models
PP-OCRv6_rec_small.onnx and ch_PP-OCRv4_rec_infer.onnx (of rapidocr-onnxruntime 1.4.4); ddddocr 1.6.1; baudm/parseq:
strhub/data/utils.py (commit 03dba34) and models/parseq/system.py (commit 0464a07); mindee/doctr: models/recognition/
crnn/pytorch.py (commit 0118508). No trained PARSeq, docTR or LPRNet was at hand.

Input [N, 3, H, W] FP32. PP-OCR gets BGR in -1..1. The line has the height of the input and begins at the left; the rest
is zero. A line that is too long is squeezed. The authors widen the input instead, so for long lines set
`preprocess.width`.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from edged.tensors import Array, Dim
from edged.vision import characters
from edged.vision import settings as keys
from edged.vision.comparison import shown
from edged.vision.content import MOST_TEXT, Text
from edged.vision.families.classification import Classification
from edged.vision.families.contract import (
    Claim,
    ContentFamily,
    Evidence,
    Feed,
    Reading,
    count_classes,
    may_be,
    undecided,
)
from edged.vision.families.decoding import (
    ANY,
    Outputs,
    Rows,
    Thresholds,
    at_least,
    checked_tensor,
    picture_tensor,
)
from edged.vision.placement import Fit, Placement
from edged.vision.signatures import patterns

_HALVES = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
_LINE: Feed = {"fit": Fit.LINE, "color": "bgr", "pad": 127, **_HALVES}
_PADDLE = "x"  # the name of the input of PaddleOCR's models
_NONE, _SOFTMAX = "none", "softmax"
# The orders of batch (N), steps (T) and classes (C) in the output, each with the axis of the classes.
_LAYOUTS: Mapping[str, int] = {"NTC": 2, "TNC": 2, "NCT": 1}
_HEIGHTS = (32, 48)  # input pixels: 32 for CRNN and PARSeq, 48 for PP-OCR
_PRINTABLE = 94  # characters of ASCII, without the space


class TextReader(ContentFamily, frozen=True):
    """Base of the recognisers. The only output, [N, T, C], has the scores of C classes for each of T steps along the
    line.

    The score of a text is the mean of its characters' probabilities, as in PaddleOCR; 0 for an empty text. `form` is
    the layout, followed by " softmax" if the output is logits.
    """

    thresholds = Thresholds(score=0.0)

    def content(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Text:
        """See `ContentFamily.content`. The text is empty if its score is below the threshold. Steps whose best value is
        not finite have no character."""
        table = self._table(outputs, index).astype(np.float32)
        best = table.argmax(axis=1)
        values = table[np.arange(len(best)), best]
        kept = self._kept(best)
        kept = kept[np.isfinite(values[kept])][:MOST_TEXT]
        scores = values[kept]
        if self.reading.form.endswith(_SOFTMAX):
            scores = 1 / np.exp(table[kept] - scores[:, None]).sum(axis=1)
        score = min(max(float(scores.mean()), 0.0), 1.0) if len(kept) else 0.0
        if score < thresholds.score:
            return Text("", 0.0)
        return Text("".join(self.names[each] for each in best[kept].tolist())[:MOST_TEXT], score)

    def _kept(self, best: Rows) -> Rows:
        """Return the steps that are characters of the text. `best` is the best class of each step."""
        raise NotImplementedError

    def _table(self, outputs: Outputs, index: int) -> Array:
        """Return the scores of picture `index`, [T, C]."""
        name, layout, classes = self.reading.outputs[0], self.reading.form[:3], len(self.names)
        if layout == "TNC":
            found: Array = checked_tensor(outputs, name, ANY, at_least(index + 1), classes)[:, index]
            return found
        if layout == "NCT":
            found = picture_tensor(outputs, name, index, classes, ANY)
            return np.swapaxes(found, 0, 1)
        return picture_tensor(outputs, name, index, ANY, classes)

    @classmethod
    def _listed(cls, evidence: Evidence, classes: int | None) -> tuple[str, ...]:
        """Return the characters in the setting `decode.characters`, or, without this setting, those in the file's
        metadata; empty if both are missing. `classes` is the number of classes, None if unknown."""
        given = evidence.settings.get("decode.characters")
        return characters.parse(given) if given is not None else evidence.metadata.characters

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output = evidence.only_output
        layout = keys.choice(evidence.settings, "decode.layout", tuple(_LAYOUTS))
        if output is None:
            return None
        if len(output.shape) != 3 and layout is None:
            what = f"needs an output [N, T, classes]; the model has {shown(output)}"
            return Claim(None, f"family={cls.name} {what}; if the file declares the shape wrongly, set decode.layout")
        layout = layout or _layout(evidence, output.shape)
        classes = count_classes(output.shape[_LAYOUTS[layout]]) if len(output.shape) == 3 else None
        listed = cls._listed(evidence, classes)
        is_last = keys.choice(evidence.settings, "decode.blank", ("first", "last")) == "last"
        names = characters.by_class(listed, classes, nothing_last=is_last)
        if names is None:
            return Claim(None, _unfit(listed, classes, evidence.output_names[0]))
        if "names" in evidence.settings:
            return Claim(None, "setting 'names' cannot be used with a text recogniser; set decode.characters instead")
        activation = keys.choice(evidence.settings, "decode.activation", (_NONE, _SOFTMAX))
        if activation is None:
            activation = _NONE if (evidence.heads or {}).get(output.name) == "Softmax" else _SOFTMAX
        form = f"{layout} {_SOFTMAX}" if activation == _SOFTMAX else layout
        return Claim(cls.name, reason, Reading((output.name,), form), len(names), names=names)


class Ctc(TextReader, frozen=True):
    """Recognisers with a CTC head: CRNN, SVTR, PP-OCR, LPRNet.

    A character that is repeated without a blank in between counts once. The blank is class 0, or, with
    `decode.blank=last`, the last class.
    """

    name = "ctc"
    signatures = patterns("[N, T, classes]", "[T, N, classes]", "[N, classes, T]")
    feed: ClassVar[Feed] = _LINE
    open_size = (320, 48)

    def _kept(self, best: Rows) -> Rows:
        is_new = np.ones(len(best), np.bool_)
        is_new[1:] = best[1:] != best[:-1]
        return np.flatnonzero(is_new & (best != self.names.index("")))

    @classmethod
    def by_metadata(cls, evidence: Evidence) -> Claim | None:
        """Claim a model with characters in its metadata, unless it gives one row for each picture: RapidOCR also writes
        the labels of classifiers there."""
        output = evidence.only_output
        if not evidence.metadata.characters or (output is not None and len(output.shape) == 2):
            return None
        return cls.claim(evidence, "metadata character, as RapidOCR writes it")

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Claim a model if the setting `decode.characters` is set. Without this setting, return a claim without a
        family for a model that looks like PP-OCR's; the reason asks for the characters."""
        output = evidence.only_output
        if output is None or len(output.shape) != 3:
            return None
        if "decode.characters" in evidence.settings:
            return cls.claim(evidence, "the setting decode.characters")
        if evidence.picture.name != _PADDLE or (evidence.heads or {}).get(output.name) != "Softmax":
            return None
        return Claim(None, _unfit((), None, output.name))


class Parseq(TextReader, frozen=True):
    """PARSeq, ViTSTR and other recognisers of baudm/parseq: the text ends at the first step whose class is the end.

    The end is class 0, or, with `decode.blank=last`, the last class. The output is logits. Without `decode.characters`
    a model of 95 classes has the authors' 94 characters: digits, small and capital letters, punctuation.
    """

    name = "parseq"
    signatures = patterns("[N, T, classes]")
    feed: ClassVar[Feed] = {"fit": Fit.STRETCH, **_HALVES}
    open_size = (128, 32)

    def _kept(self, best: Rows) -> Rows:
        ends = np.flatnonzero(best == self.names.index(""))
        return np.arange(ends[0] if len(ends) else len(best))

    @classmethod
    def _listed(cls, evidence: Evidence, classes: int | None) -> tuple[str, ...]:
        listed = super()._listed(evidence, classes)
        return tuple(string.printable[:_PRINTABLE]) if not listed and classes == 1 + _PRINTABLE else listed


class PpOcrCls(Classification, frozen=True):
    """PP-OCR's classifier of lines that are upside down: classes `0` and `180`, probabilities [N, 2].

    The later models PP-LCNet_x0_25_textline_ori and _x1_0_ have another input: 160 x 80 pixels, stretched, RGB,
    normalised as for ImageNet. These models are not of this family.
    """

    name = "ppocr-cls"
    signatures = patterns("x -> [N, 2]")
    feed: ClassVar[Feed] = _LINE
    open_size = (192, 48)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output, claim = evidence.only_output, super().claim(evidence, reason)
        if claim is None or output is None or not may_be(output.shape[:2], None, 2):
            return None
        return msgspec.structs.replace(claim, classes=2, names=("0", "180"))

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Return an undecided claim that names the family, if a model of Paddle has an output [N, 2]. Other models of
        Paddle have such an output, too."""
        output = evidence.only_output
        if output is None or evidence.picture.name != _PADDLE or output.shape[1:] != (2,):
            return None
        what = f"output {output.name} [N,2] of Paddle: text direction or two classes"
        return undecided(what, cls.name, Classification.name)


def by_height(evidence: Evidence) -> Claim | None:
    """Return an undecided claim that names the recognisers, if the output is 3-D and the input is 32 or 48 pixels high.
    Many recognisers have such an input."""
    output, height = evidence.only_output, evidence.picture.height
    if output is None or len(output.shape) != 3 or height not in _HEIGHTS:
        return None
    what = f"output {shown(output)} of an input {height} pixels high may be the characters of a line of text"
    return undecided(what, Ctc.name, Parseq.name)


def _layout(evidence: Evidence, shape: tuple[Dim, ...]) -> str:
    """Return the order of the axes: "TNC" only if the second axis is certainly the batch, otherwise "NTC"."""
    (batch, *_) = next(spec.shape for spec in evidence.inputs if spec.name == evidence.picture.name)
    return "TNC" if batch == shape[1] and batch != shape[0] else "NTC"


def _unfit(listed: tuple[str, ...], classes: int | None, output: str) -> str:
    if not listed:
        what = "set decode.characters, or add the model with its dictionary next to the file"
        return f"output {output} is text, but the list of characters is missing; {what}"
    if (empty := listed.count("")) > 1:
        return f"the list of characters has {empty} empty entries, but only one can be empty; set decode.characters"
    count = (classes or 0) - ("" not in listed)  # without an empty entry, one class is not listed: no character
    wanted = f"the model has {classes} classes, so list {count}"
    return f"the list of characters has {len(listed)} entries; {wanted}; change decode.characters"
