"""Stand-in for the process of a configured camera: the words of the camera's source say what it does.

`streaming`, `lost` and the other states report that state; `unsent` adds an output that fails to later reports;
`occupied` reports a zone as occupied; `die` exits the process; `hang` stops all reports; `noise` sends bytes that are
no valid message.
"""

from __future__ import annotations

import sys
import time

import msgspec

from edged.decoding import ready
from edged.ipc import capture_messages as m
from edged.ipc import pipe_messages


def main() -> None:
    requests, output = sys.stdin.buffer, sys.stdout.buffer
    decoder = msgspec.msgpack.Decoder(ready(m.ToCapture))

    def send(message: m.FromCapture) -> None:
        output.write(pipe_messages.pack(message))
        output.flush()

    begin = decoder.decode(pipe_messages.read(requests, m.LARGEST) or b"")
    assert isinstance(begin, m.Begin)
    sinks: dict[str, str] = {}
    for word in begin.camera.source.split():
        if word == "die":
            sys.exit(3)
        elif word == "hang":
            time.sleep(600)
        elif word == "noise":
            output.write(b"\xff" * 64)
            output.flush()
        elif word == "unsent":
            sinks = {"mqtt": "is not connected"}
        elif word == "occupied":
            send(m.Happened("occupied", "door", file="door.jpg"))
        else:
            error = "" if word == "streaming" else "rtsp://user:secret@hall/ does not answer"
            send(m.Report(m.State(word), error, width=640, height=480, sinks=sinks))
    while (payload := pipe_messages.read(requests, m.LARGEST)) is not None:
        message = decoder.decode(payload)
        if isinstance(message, m.Watch) and message.fps:
            send(m.Picture(f"{message.fps:g} {message.width}".encode(), 1.0))
        elif isinstance(message, m.Removed):
            send(m.Happened("free", "removed"))


if __name__ == "__main__":
    main()
