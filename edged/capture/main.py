"""The process of one configured camera: `python -m edged.capture.main PARENT_PID REACH`.

It reads messages from standard input and writes messages to standard output (`edged.ipc.capture_messages`). It ends
when its input ends.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import BinaryIO

from edged import process
from edged.confinement import confine
from edged.confinement.rules import Reach


def main() -> int:
    output = process.become_child(int(sys.argv[1]))
    # Without this, libraries would start a thread for each processor in each camera's process.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    confine.confine_files(Reach.parsed(sys.argv[2]))
    return run(sys.stdin.buffer, output)


def run(requests: BinaryIO, output: BinaryIO) -> int:
    """Run the camera until the daemon closes the pipe; return the exit status."""
    # Imported only after the files are confined and the environment is set.
    import msgspec

    from edged.capture.capture import Capture
    from edged.decoding import ready
    from edged.ipc import capture_messages as m
    from edged.ipc import pipe_messages

    writing = threading.Lock()

    def send(message: m.FromCapture) -> None:
        with writing:
            output.write(pipe_messages.pack(message))
            output.flush()

    decoder = msgspec.msgpack.Decoder(ready(m.ToCapture))
    first = pipe_messages.read(requests, m.LARGEST)
    begin = None if first is None else decoder.decode(first)
    if not isinstance(begin, m.Begin):
        return 0
    capture = Capture(begin, send)
    capture.start()
    while (payload := pipe_messages.read(requests, m.LARGEST)) is not None:
        message = decoder.decode(payload)
        if isinstance(message, m.Watch):
            capture.watch(message)
        elif isinstance(message, m.Description):
            capture.describe(message)
        elif isinstance(message, m.Removed):
            capture.forget()
    capture.stop()
    return 0


if __name__ == "__main__":
    # `os._exit`, because at a normal exit library threads may hang in the kernel while the daemon waits.
    status = main()
    sys.stdout.flush()
    os._exit(status)
