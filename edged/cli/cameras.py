"""`edged cameras`: show all cameras; add, change and remove cameras that the daemon opens itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from edged import formatting
from edged.api_types import CameraInfo, LineInfo, ZoneInfo
from edged.cli import common, remote
from edged.cli.remote import RemoteCommand
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from edged.client.client import Client

_Name = Annotated[str, typer.Argument(help="The camera's name.")]
_Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as max_fps=5 or zones.door.classes=person."),
]


def cameras(context: typer.Context, targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Show each camera: state, rates, latency, skipped frames.

    The list has cameras that the daemon opens itself and cameras of clients. A camera that stopped sending is listed
    for a while.

    AGE is the time from capture to answer: median / 99th percentile of the latest answers. A camera that reconnects
    keeps its row.

    \b
    edged cameras add hall rtsp://user:password@camera/main doors max_fps=10
    edged cameras set hall zones.door.points='[[0.1, 0.2], [0.6, 0.2], [0.6, 0.9]]'
    edged cameras show hall
    """
    if context.invoked_subcommand is not None:
        return
    command = remote.list_command(
        lambda client: list(client.cameras()),
        _COLUMNS,
        lambda found: [each.json() for each in found],
        empty="no cameras; see: edged cameras add --help",
    )
    remote.run(command, targets, json)


def add(
    name: _Name,
    source: Annotated[
        str,
        typer.Argument(help="rtsp://..., http://..., /dev/video0, csi://0, or a video file or folder on the box."),
    ],
    model: Annotated[str, typer.Argument(help="The model or pipeline that gets its frames; see edged models list.")],
    settings: _Settings = None,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Add a camera that the daemon opens itself.

    The camera is kept when the daemon restarts. Settings are the keys of [cameras.NAME] in docs/configuration.md.

    edged cameras add hall rtsp://user:password@camera/main doors max_fps=10 track=true
    """
    from edged.models.settings import parse_assignments

    changes = {"source": source, "model": model, **parse_assignments(settings or ())}
    remote.run(_one(lambda client: client.add_camera(name, changes)), targets, json)


def set_(
    name: _Name,
    settings: _Settings = None,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Change settings of a camera; KEY= resets a setting.

    The camera starts again with the new settings; other cameras continue. To change a camera that the daemon's
    configuration file defines, change the file instead.

    \b
    edged cameras set hall max_fps=5 rotation=90
    edged cameras set hall zones.door.points='[[0.1, 0.2], [0.6, 0.2], [0.6, 0.9]]' zones.door.classes=person
    edged cameras set hall zones.door=
    """
    from edged.models.settings import parse_assignments

    changes = parse_assignments(settings or ())
    if not changes:
        raise InvalidInput(f"nothing to change; give settings, such as: edged cameras set {name} max_fps=5")
    remote.run(_one(lambda client: client.set_camera(name, changes)), targets, json)


def enable(name: _Name, targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Start a disabled camera."""
    remote.run(_one(lambda client: client.set_camera(name, {"enabled": "true"})), targets, json)


def disable(name: _Name, targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Stop a camera and keep its settings."""
    remote.run(_one(lambda client: client.set_camera(name, {"enabled": "false"})), targets, json)


def remove(name: _Name, targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Remove a camera and keep the files of its events."""
    command = RemoteCommand(
        call=lambda client: client.remove_camera(name) or name,
        render=lambda removed: [f"camera {removed} was removed"],
        to_json=lambda removed: {"removed": removed},
    )
    remote.run(command, targets, json)


def show(name: _Name, targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Show one camera: its state, settings, zones, lines and outputs."""
    remote.run(_one(lambda client: _find(client, name)), targets, json)


def _find(client: Client, name: str) -> CameraInfo:
    known = client.cameras()
    found = [each for each in known if each.camera == name]
    if not found:
        names = ", ".join(each.camera for each in known) or "none"
        raise NotFound(f"no camera is named {name!r}; existing cameras: {names}")
    return next((each for each in found if each.configured), found[0])


def _one(call: Callable[[Client], CameraInfo]) -> RemoteCommand[CameraInfo]:
    return RemoteCommand(
        call=call, render=lambda found: [common.fact_table(dict(_facts(found)))], to_json=CameraInfo.json
    )


def _facts(each: CameraInfo) -> Iterator[tuple[str, str]]:
    yield "camera", each.camera
    yield "model", each.model
    yield "state", _state(each)
    if each.reason:
        yield "reason", each.reason
    if each.source:
        yield "source", each.source
    if each.width:
        yield "picture", f"{each.width}x{each.height}"
    yield "frames/s", f"{each.fps_in:.1f} in, {each.fps_answered:.1f} answered"
    if ages := _ages(each):
        yield "age", ages
    yield "skipped", formatting.skipped(each.skipped, each.received) or "none"
    if each.reconnections:
        yield "reconnections", str(each.reconnections)
    for name, zone in each.zones.items():
        yield f"zone {name}", _zone(zone)
    for name, line in each.lines.items():
        yield f"line {name}", _line(line)
    for name, problem in each.sinks.items():
        yield f"output {name}", problem
    settings = {key: value for key, value in each.settings.items() if key not in ("source", "model")}
    if settings:
        yield "settings", "\n".join(f"{key}={value}" for key, value in settings.items())
    if each.configured and not each.removable:
        yield "defined in", "the daemon's configuration"
    if each.last_error:
        yield "last error", _last_error(each)


def _zone(zone: ZoneInfo) -> str:
    inside = _counts(zone.counts) or "empty"
    if not zone.since_unix_s:
        return f"{inside}; never occupied"
    state = "occupied" if zone.occupied else "free"
    return f"{inside}; {state} since {formatting.clock(zone.since_unix_s)}; {formatting.many(zone.visits, 'visit')}"


def _line(line: LineInfo) -> str:
    return f"in: {_counts(line.entered) or 0}; out: {_counts(line.left) or 0}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {label}" for label, count in counts.items() if count)


def _state(each: CameraInfo) -> str:
    mode = "" if each.mode == "freshest" else ", every frame"
    tracked = ", tracked" if each.tracked else ""
    if each.configured:
        return f"{each.state}{mode}{tracked}"
    if not each.connections:
        return f"last frame {_ago(each.last_frame_unix_s)}"
    several = f" x{each.connections}" if each.connections > 1 else ""
    return f"{each.protocol}{several}{mode}{tracked}"


def _last_error(each: CameraInfo) -> str:
    if each.reason:
        return each.reason
    return f"{each.last_error} ({_ago(each.last_error_unix_s)})" if each.last_error else ""


def _ago(unix_s: float) -> str:
    return f"{formatting.span(max(0.0, time.time() - unix_s))} ago"


def _ages(each: CameraInfo) -> str:
    if each.age_p50_ms is None or each.age_p99_ms is None:
        return ""
    return f"{each.age_p50_ms:.0f} / {each.age_p99_ms:.0f} ms"


_COLUMNS: tuple[remote.Column[CameraInfo], ...] = (
    remote.Column("CAMERA", lambda each: each.camera or "-", is_whole=True),
    remote.Column("MODEL", lambda each: each.model, is_whole=True),
    remote.Column("STATE", _state),
    remote.Column("FPS IN", lambda each: f"{each.fps_in:.1f}"),
    remote.Column("ANSWERED", lambda each: f"{each.fps_answered:.1f}"),
    remote.Column("AGE", _ages),
    remote.Column("SKIPPED", lambda each: formatting.skipped(each.skipped, each.received)),
    remote.Column("FAILED", lambda each: str(each.failed) if each.failed else ""),
    remote.Column("LAST ERROR", _last_error),
)
