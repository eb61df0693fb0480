"""Settings from the files that Hugging Face puts next to a model: config.json and preprocessor_config.json.

Exports of detectors have the same tensors for all kinds of models; only `model_type` in config.json says which one it
is. Models of segmentation and depth are known by their class in `architectures`, whose outputs are all of one form. The
files are in the folder of the ONNX file (Optimum) or in its parent (`onnx/model.onnx` on the Hub).

Source: `configuration_*.py`, `modeling_auto.py` and the image processors of transformers 5.24.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from edged.decoding import ready
from edged.files import read_regular

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
# model_type -> family
FAMILIES = {
    **dict.fromkeys(("detr", "yolos", "table-transformer"), "detr"),
    **dict.fromkeys(("conditional_detr", "deformable_detr", "dab-detr", "rf_detr"), "deformable-detr"),
    **dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine"), "rtdetr-transformers"),
}
# The ends of the names of classes.
_SEGMENTATION, _DEPTH = "ForSemanticSegmentation", "ForDepthEstimation"
_METRIC = ("glpn", "zoedepth")  # model_type of models that return metres
_RELATIVE = ("depth_anything", "depth_pro", "dpt")  # of models that return inverse depth; Depth Anything has both
_UNNORMALISED = ("glpn", "mobilevit", "mobilevitv2")  # their processors do not normalise, and have no setting for it
_SQUARE = ("beit", "data2vec-vision", "dpt", "segformer")  # a size that is one number is the width and the height
_MOST_BYTES = 1 << 20

_T = TypeVar("_T")


class _Backbone(msgspec.Struct):
    model_type: str = ""


class _Config(msgspec.Struct):
    model_type: str = ""
    id2label: dict[int, str] = {}
    architectures: list[str] | None = None
    backbone_config: _Backbone | None = None
    depth_estimation_type: str = ""

    @property
    def map_family(self) -> str:
        """The family of a model of segmentation or depth; empty for another model, and if the unit is unknown."""
        names = tuple(self.architectures or ())
        if any(name.endswith(_SEGMENTATION) for name in names):
            return "segmentation"
        if not any(name.endswith(_DEPTH) for name in names):
            return ""
        if self.model_type in _METRIC or self.depth_estimation_type == "metric":
            return "depth-metric"
        # Models with this backbone were trained with metres, but no file says so.
        is_unknown = self.backbone_config is not None and self.backbone_config.model_type == "dinov2"
        is_dpt = self.model_type == "dpt"
        return "depth" if self.model_type in _RELATIVE and not (is_dpt and is_unknown) else ""


class _Processor(msgspec.Struct):
    do_normalize: bool | None = None
    image_mean: list[float] | None = None
    image_std: list[float] | None = None
    size: object = None
    do_center_crop: bool | None = None
    crop_size: object = None
    do_flip_channel_order: bool | None = None


def read_settings(file: Path) -> dict[str, str]:
    """Return the settings for a detector, or a model of segmentation or depth, of Hugging Face's transformers; empty if
    no file next to it describes one.

    These are `family`, `names`, `preprocess.mean` and `.std`, and `preprocess.width` and `.height` if the processor
    resizes all pictures to one size. A file that cannot be read counts as absent.
    """
    folder = next((each for each in (file.parent, file.parent.parent) if (each / CONFIG).is_file()), None)
    config = None if folder is None else _read(folder / CONFIG, _Config)
    if folder is None or config is None:
        return {}
    if config.map_family:
        return _of_map_model(config, _read(folder / PROCESSOR, _Processor) or _Processor())
    if config.model_type not in FAMILIES:
        return {}
    settings = {"family": FAMILIES[config.model_type]}
    return settings | _names(config.id2label) | _of_processor(_read(folder / PROCESSOR, _Processor) or _Processor())


def _of_map_model(config: _Config, processor: _Processor) -> dict[str, str]:
    """Return the settings for a model of segmentation or depth. It is shown all of the picture, also if its processor
    cuts out the middle."""
    settings = {"family": config.map_family}
    if config.map_family == "segmentation":
        settings |= _names({number: label.partition(",")[0] for number, label in config.id2label.items()})
    if processor.do_flip_channel_order:
        settings["preprocess.color"] = "bgr"
    is_normalised = processor.do_normalize
    if is_normalised is None and config.model_type in _UNNORMALISED:
        is_normalised = False
    size = processor.crop_size if processor.do_center_crop else processor.size
    if type(size) is int and (processor.do_center_crop or config.model_type in _SQUARE):
        size = {"width": size, "height": size}
    return settings | _of_processor(msgspec.structs.replace(processor, do_normalize=is_normalised, size=size))


def _names(labels: Mapping[int, str]) -> dict[str, str]:
    """Return the setting `names`; empty if a setting cannot hold the labels."""
    names = [" ".join(labels[key].split()) for key in sorted(labels)]
    if not names or sorted(labels) != list(range(len(names))) or any("," in name for name in names):
        return {}
    return {"names": ",".join(name or str(number) for number, name in enumerate(names))}


def _of_processor(processor: _Processor) -> dict[str, str]:
    settings: dict[str, str] = {}
    if processor.do_normalize is False:
        settings |= {"preprocess.mean": "0", "preprocess.std": "1"}
    elif processor.do_normalize and processor.image_mean and processor.image_std:
        pairs = ("mean", processor.image_mean), ("std", processor.image_std)
        settings |= {f"preprocess.{key}": ",".join(map(str, values)) for key, values in pairs}
    if isinstance(processor.size, dict):
        sides = {side: processor.size.get(side) for side in ("width", "height")}
        if all(type(pixels) is int and pixels > 0 for pixels in sides.values()):  # True is no size
            settings |= {f"preprocess.{side}": str(pixels) for side, pixels in sides.items()}
    return settings


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return msgspec.json.decode(read_regular(path), type=ready(kind))
    except (OSError, ValueError):
        return None
