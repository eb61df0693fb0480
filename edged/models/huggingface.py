"""Settings from the files that Hugging Face puts next to a model: config.json, and preprocessor_config.json or
processor_config.json.

Exports of different kinds of detectors and image encoders have the same tensors; only `model_type` in config.json says
which kind a model is. Models for segmentation, depth and classification are recognised by their class in
`architectures`, because all models of such a class have outputs of the same form. The files are in the folder of the
ONNX file (Optimum) or in the parent of this folder (`onnx/model.onnx` on the Hub).

Source: `configuration_*.py`, `modeling_auto.py` and the image processors of transformers 5.24.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard, TypeVar

import msgspec

from edged.decoding import ready
from edged.files import read_regular
from edged.models import limits
from edged.vision.preprocess import MAX_SIDE

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
_COMBINED = "processor_config.json"  # since 5.0, transformers writes this instead of PROCESSOR for models with text
# model_type -> family
FAMILY_OF_MODEL_TYPE = {
    **dict.fromkeys(("detr", "yolos", "table-transformer"), "detr"),
    **dict.fromkeys(("conditional_detr", "deformable_detr", "dab-detr", "rf_detr"), "deformable-detr"),
    **dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine"), "rtdetr-transformers"),
    "owlvit": "owlvit",
    "owlv2": "owlv2",
    **dict.fromkeys(("grounding-dino", "mm-grounding-dino"), "grounding-dino"),
}
_PROMPTED = ("owlvit", "owlv2", "grounding-dino")  # families whose classes are the prompts
# model_type -> family, unless the model is a classifier
ENCODERS = {
    **dict.fromkeys(("clip", "clip_vision_model"), "clip"),
    **dict.fromkeys(("siglip", "siglip_vision_model"), "siglip"),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), "dinov2"),
}
# The ends of the names of classes in `architectures`.
_CLASSIFIER, _SEGMENTATION, _DEPTH = "ForImageClassification", "ForSemanticSegmentation", "ForDepthEstimation"
_METRIC = ("glpn", "zoedepth")  # model_type of models that return metres
# model_type of models that return inverse depth; some Depth Anything models return metres instead
_RELATIVE = ("depth_anything", "depth_pro", "dpt")
_UNNORMALISED = ("glpn", "mobilevit", "mobilevitv2")  # their processors never normalise, and no file says so
_FLIPPED = ("mobilevit", "mobilevitv2")  # their processors swap red and blue by default
_SQUARE = ("beit", "data2vec-vision", "dpt", "segformer")  # for their processors, one number is width and height
_LABELS = "multi_label_classification"
_FULL_SIZE = 384  # pixels: image processors with `crop_pct` do not crop inputs from this size on
_MOST_BYTES = 1 << 20

_T = TypeVar("_T")


class _Backbone(msgspec.Struct, frozen=True):
    model_type: str = ""


class _Config(msgspec.Struct, frozen=True):
    model_type: str = ""
    architectures: list[str] | None = None
    problem_type: str | None = None
    id2label: dict[int, str] = {}
    backbone_config: _Backbone | None = None
    depth_estimation_type: str = ""

    def is_class(self, end: str) -> bool:
        return any(name.endswith(end) for name in self.architectures or ())

    @property
    def map_family(self) -> str:
        """The family of a model of segmentation or depth; empty for other models, and for depth of unknown unit."""
        if self.is_class(_SEGMENTATION):
            return "segmentation"
        if not self.is_class(_DEPTH):
            return ""
        if self.model_type in _METRIC or self.depth_estimation_type == "metric":
            return "depth-metric"
        # DPT models with this backbone were trained with metres, but no file says so.
        is_unknown = self.backbone_config is not None and self.backbone_config.model_type == "dinov2"
        is_dpt = self.model_type == "dpt"
        return "depth" if self.model_type in _RELATIVE and not (is_dpt and is_unknown) else ""

    @property
    def first_labels(self) -> dict[int, str]:
        """The labels up to the first comma. Labels of ImageNet and ADE20K list synonyms, such as "tench, Tinca tinca";
        the first synonym names the class."""
        return {number: label.partition(",")[0] for number, label in self.id2label.items()}


class _Processor(msgspec.Struct, frozen=True):
    do_normalize: bool | None = None
    image_mean: list[float] | None = None
    image_std: list[float] | None = None
    do_rescale: bool | None = None
    do_resize: bool | None = None
    do_center_crop: bool | None = None
    do_flip_channel_order: bool | None = None
    include_top: bool | None = None
    size: object = None
    crop_size: object = None
    crop_pct: float | None = None

    def completed(self, model_type: str) -> _Processor:
        """Return the processor, completed with defaults of the processors' code for this `model_type`, which no file
        contains."""
        normalises, flips, std = self.do_normalize, self.do_flip_channel_order, self.image_std
        if normalises is None and model_type in _UNNORMALISED:
            normalises = False
        if flips is None and model_type in _FLIPPED:
            flips = True
        if std and model_type == "efficientnet" and self.include_top is not False:
            std = [round(each * each, 6) for each in std]  # this processor divides by std twice
        return msgspec.structs.replace(self, do_normalize=normalises, do_flip_channel_order=flips, image_std=std)


class _Combined(msgspec.Struct, frozen=True):
    image_processor: _Processor = _Processor()


def read_settings(file: Path) -> dict[str, str]:
    """Return the settings for a model of Hugging Face's transformers: a detector, classifier, image encoder, or model
    of segmentation or depth. Empty if no config.json describes such a model.

    The settings are `family` (not for classifiers), `names` (unless prompts are the classes), `decode.activation` for
    multi-label classifiers, `outputs.finite` for Grounding DINO, and `preprocess.*`: color, scale, mean and std. If the
    processor fits all pictures into one size, `preprocess.*` also has this size, and for classifiers and encoders the
    fit. A file that cannot be read counts as absent.
    """
    folder = next((each for each in (file.parent, file.parent.parent) if (each / CONFIG).is_file()), None)
    config = None if folder is None else _read(folder / CONFIG, _Config)
    if folder is None or config is None:
        return {}
    combined = _read(folder / _COMBINED, _Combined) or _Combined()
    processor = (_read(folder / PROCESSOR, _Processor) or combined.image_processor).completed(config.model_type)
    if config.is_class(_CLASSIFIER):
        activation = {"decode.activation": "sigmoid"} if config.problem_type == _LABELS else {}
        return {**_names(config.first_labels), **activation, **_pixels(processor), **_fit(processor)}
    if config.map_family:
        return _of_map_model(config, processor)
    if config.model_type in ENCODERS:
        return {"family": ENCODERS[config.model_type], **_pixels(processor), **_fit(processor)}
    if config.model_type in FAMILY_OF_MODEL_TYPE:
        family = FAMILY_OF_MODEL_TYPE[config.model_type]
        names = {} if family in _PROMPTED else _names(config.id2label)
        # The logits of Grounding DINO are minus infinity beyond the last token.
        unchecked = {limits.FINITE: "ignore"} if family == "grounding-dino" else {}
        return {"family": family, **names, **unchecked, **_pixels(processor), **_size(processor.size)}
    return {}


def _of_map_model(config: _Config, processor: _Processor) -> dict[str, str]:
    """Return the settings for a model of segmentation or depth. edged feeds the whole picture to the model, even if the
    model's processor crops the centre."""
    names = _names(config.first_labels) if config.map_family == "segmentation" else {}
    size = processor.crop_size if processor.do_center_crop else processor.size
    if type(size) is int and (processor.do_center_crop or config.model_type in _SQUARE):
        size = {"width": size, "height": size}
    return {"family": config.map_family, **names, **_pixels(processor), **_size(size)}


def _names(labels: Mapping[int, str]) -> dict[str, str]:
    """Return the setting `names`; empty if a setting cannot hold the labels."""
    names = [" ".join(labels[key].split()) for key in sorted(labels)]
    if not names or sorted(labels) != list(range(len(names))) or any("," in name for name in names):
        return {}
    return {"names": ",".join(name or str(number) for number, name in enumerate(names))}


def _pixels(processor: _Processor) -> dict[str, str]:
    """Return the settings for the normalisation of pixels."""
    settings: dict[str, str] = {}
    if processor.do_flip_channel_order:
        settings["preprocess.color"] = "bgr"
    if processor.do_rescale is False:
        settings["preprocess.scale"] = "1"
    if processor.do_normalize is False:
        return {**settings, "preprocess.mean": "0", "preprocess.std": "1"}
    if processor.do_normalize and processor.image_mean and processor.image_std:
        pairs = ("mean", processor.image_mean), ("std", processor.image_std)
        settings |= {f"preprocess.{key}": ",".join(map(str, values)) for key, values in pairs}
    return settings


def _fit(processor: _Processor) -> dict[str, str]:
    """Return the settings for the input size of a classifier or encoder, and for fitting pictures into the input; empty
    if the processor's files do not determine these settings.

    A processor either stretches the picture, or resizes the shorter side and crops the centre. A processor with
    `crop_pct` (ConvNext, ResNet) whose size is only a shortest edge crops the centre if this edge is below 384 pixels,
    and stretches the picture otherwise.
    """
    if processor.do_resize is False:
        return {}
    edge = _edge(processor.size)
    stretched = {"preprocess.fit": "stretch", "preprocess.zoom": "1"}
    if processor.crop_pct is not None and edge is not None:
        if edge >= _FULL_SIZE or not 0.1 <= processor.crop_pct <= 1:
            return {**stretched, **_square(edge)}
        return {**_cropped(edge / processor.crop_pct, edge), **_square(edge)}
    crop_edge = _edge(processor.crop_size)
    crop = _size(processor.crop_size) or ({} if crop_edge is None else _square(crop_edge))
    if processor.do_center_crop and crop and edge is not None:
        return {**_cropped(edge, max(map(int, crop.values()))), **crop}
    if processor.do_center_crop:
        return {}
    size = _size(processor.size) or ({} if edge is None or isinstance(processor.size, dict) else _square(edge))
    return {**stretched, **size} if size else {}


def _cropped(resized: float, kept: int) -> dict[str, str]:
    """Return the settings that resize the shorter side to `resized` pixels and crop the centre to `kept` pixels."""
    return {"preprocess.fit": "center_crop", "preprocess.zoom": f"{max(1.0, resized / kept):.6g}"}


def _edge(size: object) -> int | None:
    """Return `shortest_edge` of a size, or the size itself if it is a number, as in older files; otherwise None."""
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    return edge if _is_side(edge) else None


def _size(size: object) -> dict[str, str]:
    """Return the settings for a fixed width and height; empty for other sizes."""
    if isinstance(size, list) and len(size) == 2:  # early versions write a list
        size = {"height": size[0], "width": size[1]}
    sides = {side: size.get(side) if isinstance(size, dict) else None for side in ("width", "height")}
    if all(map(_is_side, sides.values())):
        return {f"preprocess.{side}": str(pixels) for side, pixels in sides.items()}
    return {}


def _is_side(pixels: object) -> TypeGuard[int]:
    return type(pixels) is int and 0 < pixels <= MAX_SIDE  # True is not a size


def _square(side: int) -> dict[str, str]:
    return {"preprocess.width": str(side), "preprocess.height": str(side)}


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return msgspec.json.decode(read_regular(path), type=ready(kind))
    except (OSError, ValueError, RecursionError):
        return None
