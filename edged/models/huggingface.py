"""Settings from the files that Hugging Face puts next to a model: config.json, and preprocessor_config.json or
processor_config.json.

Exports of detectors have the same tensors for all kinds of models; only `model_type` in config.json says which one it
is. The files are in the folder of the ONNX file (Optimum) or in its parent (`onnx/model.onnx` on the Hub).

Source: `configuration_*.py` and the image processors of transformers 5.24.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from edged.decoding import ready
from edged.files import read_regular
from edged.models import limits

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
_COMBINED = "processor_config.json"  # instead of the latter, for models with text, as transformers writes from 5.0 on
# model_type -> family
FAMILIES = {
    **dict.fromkeys(("detr", "yolos", "table-transformer"), "detr"),
    **dict.fromkeys(("conditional_detr", "deformable_detr", "dab-detr", "rf_detr"), "deformable-detr"),
    **dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine"), "rtdetr-transformers"),
    "owlvit": "owlvit",
    "owlv2": "owlv2",
    **dict.fromkeys(("grounding-dino", "mm-grounding-dino"), "grounding-dino"),
}
_PROMPTED = ("owlvit", "owlv2", "grounding-dino")  # families whose classes are the prompts
_MOST_BYTES = 1 << 20

_T = TypeVar("_T")


class _Config(msgspec.Struct):
    model_type: str = ""
    id2label: dict[int, str] = {}


class _Processor(msgspec.Struct, frozen=True):
    do_normalize: bool | None = None
    image_mean: list[float] | None = None
    image_std: list[float] | None = None
    size: object = None


class _Combined(msgspec.Struct, frozen=True):
    image_processor: _Processor = _Processor()


def read_settings(file: Path) -> dict[str, str]:
    """Return the settings for a detector of Hugging Face's transformers; empty if no file next to it
    describes one.

    These are `family`, `names` (unless prompts are the classes), `preprocess.mean` and `.std`, `preprocess.width` and
    `.height` if the processor resizes all pictures to one size, and `outputs.finite` for Grounding DINO. A file that
    cannot be read counts as absent.
    """
    folder = next((each for each in (file.parent, file.parent.parent) if (each / CONFIG).is_file()), None)
    config = None if folder is None else _read(folder / CONFIG, _Config)
    if folder is None or config is None or config.model_type not in FAMILIES:
        return {}
    settings = {"family": FAMILIES[config.model_type]}
    if settings["family"] == "grounding-dino":
        settings |= {limits.FINITE: "ignore"}  # its logits are minus infinity beyond the last token
    if settings["family"] not in _PROMPTED:
        settings |= _names(config)
    combined = _read(folder / _COMBINED, _Combined) or _Combined()
    return settings | _of_processor(_read(folder / PROCESSOR, _Processor) or combined.image_processor)


def _names(config: _Config) -> dict[str, str]:
    names = [" ".join(config.id2label[key].split()) for key in sorted(config.id2label)]
    if not names or sorted(config.id2label) != list(range(len(names))) or any("," in name for name in names):
        return {}
    return {"names": ",".join(name or str(number) for number, name in enumerate(names))}


def _of_processor(processor: _Processor) -> dict[str, str]:
    settings: dict[str, str] = {}
    if processor.do_normalize is False:
        settings |= {"preprocess.mean": "0", "preprocess.std": "1"}
    elif processor.do_normalize and processor.image_mean and processor.image_std:
        pairs = ("mean", processor.image_mean), ("std", processor.image_std)
        settings |= {f"preprocess.{key}": ",".join(map(str, values)) for key, values in pairs}
    size = processor.size
    if isinstance(size, list) and len(size) == 2:  # as early versions write it
        size = {"height": size[0], "width": size[1]}
    if isinstance(size, dict):
        sides = {side: size.get(side) for side in ("width", "height")}
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
