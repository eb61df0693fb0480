"""Messages between the daemon and the process of a configured camera, on two pipes (`edged.ipc.pipe_messages`).

Messages in the two directions are independent: neither end waits for an answer.
"""

from __future__ import annotations

import enum

import msgspec

from edged.config.cameras import Camera

LARGEST = 8 << 20
"""The largest message in bytes: enough for a JPEG picture of any camera."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first message to the process. `target`: the daemon's address. `folder`: for the files of events."""

    name: str
    camera: Camera
    target: str
    folder: str


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Request `Picture` messages: at most `fps` a second, at most `width` pixels wide, JPEG `quality` 1 to 100. With
    `fps` 0 the process sends no more pictures."""

    fps: float
    width: int = 0
    quality: int = 75


class Description(msgspec.Struct, frozen=True, tag=True):
    """A language model's description of what the camera sees. `rule` is the name of the configured rule that requested
    the description."""

    rule: str
    text: str
    unix_s: float


class Removed(msgspec.Struct, frozen=True, tag=True):
    """The camera was removed. Sent before the process is asked to stop, so that outputs remove what they announced."""


ToCapture = Begin | Watch | Description | Removed


class State(str, enum.Enum):
    """The state of a camera."""

    OFF = "off"  # not enabled
    STARTING = "starting"  # its process starts
    CONNECTING = "connecting"  # its source is not open, or has not sent a frame yet
    STREAMING = "streaming"
    LOST = "lost"  # no frame arrived for `lost_seconds`
    ENDED = "ended"  # the file has been read to its end
    FAILED = "failed"  # the camera cannot work as configured; `error` says why


class ZoneState(msgspec.Struct, frozen=True):
    """The state of a zone: whether it is occupied, since when (seconds since the epoch), and how many objects of each
    class are in it. `visits`: how often the zone became occupied since the process started."""

    occupied: bool = False
    since_unix_s: float = 0.0
    counts: dict[str, int] = {}
    visits: int = 0


class LineState(msgspec.Struct, frozen=True):
    """The counts of a line since the process started: for each direction, how many objects of each class crossed it."""

    entered: dict[str, int] = {}
    left: dict[str, int] = {}


class Report(msgspec.Struct, frozen=True, tag=True):
    """The state of the camera, sent about once a second, and after the first frame, a failure and the end. `error`: the
    last problem, without passwords. `sinks` maps the name of a failing sink to its problem. All counts are since the
    start of the process. `dark_s` and `frozen_s`: for how many seconds the picture has been black or unchanged."""

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
    """An event at a zone or line, for the daemon's log of events. `kind` is occupied, free, entered or left; `place` is
    the name of the zone or line. `label` is the class of the objects, empty for several classes. `file`: a saved
    picture or video."""

    kind: str
    place: str
    label: str = ""
    unix_s: float = 0.0
    file: str = ""


FromCapture = Report | Picture | Happened
