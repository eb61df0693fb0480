"""The options of `edged stream`: of the source, of what the daemon does with the frames, of where results go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edged.errors import InvalidInput

if TYPE_CHECKING:
    from edged.client.frames import Region

Pace = Annotated[
    bool,
    typer.Option("--pace/--no-pace", help="Play a video at its own speed, or send the next when answered."),
]
Loop = Annotated[bool, typer.Option("--loop", help="Begin a file or folder again at its end.")]
Latest = Annotated[
    bool | None,
    typer.Option(
        "--latest/--in-order",
        help="Give the newest frame or each in its turn; cameras give the newest, files each.",
        show_default=False,
    ),
]
SendFps = Annotated[
    float,
    typer.Option("--send-fps", min=0.0, metavar="N", help="Send at most N frames a second; 0: all."),
]
Hardware = Annotated[
    bool,
    typer.Option("--hardware/--no-hardware", help="Decode video in hardware where there is any."),
]
EveryFrame = Annotated[
    bool,
    typer.Option("--every-frame", help="Have all frames answered, in order, however long that takes."),
]
MaxFps = Annotated[
    float,
    typer.Option("--max-fps", min=0.0, metavar="N", help="Answer at most N frames a second; 0: all."),
]
MaxStaleness = Annotated[
    float,
    typer.Option(
        "--max-staleness", min=0.0, metavar="SECONDS", help="Skip frames that are older when their turn comes; 0: none."
    ),
]
Weight = Annotated[
    float,
    typer.Option("--weight", help="Share of the engine against other cameras of the model."),
]
Priority = Annotated[
    int,
    typer.Option("--priority", min=-100, max=100, help="Those with a higher one always go first."),
]
Track = Annotated[
    bool,
    typer.Option("--track", help="Give each object an id that it keeps from frame to frame."),
]
RegionText = Annotated[
    str | None,
    typer.Option(
        "--region",
        metavar="X,Y,W,H",
        help="Look at this part of the picture only, in its pixels; 0 for a size up to the edge.",
        show_default=False,
    ),
]
Rotation = Annotated[
    int,
    typer.Option(
        "--rotation",
        metavar="DEGREES",
        help="Turn the picture 90, 180 or 270 degrees clockwise before it is looked at.",
    ),
]
ClassAgnostic = Annotated[
    bool | None,
    typer.Option(
        "--class-agnostic/--by-class",
        help="Whether boxes of different classes suppress each other.",
        show_default=False,
    ),
]
Reconnect = Annotated[
    bool,
    typer.Option("--reconnect/--no-reconnect", help="Go on when a daemon that went away is back, or end then."),
]
Lines = Annotated[
    Path | None,
    typer.Option(
        "--lines", metavar="FILE", help="Append each result to a file, one JSON object a line.", show_default=False
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="FILE.mp4",
        help="Write a video of the answered frames with what was found.",
        show_default=False,
    ),
]
PreviewAt = Annotated[
    str | None,
    typer.Option(
        "--preview",
        metavar="[HOST:]PORT",
        help="Show the live picture to browsers, of this machine only unless HOST says otherwise.",
        show_default=False,
    ),
]
MqttUrl = Annotated[
    str | None,
    typer.Option(
        "--mqtt",
        metavar="URL",
        help="Tell a broker, and Home Assistant, what is seen: mqtt://user@host:1883/prefix?rate=2, or mqtts://. "
        "The password is read from EDGED_MQTT_PASSWORD, or the file in EDGED_MQTT_PASSWORD_FILE.",
        show_default=False,
    ),
]


def region(text: str | None) -> Region | None:
    """InvalidInput for what is no `X,Y,W,H`."""
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 4 or not all(part.strip().isdecimal() for part in parts):
        raise InvalidInput(f"{text!r} is not a region; give x,y,width,height in pixels, such as 0,200,640,0")
    x, y, width, height = map(int, parts)
    return x, y, width, height


def listening(text: str) -> tuple[str, int]:
    """Host and port of `PORT`, `HOST:PORT` or `[::]:PORT`; InvalidInput for what is none."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(f"{text!r} is not an address for a preview; give a port, such as 8090, or 0.0.0.0:8090")
    return host.strip("[]") or "127.0.0.1", int(port)
