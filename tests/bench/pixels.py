"""The cost of preparing pictures (reduced JPEG decoding, regions, rotation), and of maps in answers. Prints ratios
measured in one run.

python tests/bench/pixels.py [SECONDS]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

from edged.shapes import Scene
from edged.tensors import TensorSpec
from edged.vision import masks
from edged.vision.content import pack, unpack
from edged.vision.detections import Detections
from edged.vision.families.maps import Ids, best_classes
from edged.vision.family import ContentFamily, Thresholds, open_family, recognise
from edged.vision.image import decode, decode_reduced
from edged.vision.placement import Fit, Region, Roi, place
from edged.vision.prepare import Preparer
from edged.vision.preprocess import Preprocess
from tests.measuring import argument, in_turns

_RESOLUTIONS = ((1280, 720), (1920, 1080), (3840, 2160))
_SIDES = (320, 640)


def report(title: str, works: dict[str, Callable[[], object]], seconds: float) -> None:
    """Print each one's lowest time in ms, and its speed relative to the first."""
    least = {name: min(times) * 1e3 for name, times in in_turns(works, seconds).items()}
    first = next(iter(least.values()))
    print(f"{title:32}" + "".join(f"  {name} {value:6.2f} ms ({first / value:4.2f}x)" for name, value in least.items()))


def reduced(seconds: float) -> None:
    """Decode and prepare JPEGs of quality 85."""
    for (width, height), side in itertools.product(_RESOLUTIONS, _SIDES):
        encoded = cv2.imencode(".jpg", Scene(1, width, height).frame(0)[0], [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes()
        preparer = Preparer(Preprocess(side, side, fit=Fit.LETTERBOX, reduce=True))
        out = np.empty(preparer.preprocess.shape, np.float32)
        step = decode_reduced(encoded, preparer.reduction).step
        works = {
            "whole": lambda e=encoded, p=preparer, o=out: p.prepare(decode(e), o),
            f"1/{step}": lambda e=encoded, p=preparer, o=out: p.prepare(decode_reduced(e, p.reduction), o),
        }
        report(f"JPEG {width}x{height} into {side}", works, seconds)


def views(seconds: float) -> None:
    """Prepare decoded pixels."""
    picture = Scene(1, 1920, 1080).frame(0)[0]
    preparer = Preparer(Preprocess(640, 640, fit=Fit.LETTERBOX, reduce=True))
    out = np.empty(preparer.preprocess.shape, np.float32)
    seen = {
        "plain": None,
        "region": Roi(Region(101, 51, 960, 540)),
        "90": Roi(rotation=90),
        "180": Roi(rotation=180),
    }
    works = {name: lambda v=view: preparer.prepare(picture, out, v) for name, view in seen.items()}
    report("prepare 1920x1080 into 640", works, seconds)


def packing(seconds: float) -> None:
    """Pack and unpack detections, as between processes."""
    n = 100
    boxes = Detections.of(np.ones((n, 4)), np.ones(n), np.ones(n))
    disc = cv2.circle(np.zeros((200, 200), np.uint8), (100, 100), 90, 1, cv2.FILLED).astype(bool)
    run = masks.encode(disc, 50, 50, 1920, 1080)
    masked = Detections.of(np.ones((n, 4)), np.ones(n), np.ones(n), masks=[run] * n)
    works = {
        "boxes": lambda: Detections.unpack(boxes.pack()),
        "masks": lambda: Detections.unpack(masked.pack()),
        "one mask": lambda: masks.encode(disc, 50, 50, 1920, 1080),
    }
    report(f"{n} detections", works, seconds)


def class_maps(seconds: float) -> None:
    """Decode a class map of a picture of 1920x1080; "authors" interpolates all scores to the picture's size."""
    for title, classes, side, stride in (
        ("SegFormer, 150 classes", 150, 512, 4),
        ("19 classes", 19, 1024, 8),
        ("DeepLab, 21 classes", 21, 520, 1),
    ):
        scores = _scores(classes, side // stride)
        family, placement = _opened("logits", scores, side), place(1920, 1080, side, side, Fit.STRETCH)
        packed = pack(family.content({"logits": scores}, 0, placement, Thresholds()))
        works = {
            "class map": lambda f=family, s=scores, p=placement: f.content({"logits": s}, 0, p, Thresholds()),
            "pack": lambda p=packed: pack(unpack(p)),
            "authors": lambda s=scores: _enlarged(s[0], 1920, 1080),
        }
        report(f"{title}, {side}x{side}, {len(packed) >> 10} KiB", works, seconds)


def depths(seconds: float) -> None:
    """Decode a depth map of Depth Anything."""
    values = _scores(1, 518)[:, 0]
    family, placement = _opened("depth", values, 518), place(1920, 1080, 518, 518, Fit.STRETCH)
    content = family.content({"depth": values}, 0, placement, Thresholds())
    works = {
        "depth": lambda: family.content({"depth": values}, 0, placement, Thresholds()),
        "pack": lambda: unpack(pack(content)),
    }
    report("depth, 518x518", works, seconds)


def _scores(classes: int, side: int) -> npt.NDArray[np.float32]:
    """Return scores [1, classes, side, side] with areas of about a dozen classes."""
    random = np.random.default_rng(0)
    coarse = random.standard_normal((classes, 7, 11)).astype(np.float32)
    coarse[12:] -= 4
    return np.stack([cv2.resize(each, (side, side), interpolation=cv2.INTER_CUBIC) for each in coarse])[None]


def _opened(output: str, values: npt.NDArray[np.float32], side: int) -> ContentFamily:
    inputs = (TensorSpec("images", "FP32", (1, 3, side, side)),)
    outputs = (TensorSpec(output, "FP32", values.shape),)
    family = open_family(recognise(inputs, outputs, {}, {"family": "depth" if output == "depth" else "segmentation"}))
    assert isinstance(family, ContentFamily)
    return family


def _enlarged(planes: npt.NDArray[np.float32], width: int, height: int) -> Ids:
    return best_classes(np.stack([cv2.resize(each, (width, height)) for each in planes]))


if __name__ == "__main__":
    for measure in (reduced, views, packing, class_maps, depths):
        measure(argument(2.0))
