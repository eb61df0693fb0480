"""The tracker's process. It has one tracker for each camera, which assigns ids to the detections of each frame.

The process is separate, so that the daemon does not load the tracking library and does not crash with the library.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, BinaryIO

from edged import packages, process
from edged.confinement import confine
from edged.confinement.rules import Reach

if TYPE_CHECKING:
    from edged.ipc.track_messages import Follow, Followed, FromTracker, NotFollowed, ToTracker
    from edged.tracker.tracks import ByteTracker

_OURS = ("trackers", "supervision", "scipy")


def main() -> int:
    """Run `python -m edged.tracker.main PARENT_PID REACH`: read requests on standard input, answer on standard
    output."""
    answers = process.become_child(int(sys.argv[1]))
    confine.everything(Reach.parsed(sys.argv[2]))
    # With several threads, the work on 8x8 matrices is slower, and the threads spin while they wait.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    serve(sys.stdin.buffer, answers)
    return 0


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Serve requests until the daemon closes the pipe. Raises the decoder's error if a request is invalid."""
    # These imports follow the settings of the environment, which libraries read while they are imported.
    import msgspec

    from edged.decoding import ready
    from edged.ipc import pipe_messages
    from edged.ipc import track_messages as m

    def send(message: FromTracker) -> None:
        answers.write(pipe_messages.pack(message))
        answers.flush()

    try:
        from edged.tracker.tracks import ByteTracker
    except ImportError as error:
        send(m.Unfit(_missing(error)))
        return
    send(m.Ready())
    decoder = msgspec.msgpack.Decoder(ready(m.ToTracker))
    cameras: dict[int, ByteTracker] = {}
    while (payload := pipe_messages.read(requests, m.LARGEST)) is not None:
        request: ToTracker = decoder.decode(payload)
        if isinstance(request, m.Forget):
            cameras.pop(request.camera, None)
            continue
        tracker = cameras.get(request.camera)
        if tracker is None:
            tracker = cameras[request.camera] = ByteTracker(request.after)
        answer = follow(tracker, request)
        if isinstance(answer, m.NotFollowed):
            cameras[request.camera] = ByteTracker(tracker.last)  # the state of the failed tracker is unknown
        send(answer)


def follow(tracker: ByteTracker, request: Follow) -> Followed | NotFollowed:
    """Pass the detections of a frame to its camera's tracker; return the ids, or the error."""
    from edged.ipc import track_messages as m
    from edged.vision.detections import Detections

    try:
        found = Detections.unpack(request.found)
        ids = tracker.update(found.boxes, found.scores, found.class_ids, request.captured)
    except Exception as error:
        return m.NotFollowed(request.number, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return m.Followed(request.number, tuple(ids.tolist()))


def _missing(error: ImportError) -> str:
    from edged.ipc import track_messages as m

    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OURS:
        return m.not_installed(str(error.name))
    why = " ".join(str(error).split())[:300]
    return f"the library for tracking cannot be imported ({why}); reinstall it: {packages.install_extra('tracking')}"


if __name__ == "__main__":
    sys.exit(main())
