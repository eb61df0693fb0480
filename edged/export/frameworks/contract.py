"""The interface of exporters. An exporter is a file of this folder with a function `load`. `edged/export/source.py`
chooses the exporter for a model, and lists the packages that each exporter needs.

These files run in the user's own Python, 3.9 or newer, which need not have edged: they import only the framework and
the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Arrays are numpy's; this file does not import it.
Arrays = dict[str, Any]


class Refused(Exception):
    """The source cannot be exported as asked. The text is one line for the user, and says what to do."""


@dataclass(frozen=True)
class Request:
    """The user's request. `source` is a path or a name; for `timm:NAME` it is NAME.

    `weights`: a file with the weights, empty for none. `imgsz`: height and width of pictures in pixels, None if not
    given. `dynamic`: "batch" and "size" name the dimensions to leave open. `half`: whether to export float16. `trust`:
    whether a file that contains code may be loaded. `scratch`: a folder for files.
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
    """An input: its numpy dtype, and its shape for one picture or row. `open` maps the position of each
    open dimension to a name for it."""

    dtype: str
    shape: Sequence[int]
    open: Mapping[int, str] = field(default_factory=dict)


@dataclass
class Loaded:
    """A loaded model.

    `framework` names the packages with versions. `settings` are edged's settings for the model (docs/models.md). `ways`
    are the names of the ways to export, such as "dynamo" and "torchscript", in the order in which they are tried.
    `export(out, opset, way)` writes the file, with the framework's own opset if `opset` is None.

    `answer` returns the framework's outputs, in the order and with the names of the file's outputs. `layers` returns a
    sample of each layer's output under the key "module|shape", in the order of execution. It is None if the exporter
    does not support this.
    """

    framework: str
    inputs: dict[str, Input]
    export: Callable[[str, int | None, str], None]
    answer: Callable[[Arrays], Arrays]
    ways: Sequence[str] = ("",)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    layers: Callable[[Arrays], Arrays] | None = None
