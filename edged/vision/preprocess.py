"""How pictures are preprocessed for a model's input: size, layout, colours, fit and normalisation.

The sources are, in increasing order of precedence: the input's shape and datatype, the family (or a default for models
without a family), and the model's settings `preprocess.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

import msgspec

from edged.errors import ConfigError
from edged.tensors import Dim, TensorSpec
from edged.vision import settings as keys
from edged.vision.placement import Fit

Layout: TypeAlias = Literal["NCHW", "NHWC"]
Datatype: TypeAlias = Literal["FP32", "FP16", "UINT8", "INT32"]
Color: TypeAlias = Literal["rgb", "bgr", "gray"]
Triple: TypeAlias = tuple[float, float, float]

UNSCALED = ("UINT8", "INT32")  # datatypes of inputs that get pixels as they are
MAX_SIDE = 16384
MAX_PIXELS = 1 << 26  # of an input: 8192 x 8192, which is 768 MiB of FP32

# Mean and standard deviation of ImageNet's pixels, RGB in 0..1.
IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)
# Mean and standard deviation with which CLIP was trained.
CLIP_MEAN: Triple = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Triple = (0.26862954, 0.26130258, 0.27577711)

# The name of the input in Hugging Face's exports, which can leave even the number of channels open.
_OPEN_CHANNELS = "pixel_values"


class Preprocess(msgspec.Struct, frozen=True):
    """How BGR uint8 pixels become one input.

    value = (pixel * scale - mean[c]) / std[c], c in the model's channel order. UINT8 and INT32 inputs get unchanged
    pixels. Width and height are in pixels. `pad` is a pixel value (0..255) before scale and mean. For `zoom` see
    `placement.place`. `antialias` resizes center crops as Pillow does. `reduce` allows decoding a large JPEG at a
    fraction of its size.
    """

    width: int
    height: int
    channels: int = 3
    layout: Layout = "NCHW"
    datatype: Datatype = "FP32"
    color: Color = "rgb"
    fit: Fit = Fit.STRETCH
    pad: int = 114
    scale: float = 1 / 255
    mean: Triple = (0.0, 0.0, 0.0)
    std: Triple = (1.0, 1.0, 1.0)
    zoom: float = 1.0
    antialias: bool = False
    reduce: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one picture in the batch."""
        if self.layout == "NCHW":
            return self.channels, self.height, self.width
        return self.height, self.width, self.channels


class PictureInput(msgspec.Struct, frozen=True):
    """A 4-D input that takes pictures; width or height is None if the model leaves it open."""

    name: str
    datatype: Datatype
    layout: Layout
    channels: int
    width: int | None
    height: int | None


def find_picture(inputs: tuple[TensorSpec, ...]) -> tuple[PictureInput | None, str]:
    """Return the input for pictures, and a text that explains the choice. The input is None unless exactly one input
    takes pictures."""
    found = [p for p in map(_as_picture, inputs) if p is not None]
    if len(found) == 1:
        return found[0], f"input {found[0].name} takes a picture"
    if found:
        return None, f"{len(found)} inputs could take pictures, but edged feeds one: {', '.join(p.name for p in found)}"
    wanted = "none is 4-D with 1 or 3 channels in FP32, FP16 or UINT8, or [N, H, W, 3] in INT32"
    return None, f"no input takes a picture: {wanted}"


def _as_picture(spec: TensorSpec) -> PictureInput | None:
    if len(spec.shape) != 4 or spec.datatype not in ("FP32", "FP16", *UNSCALED):
        return None
    datatype = cast(Datatype, spec.datatype)
    _, second, third, fourth = spec.shape
    # TensorFlow models take pixels as INT32 [N, H, W, 3]. An INT32 input of another layout is likely a mask or indices.
    if datatype == "INT32" and (second in (1, 3) or fourth != 3):
        return None
    # NCHW is checked first: no NHWC model has an input 1 or 3 pixels high.
    if second in (1, 3):
        return PictureInput(spec.name, datatype, "NCHW", second, _size(fourth), _size(third))
    if fourth in (1, 3):
        return PictureInput(spec.name, datatype, "NHWC", fourth, _size(third), _size(second))
    if spec.name == _OPEN_CHANNELS and isinstance(second, str):
        return PictureInput(spec.name, datatype, "NCHW", 3, _size(fourth), _size(third))
    return None


def _size(dim: Dim) -> int | None:
    return dim if isinstance(dim, int) and 0 < dim <= MAX_SIDE else None


def input_size(
    picture: PictureInput, settings: Mapping[str, str], exported: tuple[int, int] | None = None
) -> tuple[int, int] | None:
    """Return (width, height), or None if a side is unknown. Each side is from the first source that has this side: the
    model's fixed size, the settings, the exporter's metadata. Raises ConfigError if a setting contradicts the model."""
    width = keys.integer(settings, "preprocess.width", 1, MAX_SIDE)
    height = keys.integer(settings, "preprocess.height", 1, MAX_SIDE)
    for key, wanted, fixed in (
        ("preprocess.width", width, picture.width),
        ("preprocess.height", height, picture.height),
    ):
        if wanted is not None and fixed is not None and wanted != fixed:
            raise ConfigError(
                f"setting {key}={wanted} contradicts the model, which fixes this side to {fixed}; remove the setting"
            )
    width = picture.width or width or (exported[0] if exported else None)
    height = picture.height or height or (exported[1] if exported else None)
    return (width, height) if width and height else None


def preprocess_for(
    inputs: tuple[TensorSpec, ...],
    settings: Mapping[str, str],
    exported: tuple[int, int] | None = None,
    feed: Mapping[str, object] = {},
) -> tuple[Preprocess | None, str]:
    """Return the preprocessing of a model with these inputs, and a text that explains it.

    The preprocessing is None if edged cannot feed pictures to the model. `exported` is the (width, height) in the
    exporter's metadata. `feed` has the fields of `Preprocess` that the model's family sets. By default pictures are
    stretched, RGB (gray for one channel) and in 0..1 (0..255 for integer inputs). Raises ConfigError for a key that
    `settings.check` refuses, even if the model takes no pictures, and for an invalid value.
    """
    keys.check(settings)
    picture, reason = find_picture(inputs)
    if picture is None:
        return None, reason
    if len(inputs) != 1:
        return None, f"besides {picture.name} the model has inputs that are not pictures, which edged cannot fill"
    size = input_size(picture, settings, exported)
    if size is None:
        return None, f"input {picture.name} leaves its size open; set preprocess.width and preprocess.height"
    if size[0] * size[1] > MAX_PIXELS:
        return None, f"input {picture.name} has {size[0]}x{size[1]} pixels, over the limit of {MAX_PIXELS}"
    fixed: dict[str, object] = {"color": "gray"} if picture.channels == 1 else {}
    base = Preprocess(
        width=size[0],
        height=size[1],
        channels=picture.channels,
        layout=picture.layout,
        datatype=picture.datatype,
        scale=1.0 if picture.datatype in UNSCALED else 1 / 255,
    )
    preprocess = _override(msgspec.structs.replace(base, **{**feed, **fixed}), settings)
    what = f"input {picture.name} takes a picture ({picture.layout}, {picture.datatype})"
    return preprocess, f"{what}, fitted by {preprocess.fit.value} as {preprocess.color}"


def _override(base: Preprocess, settings: Mapping[str, str]) -> Preprocess:
    """Apply the settings `preprocess.*` to `base`, except width and height (see `input_size`)."""
    fit = keys.choice(settings, "preprocess.fit", tuple(f.value for f in Fit))
    changes = {
        "color": keys.choice(settings, "preprocess.color", ("gray",) if base.channels == 1 else ("rgb", "bgr")),
        "fit": None if fit is None else Fit(fit),
        "pad": keys.integer(settings, "preprocess.pad", 0, 255),
        "scale": keys.number(settings, "preprocess.scale"),
        "mean": keys.triple(settings, "preprocess.mean"),
        "std": keys.triple(settings, "preprocess.std"),
        "zoom": keys.number(settings, "preprocess.zoom", 0.1, 10),
        "antialias": keys.boolean(settings, "preprocess.antialias"),
        "reduce": keys.boolean(settings, "preprocess.reduce"),
    }
    given = {field: value for field, value in changes.items() if value is not None}
    changed = msgspec.structs.replace(base, **given)
    if 0.0 in changed.std:
        raise ConfigError("setting preprocess.std has a zero, but pixel values are divided by std; give other numbers")
    numbers = [field for field in ("scale", "mean", "std") if field in given]
    if numbers and base.datatype in UNSCALED:
        what = f"the input is {base.datatype} and takes pixels as they are; remove the setting"
        raise ConfigError(f"setting preprocess.{numbers[0]} has no effect: {what}")
    return changed
