"""`edged samples`: frames of live cameras that calibrate and judge the engines of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType

from edged import formatting
from edged.api_types import CollectedCamera, FrameCollection
from edged.cli import common, remote
from edged.cli.remote import RemoteCommand
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.errors import NotFound

_Model = Annotated[str, typer.Argument(help="The model; see edged models list.")]


def collect(
    model: _Model,
    cameras: Annotated[
        list[str] | None,
        typer.Option("--camera", metavar="NAME", help="Only frames of this camera; repeatable. Default: all cameras."),
    ] = None,
    frames: Annotated[int, typer.Option("--frames", min=1, help="How many frames to keep.")] = 500,
    over: Annotated[
        str,
        typer.Option("--over", metavar="TIME", help="Time to spread the frames over, such as 90min, 24h or 7d."),
    ] = "24h",
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Begin to keep frames of live cameras for a model.

    The frames are spread over the time and over the cameras. Frames that look like a kept frame are dropped. When the
    collection is finished, int8 engines are calibrated on some of its frames. Other frames, which were taken at other
    times, are used to compare engines of lower precision than fp32 with the reference. The frames are files on the box
    that only the daemon's user can read.

    edged samples collect doors --camera hall --camera yard --frames 500 --over 24h
    """
    seconds = common.parse_duration(over)
    command = RemoteCommand(
        call=lambda client: client.collect_frames(model, cameras or (), frames=frames, over_s=seconds),
        render=lambda found: [f"collecting {_aim(found)} for {found.model}; see: edged samples show {found.model}"],
        to_json=FrameCollection.json,
    )
    remote.run(command, targets, json)


def list_(
    model: Annotated[str | None, typer.Argument(help="Show only the frames of this model.")] = None,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Show the frames that are kept for each model."""
    command = remote.list_command(
        lambda client: client.frames(model or ""),
        _COLUMNS,
        lambda found: [each.json() for each in found],
        empty="no frames yet; collect some: edged samples collect MODEL",
    )
    remote.run(command, targets, json)


def show(model: _Model, targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Show a model's frames of each camera, and their folder on the box. --json also lists each frame."""

    def find(found: list[FrameCollection]) -> FrameCollection:
        if not found:
            raise NotFound(f"there are no frames for model {model!r}; collect some: edged samples collect {model}")
        return found[0]

    command = RemoteCommand(
        call=lambda client: find(client.frames(model, each=json)), render=_shown, to_json=FrameCollection.json
    )
    remote.run(command, targets, json)


def stop(model: _Model, targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """End a collection early, with the frames that it has.

    A collection without frames is removed.
    """
    command = RemoteCommand(
        call=lambda client: client.stop_collecting(model),
        render=lambda found: [f"the collection for {found.model} ends with {_progress(found)}"],
        to_json=FrameCollection.json,
    )
    remote.run(command, targets, json)


def remove(model: _Model, targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Delete all frames of a model.

    int8 engines are built again, with the calibration of a model without frames.
    """
    command: RemoteCommand[str] = RemoteCommand(
        call=lambda client: client.remove_frames(model) or model,
        render=lambda name: [f"removed all frames of {name}"],
        to_json=lambda name: {"removed": name},
    )
    remote.run(command, targets, json)


def summary(found: FrameCollection) -> str:
    """Return one line about a collection, for `edged models show`."""
    return f"{_state(found)}: {_progress(found)}{f'; {found.problem}' if found.problem else ''}"


def _aim(found: FrameCollection) -> str:
    cameras = ", ".join(found.asked) or "all cameras"
    return f"{formatting.many(found.wanted, 'frame')} of {cameras} over {formatting.span(found.over_s)}"


def _progress(found: FrameCollection) -> str:
    uses = f"{found.calibrate} to calibrate, {found.judge} to judge"
    return f"{found.kept} of {formatting.many(found.wanted, 'frame')} ({uses})"


def _state(found: FrameCollection) -> str:
    if found.state != "collecting":
        return found.state
    spent_s = min(found.spent_s, found.over_s)  # the daemon examines the last frames after the end of the time
    return f"collecting for {formatting.span(spent_s)} of {formatting.span(found.over_s)}"


def _share(found: FrameCollection) -> str:
    """Return the share of a collection's time that has passed; empty if the collection is not running."""
    if found.state != "collecting":
        return ""
    return f"{min(1.0, found.spent_s / found.over_s):.0%} of {formatting.span(found.over_s)}"


def _shown(found: FrameCollection) -> Iterator[RenderableType]:
    rows = {"model": found.model, "state": _state(found)}
    if found.problem:
        rows["problem"] = found.problem
    if found.state != "damaged":
        missing = [camera for camera in found.asked if camera not in {each.camera for each in found.cameras}]
        dropped = f"{found.duplicates} look like a kept frame, {found.unusable} cannot be used"
        rows |= {
            "collects": _aim(found),
            "frames": _progress(found) + (f", {found.waiting} not examined yet" if found.waiting else ""),
            **({"missing": f"no frames of {', '.join(missing)} yet"} if missing else {}),
            "dropped": dropped,
            "size": formatting.size(found.bytes),
        }
    if found.id:
        rows["id"] = found.id
    yield common.fact_table({name: formatting.shown(value) for name, value in {**rows, "folder": found.folder}.items()})
    if found.cameras:
        yield remote.item_table({"": found.cameras}, _CAMERA_COLUMNS, "")


_COLUMNS: tuple[remote.Column[FrameCollection], ...] = (
    remote.Column("model", lambda each: each.model, is_whole=True),
    remote.Column("state", lambda each: each.state),
    remote.Column("time", _share, is_optional=True),
    remote.Column("frames", lambda each: f"{each.kept} of {each.wanted}"),
    remote.Column("calibrate", lambda each: str(each.calibrate)),
    remote.Column("judge", lambda each: str(each.judge)),
    remote.Column("size", lambda each: formatting.size(each.bytes)),
    remote.Column("problem", lambda each: each.problem, is_optional=True),
)
_CAMERA_COLUMNS: tuple[remote.Column[CollectedCamera], ...] = (
    remote.Column("camera", lambda each: each.camera, is_whole=True),
    remote.Column("calibrate", lambda each: str(each.calibrate)),
    remote.Column("judge", lambda each: str(each.judge)),
    remote.Column("size", lambda each: formatting.size(each.bytes)),
    remote.Column("first", lambda each: formatting.moment(each.first_unix_s)),
    remote.Column("last", lambda each: formatting.moment(each.last_unix_s)),
)
