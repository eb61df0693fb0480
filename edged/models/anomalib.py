"""Settings from metadata.json, which anomalib 0 and 1 put next to an exported model.

The file has the threshold from training, `image_threshold`, in the model's own scale. anomalib 1 normalises pixels in
the graph. anomalib 0 lists its transforms in the file, and edged normalises pixels as these transforms do.

Source: `deploy/export.py` (commit 012e381) and `components/base/export_mixin.py` (tag v1.2.0) of
open-edge-platform/anomalib. The transforms are in the format of `to_dict` of albumentations, which is known only from
the documentation of albumentations.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from edged.decoding import ready
from edged.files import read_regular

METADATA = "metadata.json"
_MOST_BYTES = 1 << 20


class _Transform(msgspec.Struct):
    mean: list[float] | None = None
    std: list[float] | None = None


class _Compose(msgspec.Struct):
    transforms: list[_Transform] = []


class _Transforms(msgspec.Struct):
    transform: _Compose = msgspec.field(default_factory=_Compose)


class _Metadata(msgspec.Struct):
    image_threshold: float
    pixel_threshold: float
    transform: _Transforms | None = None


def read_settings(file: Path) -> dict[str, str]:
    """Return `family`, `thresholds.score` and, for anomalib 0, `preprocess.mean` and `preprocess.std` of the model in
    `file`. Return an empty mapping if metadata.json of anomalib is not in the same folder, or is unusable."""
    path = file.parent / METADATA
    try:
        if path.stat().st_size > _MOST_BYTES:
            return {}
        found = msgspec.json.decode(read_regular(path), type=ready(_Metadata))
    except (OSError, ValueError, RecursionError):
        return {}
    if not math.isfinite(found.image_threshold):
        return {}
    settings = {"family": "anomalib-v1", "thresholds.score": repr(found.image_threshold)}
    for each in found.transform.transform.transforms if found.transform is not None else ():
        if each.mean and each.std:
            pairs = ("mean", each.mean), ("std", each.std)
            settings |= {f"preprocess.{key}": ",".join(map(repr, values)) for key, values in pairs}
    return settings
