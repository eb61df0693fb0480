"""The interface of exporters. An exporter is a file of this folder with a function `load`. `edged/export/source.py`
chooses the exporter for a model, and lists the packages that each exporter needs.

These files run in the user's own Python, 3.9 or newer, which need not have edged: they import only the framework and
the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# numpy arrays by name. The type is Any, because this file does not import numpy.
Arrays = dict[str, Any]


class Refused(Exception):
    """The source cannot be exported as asked. The text is one line for the user, and says what to do."""


@dataclass(frozen=True)
class Request:
    """The user's request. `source` is a path, or a name without its prefix: NAME of `timm:NAME`.

    `weights` is the path of a file with weights, or empty. `imgsz` is the height and width of pictures in pixels, or
    None. `dynamic` can contain "batch" and "size", the dimensions to leave open. `half` asks for float16. `trust`
    permits loading a file that contains code. `scratch` is a folder for temporary files.
    """

    source: str
    scratch: str
    weights: str = ""
    imgsz: tuple[int, int] | None = None
    dynamic: Sequence[str] = ()
    half: bool = False
    trust: bool = False


@dataclass(frozen=True)
class Input:
    """An input of a model: its numpy dtype, and its shape for one picture or row. `open` maps the axis of each open
    dimension to the name of this dimension."""

    dtype: str
    shape: Sequence[int]
    open: Mapping[int, str] = field(default_factory=dict)


@dataclass
class Loaded:
    """A loaded model.

    `framework` names the packages with versions. `settings` are edged's settings for the model (docs/models.md). `ways`
    are the names of the ways to export, such as "dynamo" and "torchscript", in the order in which they are tried.
    `export(out, opset, way)` writes the ONNX file to `out`. If `opset` is None, the framework chooses the opset.

    `answer` returns the framework's outputs in the order of the file's outputs. `layers` returns a sample of each
    layer's output under the key "module|shape", in the order of execution. `layers` is None if the exporter cannot
    sample layers.
    """

    framework: str
    inputs: dict[str, Input]
    export: Callable[[str, int | None, str], None]
    answer: Callable[[Arrays], Arrays]
    ways: Sequence[str] = ("",)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    layers: Callable[[Arrays], Arrays] | None = None
