"""`edged cameras`: who sends frames, and how they fare."""

from __future__ import annotations

import time
from collections.abc import Sequence

import typer
from rich.console import RenderableType
from rich.table import Table

from edged.api_types import CameraInfo
from edged.cli import answers, common, words
from edged.cli.answers import Question
from edged.cli.reach import UNSAID, Reach, reaching


def cameras(reach: Reach = UNSAID, json: common.Json = False) -> None:
    """Show each camera: rates, latency, skipped frames and why.

    A camera that stopped sending is shown for a while.

    AGE is from capture to answer: of half of the latest answers at most the first figure, of 99 in 100 the second.
    A camera that reconnects goes on under its id.
    """
    question = Question(
        ask=lambda client: client.cameras(),
        tell=lambda found: [_shown([("", each) for each in found])],
        plain=lambda found: [each.json() for each in found],
        table=lambda boxes: _shown(answers.flat(boxes)),
    )
    answers.put(question, reach, json)


def register_cameras(app: typer.Typer) -> None:
    app.command("cameras")(common.command(reaching(cameras)))


def _shown(found: Sequence[tuple[str, CameraInfo]]) -> RenderableType:
    return _camera_table(found, time.time()) if found else "no camera has sent a frame lately; see: edged stream --help"


def _camera_table(found: Sequence[tuple[str, CameraInfo]], now: float) -> Table:
    """Each with the name of its box, empty where there is only one."""
    table = Table(*answers.boxed(found), box=None, pad_edge=False)
    for heading in ("CAMERA", "MODEL", "STATE", "FPS IN", "ANSWERED", "AGE", "SKIPPED", "FAILED", "LAST ERROR"):
        table.add_column(heading, no_wrap=heading in ("CAMERA", "MODEL"))
    for box, each in found:
        table.add_row(
            *([box] if box else []),
            each.camera or "-",
            each.model,
            _camera_state(each, now),
            f"{each.fps_in:.1f}",
            f"{each.fps_answered:.1f}",
            _ages(each),
            words.skipped(each.skipped, each.received),
            str(each.failed) if each.failed else "",
            f"{each.last_error} ({words.span(max(0.0, now - each.last_error_unix_s))} ago)" if each.last_error else "",
        )
    return table


def _camera_state(each: CameraInfo, now: float) -> str:
    mode = "" if each.mode == "freshest" else ", every frame"
    tracked = ", tracked" if each.tracked else ""
    if not each.connections:
        return f"gone {words.span(max(0.0, now - each.last_frame_unix_s))} ago"
    several = f" x{each.connections}" if each.connections > 1 else ""
    return f"{each.lane}{several}{mode}{tracked}"


def _ages(each: CameraInfo) -> str:
    if each.age_p50_ms is None or each.age_p99_ms is None:
        return ""
    return f"{each.age_p50_ms:.0f} / {each.age_p99_ms:.0f} ms"
