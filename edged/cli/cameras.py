"""`edged cameras`: who sends frames, and how they fare."""

from __future__ import annotations

import time

import msgspec
import typer
from rich.table import Table

from edged.cli import common, words
from edged.client.cameras import CameraInfo


def cameras(target: common.Target = None, json: common.Json = False) -> None:
    """Show every camera that sends frames or did lately: rates, ages of its answers, what was skipped and why.

    AGE is from capture to answer: of half of the latest answers at most the first figure, of 99 in 100 the second.
    A camera that reconnects goes on under its id.
    """
    from edged.client.client import Client

    with Client(target) as client:
        found = client.cameras()
    if json:
        common.print_json(msgspec.json.encode([each.json() for each in found]))
    elif not found:
        common.show("no camera has sent a frame lately; see: edged stream --help")
    else:
        common.show(_table(found, time.time()))


def register(app: typer.Typer) -> None:
    app.command("cameras")(common.command(cameras))


def _table(found: list[CameraInfo], now: float) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("CAMERA", "MODEL", "STATE", "FPS IN", "ANSWERED", "AGE", "SKIPPED", "FAILED", "LAST ERROR"):
        table.add_column(heading, no_wrap=heading in ("CAMERA", "MODEL"))
    for each in found:
        table.add_row(
            each.camera or "-",
            each.model,
            _state(each, now),
            f"{each.fps_in:.1f}",
            f"{each.fps_answered:.1f}",
            _ages(each),
            _skipped(each),
            str(each.failed) if each.failed else "",
            f"{each.last_error} ({words.span(max(0.0, now - each.last_error_unix_s))} ago)" if each.last_error else "",
        )
    return table


def _state(each: CameraInfo, now: float) -> str:
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


def _skipped(each: CameraInfo) -> str:
    """As shares of what came, the largest first."""
    reasons = sorted(each.skipped.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason} {count / each.received:.0%}" for reason, count in reasons if count)
