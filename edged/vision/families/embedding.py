"""Embeddings: models that return a vector for a picture. Similar pictures have vectors that are near each other.

An output [N, values] or [N, values, 1, 1] is the vector, which edged scales to length 1. If a vision transformer has an
output [N, tokens, values], the vector is the first token, the class token. A 2-D output can also be scores of classes,
and the file does not say how pictures must be preprocessed. So a model is claimed only if the name of an output shows
that the output is an embedding, or if `family` is set. config.json of Hugging Face sets `family` (see
`edged.models.huggingface`).

Sources: deepinsight/insightface (commit 7fadd42), python-package/insightface/model_zoo/arcface_onnx.py and
utils/face_align.py; opencv/opencv, modules/objdetect/src/face_recognize.cpp (commit 0692bb4); opencv/opencv_zoo,
models/face_recognition_sface/sface.py; KaiyangZhou/deep-person-reid (commit f8cd150), tools/export.py and
torchreid/utils/feature_extractor.py; huggingface/optimum-onnx (commit 1939f27),
optimum/exporters/onnx/model_configs.py; xenova/transformers.js, scripts/extra/clip.py; the image processors of
transformers 5.24.0.

The score of `thresholds` is the least similarity (the cosine of the angle) with which a vector gets a name from a
gallery. The defaults are those of Immich for insightface's models (largest distance 0.5), of OpenCV's model zoo for
SFace, and of StrongSORT in boxmot for OSNet (largest distance 0.2). No source has a value for the other families. No
trained model was at hand to verify these families.
"""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np

from edged.errors import EngineUnusable
from edged.tensors import TensorSpec
from edged.vision.content import MOST_VALUES, Embedding
from edged.vision.families.contract import Claim, ContentFamily, Evidence, Feed, Reading, undecided
from edged.vision.families.decoding import (
    AT_LEAST_ONE,
    Outputs,
    Thresholds,
    picture_tensor,
    picture_vector,
)
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_POOLED, _TOKENS = "pooler_output", "last_hidden_state"
_PROJECTED = "image_embeds"
_KNOWN = (_PROJECTED, _POOLED, _TOKENS)  # names of Hugging Face's exports, the best first
_LOGITS = "logits"
_WORDS = frozenset(("embedding", "embeddings", "embeds", "embed", "feature", "features", "feat", "descriptor"))
_CLASS_TOKEN = "class-token"  # noqa: S105 - a form, no secret
_LEAST = 8  # values of an embedding
_FACE, _PERSON = (112, 112), (128, 256)  # width and height of inputs


class GenericEmbedding(ContentFamily, frozen=True):
    """Any model that returns a vector, with the preprocessing of ImageNet: features of ResNet, MobileNet and others."""

    name = "embedding"
    signatures = patterns(
        "embedding? [N, values]", "embedding? [N, values, 1, 1]", "last_hidden_state? [N, tokens, values], ..."
    )
    feed: ClassVar[Feed] = {
        "fit": Fit.CENTER_CROP,
        "zoom": 256 / 224,
        "antialias": True,
        "mean": IMAGENET_MEAN,
        "std": IMAGENET_STD,
    }
    thresholds = Thresholds(score=0.8)
    has_class_token: ClassVar[bool] = True  # whether the first token of [N, tokens, values] stands for the picture

    def content(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Embedding:
        """See `ContentFamily.content`. A vector with NaN or infinity becomes a vector of zeros, which is similar to no
        vector. Raises EngineUnusable if the vector has more than `MOST_VALUES` values."""
        output = self.reading.outputs[0]
        if self.reading.form == _CLASS_TOKEN:
            vector = picture_tensor(outputs, output, index, AT_LEAST_ONE, AT_LEAST_ONE)[0]
        else:
            vector = picture_vector(outputs, output, index, AT_LEAST_ONE)
        if len(vector) > MOST_VALUES:
            what = f"output {output} has {len(vector)} values; an embedding can have at most {MOST_VALUES}"
            raise EngineUnusable(f"{what}; set family=raw")
        return Embedding.of(vector if np.isfinite(vector).all() else np.zeros(vector.shape))

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        """Claim the output that has a name of Hugging Face's exports. Without such a name, claim the only output whose
        name has a word for embeddings, or else the only output that can be a vector."""
        outputs = {spec.name: spec for spec in evidence.outputs if _is_vector(spec, cls.has_class_token)}
        flat = [name for name, spec in outputs.items() if not _is_tokens(spec)] or list(outputs)
        best = [name for name in _KNOWN if name in outputs] or [name for name in flat if _is_embedding(name)] or flat
        if not best or (len(best) > 1 and best[0] not in _KNOWN):
            return None
        return Claim(cls.name, reason, Reading((best[0],), _CLASS_TOKEN if _is_tokens(outputs[best[0]]) else ""))


class ArcFace(GenericEmbedding, frozen=True):
    """ArcFace and other face embeddings of insightface (w600k_r50, w600k_mbf, glintr100, ...).

    Input [N, 3, 112, 112] FP32, RGB, (pixel - 127.5) / 127.5; output [N, 512]. The authors turn and scale the face so
    that eyes, nose and mouth are at fixed places, and fill the area outside the picture with black. edged feeds the
    picture or region as it is, so fewer faces are recognised. Older models of insightface, from MXNet, normalise pixels
    in the graph: they are of the family `sface`.
    """

    name = "arcface"
    signatures = patterns("[N, 3, 112, 112] -> embedding? [N, values]")
    feed: ClassVar[Feed] = {
        "fit": Fit.LETTERBOX,
        "pad": 0,
        "scale": 1.0,
        "mean": (127.5, 127.5, 127.5),
        "std": (127.5, 127.5, 127.5),
    }
    thresholds = Thresholds(score=0.5)


class SFace(GenericEmbedding, frozen=True):
    """SFace of OpenCV's model zoo, and older models of insightface. Pictures are fed as for `ArcFace`, but in 0..255,
    because the graph normalises pixels."""

    name = "sface"
    signatures = patterns("[N, 3, 112, 112] -> embedding? [N, values]")
    feed: ClassVar[Feed] = {"fit": Fit.LETTERBOX, "pad": 0, "scale": 1.0}
    thresholds = Thresholds(score=0.363)


class OsNet(GenericEmbedding, frozen=True):
    """OSNet and other torchreid models for person re-identification: input [N, 3, 256, 128] FP32, output [N, 512]."""

    name = "osnet"
    signatures = patterns("[N, 3, 256, 128] -> embedding? [N, values]")
    feed: ClassVar[Feed] = {"fit": Fit.STRETCH, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    thresholds = Thresholds(score=0.8)


class Clip(GenericEmbedding, frozen=True):
    """The image encoder of CLIP. `image_embeds` [N, values] is projected to the space in which CLIP compares pictures
    with texts; `pooler_output` [N, values] is not projected."""

    name = "clip"
    signatures = patterns("image_embeds|pooler_output [N, values], ...")
    feed: ClassVar[Feed] = {"fit": Fit.CENTER_CROP, "antialias": True, "mean": CLIP_MEAN, "std": CLIP_STD}
    has_class_token = False  # the first token lacks the last normalisation


class Siglip(GenericEmbedding, frozen=True):
    """The image encoder of SigLIP: `pooler_output` [N, values]. Its tokens include no class token."""

    name = "siglip"
    signatures = patterns("pooler_output [N, values], ...")
    feed: ClassVar[Feed] = {"fit": Fit.STRETCH, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    has_class_token = False


class DinoV2(GenericEmbedding, frozen=True):
    """DINOv2: `last_hidden_state` [N, 1 + patches, values], whose first token is the class token."""

    name = "dinov2"
    signatures = patterns("last_hidden_state [N, tokens, values], ...", "pooler_output [N, values], ...")


def by_names(evidence: Evidence) -> Claim | None:
    """Claim a model with an output that has the name of an embedding. Hugging Face's models with hidden states differ
    in their preprocessing, so config.json or the setting `family` must name the family. A model with a second input is
    not claimed, because it also takes texts, like a complete CLIP."""
    outputs = {spec.name: spec for spec in evidence.outputs if _is_vector(spec, tokens=True)}
    if _LOGITS in evidence.output_names or len(evidence.inputs) > 1:
        return None
    if _PROJECTED in outputs:
        return Clip.claim(evidence, f"an output named {_PROJECTED}")
    for name in (_POOLED, _TOKENS):
        if name in outputs:
            what = f"an output named {name}: an embedding of one of several kinds"
            flat = (Clip.name, Siglip.name) if name == _POOLED else ()
            return undecided(what, *flat, DinoV2.name, GenericEmbedding.name)
    output = evidence.only_output
    if output is None or not _is_vector(output, tokens=False) or not _is_embedding(output.name):
        return None
    return _preset(evidence).claim(evidence, f"one output, named {output.name}")


def suggested(evidence: Evidence) -> tuple[str, ...]:
    """Return the families to suggest for a model whose only output may be an embedding; empty for other models."""
    output = evidence.only_output
    if output is None or not _is_vector(output, tokens=False):
        return ()
    return (ArcFace.name, SFace.name) if evidence.size == _FACE else (_preset(evidence).name,)


def _preset(evidence: Evidence) -> type[GenericEmbedding]:
    """Return the family that the input size suggests: `SFace` or `ArcFace` for faces, `OsNet` for persons, otherwise
    `GenericEmbedding`.

    A model of faces is an `SFace` if its graph normalises pixels, otherwise an `ArcFace`. A graph that subtracts and
    multiplies counts as one that normalises pixels. insightface has the same rule, but looks at the first nodes only.
    """
    if evidence.size == _FACE:
        return SFace if (evidence.operators or frozenset()) >= {"Sub", "Mul"} else ArcFace
    return OsNet if evidence.size == _PERSON else GenericEmbedding


def _is_embedding(name: str) -> bool:
    """Whether a name has a word for embeddings."""
    return not _WORDS.isdisjoint(re.split(r"[^a-z]+", name.lower()))


def _is_tokens(spec: TensorSpec) -> bool:
    return len(spec.shape) == 3


def _is_vector(spec: TensorSpec, tokens: bool) -> bool:
    """Whether an output can be [N, values], [N, values, 1, 1] or, with `tokens`, [N, tokens, values]."""
    if spec.datatype not in ("FP32", "FP16", "FP64") or len(spec.shape) not in ((2, 3, 4) if tokens else (2, 4)):
        return False
    values = spec.shape[2] if _is_tokens(spec) else spec.shape[1]
    is_flat = len(spec.shape) < 4 or spec.shape[2:] == (1, 1)
    return is_flat and (isinstance(values, str) or values >= _LEAST)
