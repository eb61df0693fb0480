"""A well-behaved camera: `python -m tests.attack.camera ADDRESS MODEL SECONDS`, run as its own process.

It sends a small JPEG at a steady rate on its own connection and expects an answer for every frame. It prints one line
per frame: when the frame was due (time.monotonic()), the milliseconds until its answer, and `ok` or the error. The time
counts from when the frame was due, so that a slowly read stream counts as delay.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import cv2
import grpc

from edged.proto import cameras_pb2 as pb
from edged.shapes import Scene
from tests.integration.inference_calls import method

FPS = 20
_PATIENCE = 60.0  # for the answers still missing at the end
_PICTURE = cv2.imencode(".jpg", cv2.resize(Scene(3).frame(0)[0], (320, 240)))[1].tobytes()


def main() -> None:
    address, model, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    due: dict[int, float] = {}
    began = time.monotonic() + 0.2

    def frames() -> Iterator[pb.Frame]:
        for number in range(int(seconds * FPS)):
            due[number] = began + number / FPS
            time.sleep(max(0.0, due[number] - time.monotonic()))
            options = pb.StreamOptions(mode=pb.StreamOptions.EVERY_FRAME) if number == 0 else None
            yield pb.Frame(camera="good", model=model, sequence=number, encoded=_PICTURE, options=options)

    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            for result in method(channel, "Detect")(frames(), timeout=seconds + _PATIENCE):
                now = time.monotonic()
                for run in result.skips:
                    for number in range(run.first, run.last + 1):
                        _tell(due.pop(number, now), now, f"skipped: {run.reason}")
                if not result.only_skips:
                    error = result.error.message if result.HasField("error") else "ok"
                    _tell(due.pop(result.sequence, now), now, error)
        except grpc.RpcError as error:
            for since in sorted(due.values()):
                _tell(since, time.monotonic(), f"{error.code().name} {error.details()}")
            due.clear()
    for since in due.values():
        _tell(since, time.monotonic(), "never answered")


def _tell(due: float, now: float, outcome: str) -> None:
    print(f"{due:.6f} {(now - due) * 1e3:.3f} {outcome}", flush=True)


if __name__ == "__main__":
    main()
