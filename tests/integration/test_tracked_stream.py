"""Tracking through a real daemon: objects keep their ids from frame to frame."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from edged.shapes import Scene
from tests.integration.daemon import Daemon, wait_for

pytest.importorskip("trackers", reason="tracking's library is not installed: see docs/tracking.md")

_FPS = 10


def moving(scene: Scene, first: int, count: int) -> Iterator[object]:
    for number in range(first, first + count):
        yield scene.frame(number)[0]
        time.sleep(1 / _FPS)


@pytest.mark.long
def test_tracking_ids_survive_a_reconnect_of_the_camera(daemon: Daemon) -> None:
    scene = Scene(7, shapes=4)
    with daemon.client() as client:
        # Until the tracker has started, frames have no ids.
        wait_for(
            "the tracker gives ids",
            lambda: any(
                found.tracker_id is not None
                for result in client.stream("shapes", moving(scene, 0, 5), camera="warm", track=True)
                for found in result.detections
            ),
            90,
        )
        seen: list[dict[str, Counter[int]]] = []
        for first in (0, 12):
            labels: dict[str, Counter[int]] = defaultdict(Counter)
            frames = moving(scene, first, 12)
            for result in client.stream("shapes", frames, camera="door", track=True, score=0.5):
                for found in result.detections:
                    if found.tracker_id is not None:
                        labels[found.label][found.tracker_id] += 1
            seen.append(labels)
        (report,) = [each for each in client.cameras() if each.camera == "door"]
    assert report.tracked
    assert sum(map(Counter.total, seen[0].values())) >= 12
    kept = [label for label in seen[0] if label in seen[1] and set(seen[0][label]) & set(seen[1][label])]
    assert kept, (seen[0], seen[1])


def test_stream_without_track_has_no_ids(daemon: Daemon) -> None:
    with daemon.client() as client:
        frames = (Scene(7, shapes=4).frame(number)[0] for number in range(5))
        results = list(client.stream("shapes", frames, camera="plain", lossless=True))
    assert all(found.tracker_id is None for result in results for found in result.detections)
