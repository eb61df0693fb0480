"""The cost of preparing pictures: reduced JPEG decoding, regions, rotation. Prints ratios measured in one run.

python tests/bench/pixels.py [SECONDS]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import cv2
import numpy as np

from edged.shapes import Scene
from edged.vision import masks
from edged.vision.detections import Detections
from edged.vision.image import decode, decode_reduced
from edged.vision.placement import Fit, Region, Roi
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


if __name__ == "__main__":
    for measure in (reduced, views, packing):
        measure(argument(2.0))
