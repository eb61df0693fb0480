"""Keys of `[cameras.NAME]`: the source of its pictures, its zones, lines and events, and where results go.

Points are fractions of the width and height of the picture as it is shown, after `rotation`, so that they are valid at
any resolution.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edged.config.tables import Table, check_names

_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Point: TypeAlias = tuple[_Share, _Share]
_Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=3600)]
_Address: TypeAlias = Annotated[str, Meta(extra={"address": True})]  # shown without its user and password


class Zone(Table, frozen=True):
    """A part of the picture. edged counts the objects of each class in a zone, and reports since when it is
    occupied."""

    points: Annotated[
        tuple[Point, ...],
        Meta(
            description="Corners of a polygon: x and y, each a fraction of the picture.",
            examples=[[[0.1, 0.2], [0.6, 0.2], [0.6, 0.9], [0.1, 0.9]]],
        ),
    ]
    classes: Annotated[
        tuple[str, ...], Meta(description="Classes that count; empty for all.", examples=[["person"]])
    ] = ()
    on_seconds: Annotated[
        _Seconds, Meta(description="Seconds that an object must be in the zone before the zone counts as occupied.")
    ] = 0.5
    off_seconds: Annotated[
        _Seconds, Meta(description="Seconds that the zone must be empty before it counts as free again.")
    ] = 3.0

    def __post_init__(self) -> None:
        if len(self.points) < 3:
            raise ValueError("points has too few corners; give at least three")


class Line(Table, frozen=True):
    """A line across the picture. edged counts the objects that cross a line in each direction; a line turns tracking
    on."""

    points: Annotated[
        tuple[Point, Point],
        Meta(
            description="Its two ends: x and y, each a fraction of the picture. Looking from the first end to the"
            " second, an object that crosses from the right to the left side goes in.",
            examples=[[[0.1, 0.5], [0.9, 0.5]]],
        ),
    ]
    classes: Annotated[
        tuple[str, ...], Meta(description="Classes that count; empty for all.", examples=[["person"]])
    ] = ()

    def __post_init__(self) -> None:
        if self.points[0] == self.points[1]:
            raise ValueError("points has the same end twice; give two different ends")


class Events(Table, frozen=True):
    """Pictures and videos that are kept when a zone becomes occupied, or, without zones, when anything is detected."""

    snapshots: Annotated[bool, Meta(description="Whether to keep a picture, with its detections drawn.")] = False
    clips: Annotated[bool, Meta(description="Whether to keep a video (MP4); it needs edged[media].")] = False
    before_seconds: Annotated[_Seconds, Meta(description="Seconds of video before the event.")] = 5.0
    after_seconds: Annotated[_Seconds, Meta(description="Seconds of video after the end of the event.")] = 5.0
    folder: Annotated[
        str,
        Meta(
            description="Directory for pictures and videos; empty for events/NAME in the state directory.",
            examples=["/data/events"],
        ),
    ] = ""
    keep_days: Annotated[float, Meta(gt=0, le=3650, description="Age in days above which files are deleted.")] = 7.0
    keep_mb: Annotated[
        int, Meta(ge=1, le=1 << 30, description="Size of all files, in MiB, above which the oldest are deleted.")
    ] = 1024


class Sinks(Table, frozen=True):
    """Outputs for results, in addition to the clients that request results."""

    mqtt: Annotated[
        _Address,
        Meta(
            description="Broker for results and Home Assistant discovery.",
            examples=["mqtt://edged@homeassistant.local/edged?rate=2"],
        ),
    ] = ""
    mqtt_password_file: Annotated[
        str, Meta(description="File with the broker's password.", examples=["/etc/edged/mqtt-password"])
    ] = ""
    webhook: Annotated[
        _Address,
        Meta(
            description="URL that gets a POST with JSON for each event of a zone or line.",
            examples=["http://localhost:1880/edged"],
        ),
    ] = ""
    zmq: Annotated[
        str,
        Meta(
            description="ZeroMQ address to publish each result at, as JSON: ipc:///PATH or tcp://127.0.0.1:PORT.",
            examples=["ipc:///run/edged/hall"],
        ),
    ] = ""
    preview: Annotated[
        str,
        Meta(
            description="[HOST:]PORT of a page with the live picture only, without access control; see also [page].",
            examples=["8090"],
        ),
    ] = ""
    lines: Annotated[
        str,
        Meta(description="File to append each result to, one JSON object per line.", examples=["/data/hall.jsonl"]),
    ] = ""


class Camera(Table, frozen=True):
    """A camera that the daemon opens itself, in a separate process."""

    source: Annotated[
        _Address,
        Meta(
            description="rtsp://, rtsps://, http://, https://, /dev/video0, v4l2://, csi://, gst:, shm://, a video"
            " file, a folder of pictures, or scene:7 for drawn shapes.",
            examples=["rtsp://user:password@192.168.1.20/main"],
        ),
    ]
    model: Annotated[str, Meta(description="The model or pipeline that gets its pictures.", examples=["doors"])]
    enabled: Annotated[bool, Meta(description="Whether the camera runs.")] = True
    mode: Annotated[
        Literal["freshest", "every_frame"],
        Meta(description="Which frames are answered: the newest, or all in order."),
    ] = "freshest"
    max_fps: Annotated[float, Meta(ge=0, le=1000, description="Most frames to answer per second; 0 is no limit.")] = 0.0
    max_staleness: Annotated[
        _Seconds, Meta(description="Age in seconds above which a frame is skipped; 0 is no limit.")
    ] = 0.0
    weight: Annotated[
        float, Meta(ge=0.01, le=100, description="Share of the engine relative to other cameras of the model.")
    ] = 1.0
    priority: Annotated[int, Meta(ge=-100, le=100, description="Cameras with a higher priority always go first.")] = 0
    track: Annotated[bool, Meta(description="Whether objects get ids that follow them from frame to frame.")] = False
    score: Annotated[
        _Share | None, Meta(description="Score threshold in place of the model's own.", examples=[0.4])
    ] = None
    class_agnostic: Annotated[bool, Meta(description="Whether boxes of different classes suppress each other.")] = False
    region: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Meta(
            description="Part of the picture to use: x, y, width, height in pixels; a width or height of 0 extends to"
            " the edge. Empty for the whole picture.",
            examples=[[0, 200, 640, 0]],
        ),
    ] = ()
    rotation: Annotated[Literal[0, 90, 180, 270], Meta(description="Degrees to turn the picture clockwise.")] = 0
    hardware: Annotated[bool, Meta(description="Whether to decode video in hardware if possible.")] = True
    loop: Annotated[bool, Meta(description="Whether to repeat a file or folder.")] = True
    lost_seconds: Annotated[
        _Seconds,
        Meta(
            description="Raise an alarm after this many seconds without a frame; 0 is never. At a low max_fps, the"
            " limit is at least the time of two frames."
        ),
    ] = 15.0
    dark_seconds: Annotated[
        _Seconds, Meta(description="Raise an alarm if the picture is black for this many seconds; 0 is never.")
    ] = 60.0
    frozen_seconds: Annotated[
        _Seconds, Meta(description="Raise an alarm if the picture is the same for this many seconds; 0 is never.")
    ] = 60.0
    zones: dict[str, Zone] = msgspec.field(default_factory=dict)
    lines: dict[str, Line] = msgspec.field(default_factory=dict)
    events: Events = Events()
    sinks: Sinks = Sinks()

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError("source is empty; give the camera's address")
        if re.match(r"(?:rtsps?|https?|udp|tcp|srt|rtmp)://(?:[^/]*@)?(?:[:/]|$)", self.source):
            raise ValueError("source has no host name; write the address like rtsp://camera.local/stream")
        if not self.model:
            raise ValueError("model is empty; name the model that gets the camera's pictures")
        if len(self.region) not in (0, 4):
            raise ValueError("region has the wrong number of values; give four: x, y, width, height")
        check_names("zones", self.zones)
        check_names("lines", self.lines)

    @property
    def is_tracked(self) -> bool:
        """Whether objects get ids, because of `track` or because a line needs them."""
        return self.track or bool(self.lines)


def settings(table: msgspec.Struct) -> dict[str, object]:
    """Return the keys of a table that differ from their defaults, nested as in TOML."""
    found: dict[str, object] = {}
    for field in msgspec.structs.fields(table):
        value = getattr(table, field.name)
        usual = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if value == usual:
            continue
        if isinstance(value, dict):
            found[field.name] = {name: settings(each) for name, each in value.items()}
        else:
            found[field.name] = settings(value) if isinstance(value, msgspec.Struct) else msgspec.to_builtins(value)
    return found
