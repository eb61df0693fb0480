"""Models that estimate the depth of each place of one picture.

One output [N, H, W], [N, 1, H, W] or [N, H, W, 1] covers the input. The file does not say what the numbers mean. The
setting `family` says this, or config.json next to the file (see `edged.models.huggingface`):

- `depth`: inverse depth without a scale; larger numbers are nearer. MiDaS, DPT, Depth Anything v1 and v2
- `depth-metric`: metres from the camera. ZoeDepth, GLPN, UniDepth, the metric models of Depth Anything v2

Only UniDepth is recognised, by its outputs `depth`, `depth_ssi` and `confidence`.

Pictures are stretched, RGB, normalised as for ImageNet. DPT, its Hugging Face exports and ZoeDepth want
`preprocess.mean` and `preprocess.std` 0.5. MiDaS 2.1, as its authors export it, normalises in the graph: set
`preprocess.mean` to 0 and `preprocess.std` to 1. The authors resize by cubic interpolation and keep the picture's
aspect ratio, with sides that are multiples of 14 (Depth Anything, UniDepth) or 32 (MiDaS, DPT, ZoeDepth). In most
files, the input is fixed and square, and the exporters' own scripts also stretch the picture. If you export a model,
choose an input of the cameras' aspect ratio.

Sources: isl-org/MiDaS: hubconf.py (commit 1d3e36b), tf/make_onnx_model.py and tf/run_onnx.py (commit 8b4845f);
DepthAnything/Depth-Anything-V2: depth_anything_v2/dpt.py (commit 2cbc36a), metric_depth/README.md (commit 222a5d0);
fabio-sim/Depth-Anything-ONNX: dynamo.py (commit 3128cb9); transformers 5.24.0: `DPTImageProcessor`,
`ZoeDepthImageProcessor`, `DepthAnythingDepthEstimationHead`; optimum-onnx (commit 1939f27): output `predicted_depth`;
lpiccinelli-eth/UniDepth (commit 8d8cfe4): unidepthv2/export.py, and `UniDepthV2.infer` for the normalisation. No
trained model was at hand to verify these families.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.tensors import TensorSpec
from edged.vision.content import Depth, ValueMap
from edged.vision.families.contract import Claim, ContentFamily, Evidence, Feed, Reading, undecided
from edged.vision.families.decoding import Outputs, Thresholds
from edged.vision.families.maps import layout_of, part, shown, single_map
from edged.vision.placement import Placement
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_FLOATS = ("FP16", "FP32", "FP64")
_INVERSE = "inverse_depth"
_NAMES = ("predicted_depth", "depth", _INVERSE)
_UNIDEPTH = frozenset(("depth", "depth_ssi", "confidence"))


class RelativeDepth(ContentFamily, frozen=True):
    """Inverse depth without a scale."""

    name = "depth"
    signatures = patterns(
        "predicted_depth|depth|inverse_depth? [N, H, W], ...",
        "predicted_depth|depth|inverse_depth? [N, 1, H, W], ...",
        "depth? [N, H, W, 1]",
    )
    feed: ClassVar[Feed] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    is_inverse: ClassVar[bool] = True
    unit: ClassVar[str] = ""

    def content(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Depth:
        """See `ContentFamily.content`. The map has the resolution of the output."""
        cells = shown(single_map(outputs, self.reading.outputs[0], index), placement, self.preprocess)
        values = ValueMap.of(cells.astype(np.float32, copy=False), part(placement))
        return Depth(values, self.is_inverse, self.unit)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        """Claim the output with a name from `_NAMES`. If no output has such a name, claim the first map."""
        maps = [output.name for output in evidence.outputs if _is_one_map(output, evidence)]
        named = [name for name in _NAMES if name in maps]
        return Claim(cls.name, reason, Reading(tuple(named or maps)[:1])) if maps else None

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim UniDepth. For another output with a name from `_NAMES`, return an undecided claim with the families."""
        names = set(evidence.output_names)
        if names >= _UNIDEPTH:
            return MetricDepth.claim(evidence, "outputs depth, depth_ssi and confidence of UniDepth")
        claim = cls.claim(evidence, "")
        if claim is None or claim.reading.outputs[0] not in _NAMES:
            return None
        name = claim.reading.outputs[0]
        if name == _INVERSE:
            return undecided(f"output {name} is inverse depth without a scale, as MiDaS returns it", cls.name)
        return undecided(
            f"output {name} is inverse depth without a scale, or depth in metres", cls.name, MetricDepth.name
        )


class MetricDepth(RelativeDepth, frozen=True):
    """Depth in metres."""

    name = "depth-metric"
    is_inverse: ClassVar[bool] = False
    unit: ClassVar[str] = "m"


def _is_one_map(output: TensorSpec, evidence: Evidence) -> bool:
    """Whether an output can be one number for each place."""
    layout = layout_of(output, evidence)
    return layout is not None and layout.channels == 1 and output.datatype in _FLOATS
