"""The row of collected frames: what it costs the cameras that frames of theirs are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import cv2

import edged
from edged.errors import NotFound
from edged.shapes import MODEL_PATH, Scene
from tests.bench.loads import cameras
from tests.bench.table import Figures, Line, compare, in_rounds, steady
from tests.integration.daemon import Daemon, wait_for

if TYPE_CHECKING:
    from tests.bench.rows import Bench

_SETTLES = 300.0
_CAMERAS = 8
_LEAST_SECONDS = 35.0  # so that at least one child examines candidates meanwhile
_FRAMES, _OVER_S = 1000, 1000.0  # one frame a second, far more than in use
_GOAL = 0.98


def frames(bench: Bench) -> Iterator[Line]:
    """Frames per second of eight cameras with JPEGs of 1280x720 while one frame a second is kept / while none is."""
    pictures = [cv2.imencode(".jpg", Scene(n, 1280, 720).frame(0)[0])[1].tobytes() for n in range(64)]
    with Daemon("--model", f"shapes={MODEL_PATH}") as daemon, daemon.client() as client:
        daemon.settled("shapes", _SETTLES)
        kept: list[int] = []

        def turn(seconds: float) -> Figures:
            return cameras(client, "shapes", pictures, _CAMERAS, False, seconds)

        def collecting() -> Figures:
            client.collect_frames("shapes", frames=_FRAMES, over_s=_OVER_S)
            figures = measured()
            kept.append(_end(client))
            return figures

        measured = steady(turn, max(bench.seconds, _LEAST_SECONDS))
        ways: dict[str, Callable[[], Figures]] = {"collecting": collecting, "not collecting": measured}
        found = in_rounds(ways, bench.rounds, warm_up=False)
        assert min(kept) >= 10, kept
        row = f"{_CAMERAS} cameras, 1280x720, a frame a second is kept"
        yield compare(row, found, "collecting", ["not collecting"], "frames/s", _GOAL)


def _end(client: edged.Client) -> int:
    """End the collection, and return how many frames it had."""
    client.stop_collecting("shapes")
    wait_for("the collection is finished", partial(_is_finished, client))
    (found,) = client.frames("shapes")
    client.remove_frames("shapes")
    return found.kept


def _is_finished(client: edged.Client) -> bool:
    found = client.frames("shapes")
    if not found:
        raise NotFound("nothing was collected")
    return found[0].state == "finished"
