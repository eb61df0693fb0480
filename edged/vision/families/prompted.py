"""Zero-shot detectors of Hugging Face's transformers, which look for the texts in the setting `prompts`: OWL-ViT, OWLv2
and Grounding DINO, in the exports of Optimum and transformers.js.

OWL-ViT and OWLv2: inputs `pixel_values` [N, 3, H, W] FP32, `input_ids` and `attention_mask` [texts, 16] INT64; outputs
`logits` [N, P, texts], `pred_boxes` [N, P, 4], `text_embeds` and `image_embeds`, where P is the number of patches of
the picture. A text is a row of CLIP's token ids, padded with zeros. The graph treats the largest id as the end of the
text, and each token sees only the tokens before it, so the padding has no effect. Only config.json next to the file
says whether the model is an OWL-ViT or an OWLv2. The two models need different pictures:

- OWL-ViT: stretched, usually to 768 x 768; normalised as for CLIP.
- OWLv2: in the top left corner of a square, the rest black; usually 960 x 960; normalised as for CLIP. Boxes are
  relative to the square. Earlier versions of transformers filled the rest with grey, as the documentation still says.

Grounding DINO (and MM Grounding DINO):

- inputs: `pixel_values` as above, stretched and normalised as for ImageNet; `pixel_mask` INT64 [N, H, W] of ones; INT64
  [N, L] `input_ids`, `token_type_ids` (zeros) and `attention_mask` (ones)
- outputs: `logits` [N, 900, 256], with a column for each of the L tokens and minus infinity in the other columns;
  `pred_boxes` [N, 900, 4]

One text has all prompts, each followed by a full stop: "a cat. a dog.", in BERT's token ids. If L is fixed, `input_ids`
and `attention_mask` are padded with zeros. The graph itself contains the ids 101, 102, 1012 and 1029 of BERT's uncased
vocabulary, which separate the prompts.

Boxes are cx, cy, w, h in 0..1 of the input; no NMS. As in transformers, each patch or query gives at most one
detection, for its best prompt. The sigmoid of this prompt's logit must be above the threshold, which is 0.1 for OWL and
0.25 for Grounding DINO. In Grounding DINO the logit of a prompt is the largest of the logits of its tokens.
transformers also compares the logits of full stops and of the start and end tokens. It returns the words whose tokens
are above a second threshold, so its labels can be a part of a prompt, words of several prompts, or empty. In edged a
label is always a whole prompt.

Source: the processors and image processors of transformers 5.24.0, the ONNX configurations of optimum-onnx (commit
1939f27), transformers.js (commit 5ed4c5c). The inputs of Grounding DINO are known from transformers.js only: Optimum
does not export this model. Verified with small models of transformers 5.24.0 with random weights, exported with these
inputs and outputs: token ids and labels are the same, scores differ by at most 5e-6, boxes by at most 1e-4 pixels. Not
verified on trained weights. The authors resize with other filters: OWL-ViT bicubic, OWLv2 with a Gaussian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from edged.tensors import Array, Dim
from edged.vision import prompts as setting
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, may_be, undecided
from edged.vision.families.decoding import (
    ANY,
    Outputs,
    Thresholds,
    at_least,
    best_class,
    corners,
    logit,
    picture_tensor,
    sigmoid,
    to_detections,
)
from edged.vision.families.huggingface import mask_size
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD
from edged.vision.prompts import PROMPTS, Prompt
from edged.vision.signatures import patterns

_LOGITS, _BOXES, _EMBEDDED = "logits", "pred_boxes", ("text_embeds", "image_embeds")
_IDS, _ATTENTION, _TYPES, _MASK = "input_ids", "attention_mask", "token_type_ids", "pixel_mask"
_TOKENS = 16  # of one text of OWL
_MOST = 256  # tokens of all texts of Grounding DINO
_START, _END, _STOP, _QUESTION = 101, 102, 1012, 1029  # [CLS], [SEP], "." and "?"


class _Prompted(Family, frozen=True):
    """Base of the families in this module. The token ids of the prompts are `Reading.constants`. Each row of the
    outputs gives at most one detection."""

    thresholds = Thresholds(score=0.1)

    def extra_inputs(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """Return the token ids, and the masks of tokens and pixels, all INT64. The picture fills the input, so the
        mask of the pixels is 1 everywhere."""
        n = len(placements)
        texts = {name: np.tile(np.array(rows, np.int64), (n, 1)) for name, rows in self.reading.constants}
        return texts | {name: np.ones((n, *shape), np.int64) for name, shape in self.reading.extras}

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        logits = self._logits(outputs, index)
        boxes = picture_tensor(outputs, _BOXES, index, len(logits), 4)
        best, class_ids = best_class(logits.astype(np.float32, copy=False))
        rows = np.flatnonzero(best > logit(thresholds.score))
        found = corners(self.in_pixels(boxes[rows]))
        return to_detections(found, sigmoid(best[rows]), class_ids[rows], placement, thresholds, needs_nms=False)

    def _logits(self, outputs: Outputs, index: int) -> Array:
        """Return the logits of one picture, [rows, prompts]."""
        raise NotImplementedError


class OwlVit(_Prompted, frozen=True):
    """OWL-ViT: a logit for each patch and prompt."""

    name = "owlvit"
    signatures = patterns(
        "pixel_values, input_ids [texts, L], attention_mask [texts, L]"
        " -> logits [N, P, texts], pred_boxes [N, P, 4], text_embeds, image_embeds"
    )
    feed: ClassVar[Feed] = {"mean": CLIP_MEAN, "std": CLIP_STD}
    own_inputs = (_IDS, _ATTENTION)

    def _logits(self, outputs: Outputs, index: int) -> Array:
        return picture_tensor(outputs, _LOGITS, index, ANY, self.reading.width(0))

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        texts = _texts(evidence)
        if texts is None:
            return None
        prompts = setting.read(evidence.settings)
        count, length = texts
        width = length if isinstance(length, int) else _TOKENS
        problem = _lacking(prompts) or _unfit(prompts, count, width, _shape(evidence, _LOGITS)[2])
        if problem:
            return Claim(None, f"{reason}; {problem}")
        ids = tuple((*prompt.tokens, *[0] * (width - len(prompt.tokens))) for prompt in prompts)
        mask = tuple(tuple(int(at < len(prompt.tokens)) for at in range(width)) for prompt in prompts)
        reading = Reading((_LOGITS, _BOXES), constants=((_IDS, ids), (_ATTENTION, mask)))
        return _claim(cls.name, reason, reading, prompts)

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Return an undecided claim with OWL-ViT and OWLv2, which have the same tensors. If the prompts are missing,
        the reason says this."""
        if _texts(evidence) is None or set(evidence.output_names) != {_LOGITS, _BOXES, *_EMBEDDED}:
            return None
        problem = _lacking(setting.read(evidence.settings))
        what = f"tensors of OWL-ViT and OWLv2{f'; {problem}' if problem else ''}"
        return undecided(f"{what}; model_type in config.json says which of the two the model is", cls.name, OwlV2.name)


class OwlV2(OwlVit, frozen=True):
    """OWLv2: as `OwlVit`, but the picture is in a corner of a black square."""

    name = "owlv2"
    feed: ClassVar[Feed] = {"mean": CLIP_MEAN, "std": CLIP_STD, "fit": Fit.TOP_LEFT, "pad": 0}


class GroundingDino(_Prompted, frozen=True):
    """Grounding DINO: a logit for each query and token."""

    name = "grounding-dino"
    signatures = patterns(
        "pixel_values, input_ids [N, L], attention_mask [N, L], ... -> logits [N, Q, tokens], pred_boxes [N, Q, 4]"
    )
    feed: ClassVar[Feed] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    thresholds = Thresholds(score=0.25)
    own_inputs = (_IDS, _TYPES, _ATTENTION, _MASK)

    def _logits(self, outputs: Outputs, index: int) -> Array:
        rows = dict(self.reading.constants)
        ids = np.array(rows[_IDS][0][: sum(rows[_ATTENTION][0])])
        logits = picture_tensor(outputs, _LOGITS, index, ANY, at_least(len(ids)))
        words = np.flatnonzero((ids != _START) & (ids != _STOP) & (ids != _END))
        firsts = np.flatnonzero(np.diff(words, prepend=-1) > 1)
        best: Array = np.maximum.reduceat(logits[:, words], firsts, axis=1)
        return best

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        texts = _texts(evidence)
        if texts is None or not may_be(texts, 1, None):
            return None
        prompts = setting.read(evidence.settings)
        problem = _lacking(prompts) or _unjoinable(prompts)
        ids = (_START, *(each for prompt in prompts for each in (*prompt.tokens[1:-1], _STOP)), _END)
        width = texts[1] if isinstance(texts[1], int) else len(ids)
        if not problem and len(ids) > min(width, _MOST):
            problem = f"setting {PROMPTS!r} has {len(ids)} tokens together; the model takes at most {min(width, _MOST)}"
        if problem:
            return Claim(None, f"{reason}; {problem}")
        there = {spec.name: spec for spec in evidence.inputs}
        rest = (0,) * (width - len(ids))
        values = {_IDS: ids + rest, _TYPES: (0,) * width, _ATTENTION: (1,) * len(ids) + rest}
        constants = tuple((name, (row,)) for name, row in values.items() if name in there)
        extras = ((_MASK, mask_size(there[_MASK], evidence)),) if _MASK in there else ()
        reading = Reading((_LOGITS, _BOXES), is_list=True, extras=extras, constants=constants)
        return _claim(cls.name, reason, reading, prompts)

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        names = {spec.name for spec in evidence.inputs}
        if names.isdisjoint((_TYPES, _MASK)) or set(evidence.output_names) != {_LOGITS, _BOXES}:
            return None
        return cls.claim(evidence, "inputs of Grounding DINO")


def _texts(evidence: Evidence) -> tuple[Dim, Dim] | None:
    """Return the declared shape of the token ids; None if the inputs or outputs do not fit these families, or if the
    model takes several pictures at once."""
    there = {spec.name: spec for spec in evidence.inputs}
    texts = [there[name] for name in (_IDS, _ATTENTION, _TYPES) if name in there]
    if {_IDS, _ATTENTION} - there.keys() or any(spec.datatype != "INT64" or len(spec.shape) != 2 for spec in texts):
        return None
    if not may_be(there[evidence.picture.name].shape, 1, None, None, None):
        return None
    if not may_be(_shape(evidence, _LOGITS), None, None, None) or not may_be(_shape(evidence, _BOXES), None, None, 4):
        return None
    count, length = there[_IDS].shape
    return count, length


def _shape(evidence: Evidence, output: str) -> tuple[Dim, ...]:
    return next((spec.shape for spec in evidence.outputs if spec.name == output), ())


def _lacking(prompts: Sequence[Prompt]) -> str:
    """Return an error message if the setting `prompts` lacks texts or their token ids; otherwise an empty text."""
    if not prompts:
        return f'set {PROMPTS}, for example prompts = "a photo of a cat, a photo of a dog"'
    text = next((prompt.text for prompt in prompts if not prompt.tokens), None)
    if text is None:
        return ""
    how = "put tokenizer.json next to the model's file and add the model again; edged models set needs --tokenizer"
    return f"prompt {text[:60]!r} has no token ids; {how}"


def _unfit(prompts: Sequence[Prompt], count: Dim, width: int, classes: Dim) -> str:
    """Return why the texts do not fit OWL's inputs; empty if they fit."""
    fixed = next((dim for dim in (count, classes) if isinstance(dim, int) and dim != len(prompts)), None)
    if fixed is not None:
        return f"setting {PROMPTS!r} lists {len(prompts)} texts; the model takes exactly {fixed}"
    longest = max(prompts, key=lambda prompt: len(prompt.tokens))
    if len(longest.tokens) > width:
        return f"prompt {longest.text[:60]!r} has {len(longest.tokens)} tokens; the model takes {width}: shorten it"
    odd = next((prompt.text for prompt in prompts if max(prompt.tokens) != prompt.tokens[-1]), None)
    if odd is not None:
        return f"prompt {odd[:60]!r} needs the token ids of CLIP: the last id, the end of the text, must be the largest"
    return ""


def _unjoinable(prompts: Sequence[Prompt]) -> str:
    """Return why the texts cannot be joined to one text of Grounding DINO; empty if there is no reason."""
    for prompt in prompts:
        start, *words, end = prompt.tokens if len(prompt.tokens) > 2 else (0, 0, 0)
        if (start, end) != (_START, _END):
            what = f"{_START} at the start and {_END} at the end, as BERT's uncased vocabulary has"
            return f"prompt {prompt.text[:60]!r} needs the token ids {what}"
        if not {_START, _END, _STOP, _QUESTION}.isdisjoint(words):
            return f'prompt {prompt.text[:60]!r} has a "." or "?"; these characters separate prompts, so leave them out'
    return ""


def _claim(name: str, reason: str, reading: Reading, prompts: Sequence[Prompt]) -> Claim:
    return Claim(name, reason, reading, len(prompts), names=tuple(prompt.text for prompt in prompts))
