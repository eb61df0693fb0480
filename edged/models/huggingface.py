"""Settings from the files that Hugging Face puts next to a model: config.json and preprocessor_config.json.

Exports of detectors and of encoders have the same tensors for all kinds of models; only `model_type` in config.json
says which one it is. Classifiers are recognised by their output `logits`, but only these files have their names and
their preprocessing. The files are in the folder of the ONNX file (Optimum) or in its parent (`onnx/model.onnx` on the
Hub).

Source: `configuration_*.py` and the image processors of transformers 5.24.0.
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
# model_type -> family, unless the model is a classifier
ENCODERS = {
    **dict.fromkeys(("clip", "clip_vision_model"), "clip"),
    **dict.fromkeys(("siglip", "siglip_vision_model"), "siglip"),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), "dinov2"),
}
_CLASSIFIER = "ForImageClassification"  # the end of the names of architectures
_LABELS = "multi_label_classification"
_MOST_BYTES = 1 << 20
_FULL_SIZE = 384  # pixels: image processors with `crop_pct` do not crop inputs from this size on

_T = TypeVar("_T")


class _Config(msgspec.Struct):
    model_type: str = ""
    architectures: list[str] | None = None
    problem_type: str | None = None
    id2label: dict[int, str] = {}

    @property
    def is_classifier(self) -> bool:
        return any(name.endswith(_CLASSIFIER) for name in self.architectures or ())


class _Processor(msgspec.Struct):
    do_normalize: bool | None = None
    image_mean: list[float] | None = None
    image_std: list[float] | None = None
    do_rescale: bool | None = None
    do_resize: bool | None = None
    do_center_crop: bool | None = None
    do_flip_channel_order: bool | None = None
    size: object = None
    crop_size: object = None
    crop_pct: float | None = None


def read_settings(file: Path) -> dict[str, str]:
    """Return the settings for a detector, classifier or encoder of Hugging Face's transformers; empty if no file next
    to it describes one.

    These are `family` (not for classifiers), `names`, `decode.activation` for several labels, and `preprocess.*`: mean
    and std, the size if the processor fits all pictures into one, and how. A file that cannot be read counts as absent.
    """
    folder = next((each for each in (file.parent, file.parent.parent) if (each / CONFIG).is_file()), None)
    config = None if folder is None else _read(folder / CONFIG, _Config)
    if folder is None or config is None:
        return {}
    processor = _read(folder / PROCESSOR, _Processor) or _Processor()
    if config.is_classifier:
        activation = {"decode.activation": "sigmoid"} if config.problem_type == _LABELS else {}
        # A label of ImageNet lists synonyms, such as "tench, Tinca tinca": the first one names the class.
        labels = {number: label.partition(",")[0] for number, label in config.id2label.items()}
        return {**_names(labels), **activation, **_pixels(processor), **_fit(processor)}
    if config.model_type in ENCODERS:
        return {"family": ENCODERS[config.model_type], **_pixels(processor), **_fit(processor)}
    if config.model_type in FAMILIES:
        return {
            "family": FAMILIES[config.model_type],
            **_names(config.id2label),
            **_pixels(processor),
            **_size(processor.size),
        }
    return {}


def _names(labels: Mapping[int, str]) -> dict[str, str]:
    """Return the setting `names`; empty if a setting cannot hold the labels."""
    names = [" ".join(labels[key].split()) for key in sorted(labels)]
    if not names or sorted(labels) != list(range(len(names))) or any("," in name for name in names):
        return {}
    return {"names": ",".join(name or str(number) for number, name in enumerate(names))}


def _pixels(processor: _Processor) -> dict[str, str]:
    """Return how pixels become values."""
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
    """Return how pictures are fitted into the input of a classifier or encoder, and its size; empty if that is unknown.

    The processors stretch the picture, or resize its shorter side and cut out the middle. Those with `crop_pct`
    (ConvNext, ResNet) do the latter if their only size is below 384 pixels.
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
    """Return the settings for a shorter side that is resized to some pixels, of which the middle ones are kept."""
    return {"preprocess.fit": "center_crop", "preprocess.zoom": f"{max(1.0, resized / kept):.6g}"}


def _edge(size: object) -> int | None:
    """Return the shortest edge, or the only number of older files; None for another size."""
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    return edge if type(edge) is int and edge > 0 else None


def _size(size: object) -> dict[str, str]:
    """Return the settings for a fixed width and height; empty for other sizes."""
    sides = {side: size.get(side) if isinstance(size, dict) else None for side in ("width", "height")}
    if all(type(pixels) is int and pixels > 0 for pixels in sides.values()):  # True is no size
        return {f"preprocess.{side}": str(pixels) for side, pixels in sides.items()}
    return {}


def _square(side: int) -> dict[str, str]:
    return {"preprocess.width": str(side), "preprocess.height": str(side)}


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return msgspec.json.decode(read_regular(path), type=ready(kind))
    except (OSError, ValueError):
        return None
