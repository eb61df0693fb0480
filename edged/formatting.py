"""Formats times, durations, progress and names for people."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from edged.api_types import EngineProgress


def moment(unix_s: float) -> str:
    """Format seconds since the epoch as local date and time."""
    return f"{_local(unix_s):%Y-%m-%d %H:%M:%S %z}"


def clock(unix_s: float) -> str:
    """Format seconds since the epoch as local time of day."""
    return f"{_local(unix_s):%H:%M:%S}"


def many(count: int, what: str) -> str:
    """Format a count with its noun: `1 frame`, `2 frames`, `0 classes`."""
    if count == 1:
        return f"1 {what}"
    return f"{count} {what}{'es' if what.endswith(('s', 'x', 'ch')) else 's'}"


def span(seconds: float) -> str:
    """Format a duration in its two largest units; below 10 s with tenths."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole // 60 % 60} min"
    return f"{whole // 86400} d {whole // 3600 % 24} h"


def size(count: int) -> str:
    """Format a number of bytes with a decimal unit: `5 bytes`, `1.4 MB`."""
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < (1000 if unit == "bytes" else 999.95) or unit == "GB":
            break
        value /= 1000
    return f"{count} {'byte' if count == 1 else 'bytes'}" if unit == "bytes" else f"{value:.1f} {unit}"


def far(phase: str, fraction: float | None, elapsed_s: float, estimate_s: float | None) -> str:
    """Format progress: phase, share, time so far and estimate."""
    share = "" if fraction is None else f" {fraction:.0%}"
    return ", ".join(filter(None, (f"{phase}{share}", times(elapsed_s, estimate_s))))


def stage(stage: str, category: str) -> str:
    """Format the stage at which a model was refused and the reason: `external data: external truncated`."""
    return f"{stage}: {category}".replace("_", " ")


def times(elapsed_s: float, estimate_s: float | None) -> str:
    """Format the time so far, with the estimated total unless the time so far exceeds it. Return an empty string at the
    start if there is no estimate."""
    if estimate_s is not None and max(elapsed_s, 1.0) <= estimate_s:
        return f"{span(elapsed_s)} of about {span(estimate_s)}"
    return span(elapsed_s) if elapsed_s >= 0.05 else ""


def name(engine: EngineProgress) -> str:
    """Format an engine's name for the start of a line. An engine that is no longer planned has no backend, so its name
    is its model and key."""
    what = f"{engine.backend}/{engine.precision}" if engine.backend else ""
    return " ".join(filter(None, (engine.model, engine.key[:12], what)))


def standing(engine: EngineProgress) -> str:
    """Format an engine's progress or outcome."""
    if engine.done:
        return f"{engine.state}: {engine.reason}" if engine.reason else engine.state
    progress = far(engine.phase or engine.state, engine.fraction, engine.elapsed_s, engine.estimate_s)
    return f"{progress} ({engine.reason})" if engine.reason else progress


def line(engine: EngineProgress) -> str:
    """Format an engine's name and progress."""
    return f"{name(engine)}: {standing(engine)}"


def skipped(counts: Mapping[str, int], received: int) -> str:
    """List the reasons for which a camera's frames were skipped, each with its share of the received frames. The
    largest share comes first."""
    reasons = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason} {count / max(count, received):.0%}" for reason, count in reasons if count)


def shown(text: str) -> str:
    """Escape unprintable characters of a text from a model's file, which may contain line breaks and escape
    sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _local(unix_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_s, tz=datetime.timezone.utc).astimezone()
