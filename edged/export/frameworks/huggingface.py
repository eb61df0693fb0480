"""Models of Hugging Face's transformers in a local folder: config.json and safetensors. Code in the folder is not
run."""

from __future__ import annotations

import transformers
from edged_frameworks import torch_model
from edged_frameworks.contract import Loaded, Refused, Request

_KEPT = ("logits", "pred_boxes", "pred_masks", "predicted_depth")


def load(request: Request) -> Loaded:
    config = transformers.AutoConfig.from_pretrained(request.source, local_files_only=True, trust_remote_code=False)
    name = (config.architectures or [""])[0]
    if not name:
        raise Refused("config.json names no class in 'architectures'; save the model again with save_pretrained")
    kind = getattr(transformers, name, None)
    if kind is None:
        raise Refused(
            f"transformers {transformers.__version__} has no {name}, which config.json names; update transformers"
        )
    try:
        module = kind.from_pretrained(request.source, local_files_only=True, use_safetensors=True)
    except OSError as error:
        raise Refused(
            f"{torch_model.short(error)}; weights must be safetensors: load the model, and save it with save_pretrained"
        ) from None
    side = getattr(config, "image_size", None)
    size = _size(request.source) or ((side, side) if isinstance(side, int) else (640, 640))
    return torch_model.load(
        module, request, "transformers " + transformers.__version__, {}, size, "pixel_values", _KEPT
    )


def _size(folder: str) -> tuple:
    """Return the height and width to which the model's processor resizes pictures; empty if it does not set both."""
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    except Exception:
        return ()
    size = getattr(processor, "crop_size", None) if getattr(processor, "do_center_crop", False) else processor.size
    if not size or "height" not in size:
        return ()
    return int(size["height"]), int(size["width"])
