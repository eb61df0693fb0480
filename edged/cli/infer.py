"""`edged infer`: runs a model on one picture, or on a sound."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from edged.cli import common
from edged.errors import InvalidInput
from edged.formatting import many

if TYPE_CHECKING:
    from edged.client.result import Detection, Result


def infer(
    model: Annotated[
        str, typer.Argument(help="The model's or pipeline's name; see edged models list, edged pipelines.")
    ],
    picture: Annotated[
        str, typer.Argument(help="A JPEG or PNG file; a WAV file (mono, 16 bits) for a model that takes sound.")
    ],
    target: common.Target = None,
    json: common.Json = False,
    save: Annotated[Path | None, typer.Option("--save", help="Write the picture with its detections.")] = None,
    score: common.Score = None,
) -> None:
    """Send a picture or a sound to the daemon; print what it finds.

    --json prints the format of Roboflow's inference API: image, and predictions with box centres in pixels. An answer
    about the whole picture has other fields, such as class_map or depth; see docs/streaming.md.
    """
    from edged.cli.sample_run import draw
    from edged.client.client import Client
    from edged.client.frames import read_picture
    from edged.client.sources.wav import WAV_SUFFIX, read_wav

    is_sound = Path(picture).suffix.lower() == WAV_SUFFIX
    if is_sound and save is not None:
        raise InvalidInput("--save cannot be used with a sound; leave out --save")
    encoded = b"" if is_sound else read_picture(picture)
    with Client(target) as client:
        result = client.infer(model, read_wav(picture) if is_sound else encoded, score=score)
    if save is not None:
        draw(result, encoded, save)
    if json:
        common.print_json(msgspec.json.encode(_json(result)))
    else:
        _print(result)


def _json(result: Result) -> Mapping[str, object]:
    from edged.vision.content_json import content_fields

    second = {} if result.second is None else {"second": msgspec.to_builtins(result.second)}
    content = {} if result.content is None else content_fields(result.content, result.labels())
    return {**result.json(), **second, **content}


def _print(result: Result) -> None:
    from edged.vision.content import lines

    took = f"{result.timings.total_ms:.1f} ms{f' by {result.backend}' if result.backend else ''}"
    took += f" ({result.width}x{result.height} pixels)" if result.width else ""
    if result.content is not None:
        common.show("\n".join(each.text for each in lines(result.content, result.labels())) or "no class")
        common.show(took)
        return
    if result.outputs:
        common.show(_outputs(result))
    elif result.detections:
        common.show(_detections(result))
    counted = (len(result.outputs), "output") if result.outputs else (len(result.detections), "detection")
    found = many(*counted)
    if result.second is not None and result.second.left_out:
        found += f" ({result.second.left_out} without a crop for {result.second.model})"
    common.show(f"{found} in {took}")


def _detections(result: Result) -> Table:
    table = common.table()
    table.add_column("label", overflow="fold")
    for name in ("score", "x1", "y1", "x2", "y2"):
        table.add_column(name, justify="right", no_wrap=True)
    if result.second is not None:
        table.add_column(result.second.model, overflow="fold")
    for found in result.detections:
        corners = (f"{value:.0f}" for value in (found.x1, found.y1, found.x2, found.y2))
        nested = (_nested(found),) if result.second is not None else ()
        table.add_row(found.label, f"{found.score:.2f}", *corners, *nested)
    return table


def _nested(found: Detection) -> str:
    """Describe the answer of a pipeline's second model about a detection; empty if the detection got no crop."""
    if found.nested is None:
        return ""
    return found.nested.caption if found.nested.error is None else f"failed: {found.nested.error[1]}"


def _outputs(result: Result) -> Table:
    table = common.table("output", "type", "shape")
    for name, array in result.outputs.items():
        table.add_row(name, str(array.dtype), "x".join(str(size) for size in array.shape) or "scalar")
    return table
