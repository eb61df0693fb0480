"""The child that judges an engine on frames, and draws the worst: damaged and missing frames, limits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from edged.backends import registry
from edged.backends.contract import UNOPTIMISED, Recipe
from edged.ipc import job_messages as jobs
from edged.jobs.inspect import inspect
from edged.jobs.judge_frames import draw, judge
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.shapes import MODEL_PATH, Scene
from edged.store.judgement import Box
from edged.tensors import Array
from edged.verification.standard import TOLERANCES
from edged.vision.image import decode

BOX = Box(10, 10, 200, 150, 0.9, "circle")


@pytest.fixture(scope="module")
def detector() -> Model:
    return Model.of(plain_entry("shapes", MODEL_PATH, {}), inspect(MODEL_PATH))


@pytest.fixture
def frames(tmp_path: Path) -> dict[str, str]:
    """Return four frames of a drawn camera, with the digests of their files."""
    found = {}
    for number in range(4):
        path = tmp_path / f"{number}.jpg"
        cv2.imwrite(str(path), Scene(number, 640, 480, shapes=6).frame(0)[0])
        found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


class Altered:
    """The reference, with its outputs changed."""

    def __init__(self, detector: Model, alter: Callable[[Array], Array] = lambda output: output) -> None:
        self._session = registry.load("onnxruntime").open(
            detector.order(Recipe("onnxruntime", optimization=UNOPTIMISED))
        )
        self._alter = alter
        self.asked = 0

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        self.asked += 1
        return {name: self._alter(array.copy()) for name, array in self._session.infer(inputs).items()}

    def close(self) -> None:
        self._session.close()


def weaker(output: Array) -> Array:
    """Lose all detections in the left half."""
    values = output.astype(np.float32)
    values[:, 4:] *= np.where(values[:, :1] < 160, np.float32(0.01), np.float32(1))
    return values


def job_of(detector: Model, frames: Mapping[str, str], seconds: float = 600.0) -> jobs.Judge:
    order = detector.order(Recipe("openvino", precision="int8"))
    cameras = dict.fromkeys(frames, "hall")
    about = (TOLERANCES["int8"], detector.recognition, "", "int8", "shapes", "c1", dict(frames), cameras, seconds)
    return jobs.Judge(order, "", order, *about)


def quiet(progress: jobs.Progress) -> None:
    pass


def test_judge_alike_and_different_engines(detector: Model, frames: dict[str, str]) -> None:
    reference = Altered(detector)
    reports: list[float | None] = []
    same = judge(job_of(detector, frames), reference, reference, lambda progress: reports.append(progress.fraction))
    assert (same.frames, same.outcome, same.figures["recall"], same.worst) == (4, "too_few", 1.0, ())
    assert reports == [0.0, 0.25, 0.5, 0.75]
    worse = judge(job_of(detector, frames), Altered(detector, weaker), reference, quiet)
    assert worse.objects == same.objects > 15
    assert 0 < worse.figures["recall"] < 0.9
    assert worse.worst[0].name in {Path(path).name for path in frames}
    assert worse.worst[0].expected


def test_judge_skips_damaged_frames_and_leaves_missing_ones_out(detector: Model, frames: dict[str, str]) -> None:
    damaged, missing, junk, _ = map(Path, frames)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    missing.unlink()
    junk.write_bytes(b"not a picture")
    frames[str(junk)] = hashlib.sha256(b"not a picture").hexdigest()
    reference = Altered(detector)
    found = judge(job_of(detector, frames), reference, reference, quiet)
    assert (found.frames, found.skipped) == (1, 2)
    for path in frames:
        Path(path).unlink(missing_ok=True)
    assert judge(job_of(detector, frames), reference, reference, quiet).outcome == "no_frames"


def test_judge_stops_when_its_time_is_over(detector: Model, frames: dict[str, str]) -> None:
    reference, now = Altered(detector), iter(range(100))
    found = judge(job_of(detector, frames, 2.0), reference, reference, quiet, lambda: float(next(now)))
    assert found.frames == 2
    assert "no time for 2 frames" in found.reason


def test_draw_frames_small_and_within_the_limit(frames: dict[str, str]) -> None:
    wanted = [jobs.FrameToDraw(path, digest, (BOX,), ()) for path, digest in frames.items()]
    drawn = draw(jobs.DrawFrames(tuple(wanted), 1 << 20)).pictures
    assert len(drawn) == 4
    expected, found = (decode(jpeg) for jpeg in drawn[0])
    assert expected.shape == found.shape == (360, 480, 3)
    assert np.abs(expected.astype(int) - found).max() > 50  # only one side has a box
    few = draw(jobs.DrawFrames(tuple(wanted), 40_000)).pictures
    assert sum(len(jpeg) for pair in few for jpeg in pair) <= 40_000
    assert few[0][0]
    assert few[3] == (b"", b"")


def test_draw_frames_that_are_gone_or_changed_have_no_picture(frames: dict[str, str], tmp_path: Path) -> None:
    first, second, *_ = frames
    Path(first).unlink()
    wanted = (jobs.FrameToDraw(first, frames[first]), jobs.FrameToDraw(second, "0" * 64))
    assert draw(jobs.DrawFrames(wanted, 1 << 20)).pictures == ((b"", b""), (b"", b""))
