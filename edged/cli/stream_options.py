"""The options of `edged stream`: the source, the treatment of frames, the sinks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edged.errors import InvalidInput

if TYPE_CHECKING:
    from edged.client.frames import Region

Pace = Annotated[
    bool,
    typer.Option("--pace/--no-pace", help="Play a video at its own speed, or send the next frame after an answer."),
]
Loop = Annotated[bool, typer.Option("--loop", help="Repeat a file or folder.")]
Latest = Annotated[
    bool | None,
    typer.Option(
        "--latest/--in-order", help="Send the newest frame, or each in order. Default: cameras the newest, files each."
    ),
]
SendFps = Annotated[
    float, typer.Option("--send-fps", min=0.0, metavar="N", help="Send at most N frames a second; 0: all.")
]
Hardware = Annotated[bool, typer.Option("--hardware/--no-hardware", help="Decode video in hardware if possible.")]
EveryFrame = Annotated[bool, typer.Option("--every-frame", help="Answer all frames in order, however long that takes.")]
MaxFps = Annotated[
    float, typer.Option("--max-fps", min=0.0, metavar="N", help="Answer at most N frames a second; 0: all.")
]
MaxStaleness = Annotated[
    float,
    typer.Option(
        "--max-staleness",
        min=0.0,
        metavar="SECONDS",
        help="Skip frames that are older than this when their turn comes; 0: none.",
    ),
]
Weight = Annotated[float, typer.Option("--weight", help="Share of the engine against other cameras of the model.")]
Priority = Annotated[
    int, typer.Option("--priority", min=-100, max=100, help="Cameras with a higher priority always go first.")
]
Track = Annotated[bool, typer.Option("--track", help="Give each object an id that it keeps from frame to frame.")]
RegionText = Annotated[
    str | None,
    typer.Option(
        "--region", metavar="X,Y,W,H", help="Use only this part of the picture, in pixels; size 0: up to the edge."
    ),
]
Rotation = Annotated[
    int, typer.Option("--rotation", metavar="DEGREES", help="Turn the picture 90, 180 or 270 degrees clockwise first.")
]
ClassAgnostic = Annotated[
    bool | None,
    typer.Option("--class-agnostic/--by-class", help="Whether boxes of different classes suppress each other."),
]
Reconnect = Annotated[
    bool, typer.Option("--reconnect/--no-reconnect", help="Reconnect to a daemon that went away, or end.")
]
Lines = Annotated[
    Path | None, typer.Option("--lines", metavar="FILE", help="Append each result to a file, one JSON object a line.")
]
Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE.mp4", help="Write a video of the answered frames with their detections."),
]
PreviewAt = Annotated[
    str | None,
    typer.Option(
        "--preview", metavar="[HOST:]PORT", help="Show the live picture to browsers, by default only of this machine."
    ),
]
MqttUrl = Annotated[
    str | None,
    typer.Option(
        "--mqtt",
        metavar="URL",
        help="Publish detections to a broker and Home Assistant: mqtt://user@host:1883/prefix?rate=2, or mqtts://. "
        "The password is read from EDGED_MQTT_PASSWORD, or the file in EDGED_MQTT_PASSWORD_FILE.",
    ),
]


def region(text: str | None) -> Region | None:
    """Parse `X,Y,W,H`. InvalidInput for anything else."""
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 4 or not all(part.strip().isdecimal() for part in parts):
        raise InvalidInput(f"{text!r} is not a region; give x,y,width,height in pixels, such as 0,200,640,0")
    x, y, width, height = map(int, parts)
    return x, y, width, height


def listening(text: str) -> tuple[str, int]:
    """Parse `PORT`, `HOST:PORT` or `[::]:PORT`. InvalidInput for anything else."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(f"{text!r} is not an address for a preview; give a port, such as 8090, or 0.0.0.0:8090")
    return host.strip("[]") or "127.0.0.1", int(port)
