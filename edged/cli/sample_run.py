"""Runs a model once on a picture and draws the detections, to show whether edged decodes the model correctly.

The model runs in a child process, so that a crash of the runtime becomes a one-line error.
"""

from __future__ import annotations

import collections
import multiprocessing
import signal
from collections.abc import Mapping
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edged import errors
from edged.decoding import ready
from edged.errors import EdgedError, EngineUnusable, InvalidInput
from edged.vision.roboflow import RoboflowResult

if TYPE_CHECKING:
    from edged.client.result import Result
    from edged.tensors import Array

_MOST_LINES = 10
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


class RawOutput(msgspec.Struct, frozen=True):
    """An undecoded output and the range of its values. `low`, `high` and `mean` are None for strings, or if no value is
    finite. `not_finite` counts NaN and infinite values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    not_finite: int = 0

    def line(self) -> str:
        what = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        if self.low is not None:
            what += f", {self.low:.4g} to {self.high:.4g}, mean {self.mean:.4g}"
        return what + (f", {self.not_finite} not finite" if self.not_finite else "")


class PictureResult(msgspec.Struct, frozen=True):
    """A model's answer for one picture. `drawn` is the annotated file; it is empty for a model of unknown family.

    `found` has the detections as Roboflow's JSON, and `counts` the number of detections of each label, the most
    frequent label first. `found` is None if the answer is about the whole picture, or if the family is unknown.
    `content` has lines about an answer for the whole picture, the most important first.
    """

    backend: str
    total_ms: float
    drawn: str
    found: RoboflowResult | None
    counts: dict[str, int]
    content: tuple[str, ...]
    outputs: tuple[RawOutput, ...]

    def rows(self) -> dict[str, str]:
        """Return the rows of the table that the command prints, as a mapping from the name of each row to its text."""
        how = f"in {self.total_ms:.1f} ms by {self.backend}"
        if not self.drawn:
            return {f"output {output.name}": output.line() for output in self.outputs} | {"ran": how}
        if self.content:
            found = ", ".join(self.content)
        else:
            found = ", ".join(f"{count} {label}" for label, count in self.counts.items())
        nothing = "nothing; for less certain detections: --set thresholds.score=0.05"
        return {"found": f"{found or nothing} ({how})", "drawn": self.drawn}

    def facts(self) -> dict[str, Any]:
        """Return the results for --json."""
        return {"seen": msgspec.to_builtins(self)}


def place_for(picture: Path, model: Path, out: Path | None) -> Path:
    """Return the path for the drawn picture, by default in the current folder.

    Raises InvalidInput if the path is the path of the input picture, or if its suffix is not that of an image.
    """
    place = out or Path(f"{picture.stem}.{model.stem}.jpg")
    if place.suffix.lower() not in _SUFFIXES:
        raise InvalidInput(f"{str(place)!r} is not the name of an image file; use a name that ends in .jpg or .png")
    if place.exists() and picture.exists() and place.samefile(picture):
        raise InvalidInput(f"{str(place)!r} is the input picture, which is not overwritten; give --out another name")
    return place


def run_on_picture(
    model: Path,
    settings: Mapping[str, str],
    picture: Path,
    place: Path,
    family: str | None,
    families: tuple[str, ...] = (),
) -> PictureResult:
    """Open the model as edged would serve it, without building engines, and run it once. `family` is the model's
    family; if it is None, nothing is drawn. `families` are as in `edged.load`.

    Raises the errors of `edged.load` and `LoadedModel.infer`, and EngineUnusable if the child crashes.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    about = (theirs, model, dict(settings), picture, place, family, families)
    child = context.Process(target=_look, args=about, daemon=True)
    child.start()
    theirs.close()
    try:
        kind, payload = ours.recv()
    except EOFError:
        child.join()
        raise EngineUnusable(
            f"the process that ran {model.name} {_ended(child.exitcode)};"
            " update onnxruntime and other installed runtimes"
        ) from None
    finally:
        ours.close()
    child.join()
    if kind != PictureResult.__name__:
        known = getattr(errors, kind, EdgedError)
        raise known(payload)
    return msgspec.json.decode(payload, type=ready(PictureResult))


def _ended(status: int | None) -> str:
    if status is not None and status < 0:
        return f"crashed ({signal.Signals(-status).name})"
    return f"ended with status {status}"


def _look(
    answer: Connection,
    model: Path,
    settings: Mapping[str, str],
    picture: Path,
    place: Path,
    family: str | None,
    families: tuple[str, ...],
) -> None:
    """Run the model in the child; send a PictureResult, or the class name and text of an error."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the child silently; its parent reports
    try:
        from edged import library

        with library.load(model, settings=settings, build=False, families=families) as loaded:
            result = loaded.infer(picture)
        drawn = ""
        if family is not None:
            draw(result, picture.read_bytes(), place, f"{loaded.name}: {family}")
            drawn = str(place)
        answer.send((PictureResult.__name__, msgspec.json.encode(_result(result, drawn))))
    except EdgedError as error:
        answer.send((type(error).__name__, error.message))
    except Exception as error:  # a runtime's traceback does not help the user
        answer.send((EngineUnusable.__name__, f"running {model.name} failed: {type(error).__name__}: {error}"))


def draw(result: Result, picture: bytes, place: Path, caption: str | None = None) -> None:
    """Draw a result on its encoded picture and write it to a file. Raises InvalidInput if the file cannot be
    written."""
    import cv2

    from edged.vision.draw import annotate
    from edged.vision.image import decode

    content, notes = result.content, result.captions()
    drawn = annotate(decode(picture), result.boxes(), result.labels(), caption, content, notes)
    try:
        written = cv2.imwrite(str(place), drawn)
    except cv2.error:  # a suffix that no encoder knows
        raise InvalidInput(
            f"{str(place)!r} is not the name of an image file; use a name that ends in .jpg or .png"
        ) from None
    if not written:
        raise InvalidInput(
            f"the picture {str(place)!r} cannot be written; choose a folder that exists and that you own"
        )


def _result(result: Result, drawn: str) -> PictureResult:
    from edged.vision.content import lines

    said = () if result.content is None else islice(lines(result.content, result.labels()), _MOST_LINES)
    counts = collections.Counter(found.label for found in result.detections)
    return PictureResult(
        backend=result.backend,
        total_ms=result.timings.total_ms,
        drawn=drawn,
        found=result.json() if drawn and result.content is None else None,
        counts=dict(counts.most_common()),
        content=tuple(each.text for each in said),
        outputs=tuple(output_range(name, array) for name, array in result.outputs.items()),
    )


def output_range(name: str, array: Array) -> RawOutput:
    import numpy as np

    shape = tuple(array.shape)
    if array.dtype.kind not in "biuf":
        return RawOutput(name, str(array.dtype), shape)
    values = array.astype(np.float64).reshape(-1)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return RawOutput(name, str(array.dtype), shape, not_finite=len(values))
    low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
    return RawOutput(name, str(array.dtype), shape, low, high, mean, len(values) - len(finite))
