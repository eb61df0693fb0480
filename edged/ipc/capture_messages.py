"""Messages between the daemon and the process of a configured camera, on two pipes (`edged.ipc.pipe_messages`).

Neither end waits for an answer.
"""

from __future__ import annotations

import enum

import msgspec

from edged.config.cameras import Camera

LARGEST = 8 << 20
"""Bytes of a message: a JPEG picture of any camera."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first message to the process. `target`: the daemon's address. `folder`: for files of events."""

    name: str
    camera: Camera
    target: str
    folder: str


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Send `Picture` messages: at most `fps` a second, `width` pixels wide at most, JPEG `quality` 1 to 100; 0 fps ends
    them."""

    fps: float
    width: int = 0
    quality: int = 75


ToCapture = Begin | Watch


class State(str, enum.Enum):
    """What a camera does now."""

    OFF = "off"  # not enabled
    STARTING = "starting"  # its process starts
    CONNECTING = "connecting"  # its source is not open, or gives no frames yet
    STREAMING = "streaming"
    LOST = "lost"  # no frame came for `lost_seconds`
    ENDED = "ended"  # its file was played to the end
    FAILED = "failed"  # it cannot work as configured; `error` says why


class ZoneState(msgspec.Struct, frozen=True):
    """A zone: how many objects of each class are in it now, and whether it is occupied, since when (seconds since the
    epoch). `visits`: how often it became occupied since the process started."""

    occupied: bool = False
    since_unix_s: float = 0.0
    counts: dict[str, int] = {}
    visits: int = 0


class LineState(msgspec.Struct, frozen=True):
    """Objects of each class that crossed a line since the process started."""

    entered: dict[str, int] = {}
    left: dict[str, int] = {}


class Report(msgspec.Struct, frozen=True, tag=True):
    """The state of the camera, about once a second and at each change. `error`: the last problem, without passwords.
    `sinks`: problems by the sink's name. Counts are since the process started; `dark_s` and `frozen_s`: seconds for
    which the picture has been black, or unchanged."""

    state: State
    error: str = ""
    frames: int = 0
    damaged: int = 0
    reconnections: int = 0
    width: int = 0
    height: int = 0
    decoder: str = ""
    dark_s: float = 0.0
    frozen_s: float = 0.0
    zones: dict[str, ZoneState] = {}
    lines: dict[str, LineState] = {}
    sinks: dict[str, str] = {}


class Picture(msgspec.Struct, frozen=True, tag=True):
    """The newest picture with its detections drawn, as JPEG."""

    jpeg: bytes
    unix_s: float


class Happened(msgspec.Struct, frozen=True, tag=True):
    """Something that happened at a zone or line, for the daemon's log of events. `kind` is occupied, free, entered or
    left; `place` the zone or line; `label` the class, empty for several. `file`: a kept picture or video."""

    kind: str
    place: str
    label: str = ""
    unix_s: float = 0.0
    file: str = ""


FromCapture = Report | Picture | Happened
