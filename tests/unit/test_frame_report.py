"""What people see of collected frames: reports, and the lines and durations of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edged.api_types import CollectedCamera, FrameCollection
from edged.cli.common import parse_duration
from edged.cli.samples import summary
from edged.engines import frame_report
from edged.errors import InvalidInput
from edged.ipc import job_messages as jobs
from edged.message_mapper import to_message, to_struct
from edged.models.collected import Collection, Frame, id_of
from edged.proto import operations_pb2 as pb
from edged.serving.collector import Collector
from edged.serving.frame_files import FrameFiles

FRAMES = tuple(
    Frame(f"{n}.jpg", camera, offset, 1e9 + offset, "b", offset, n, "0" * 64, 100)
    for n, (camera, offset) in enumerate([("door", 60.0), ("yard", 180.0), ("door", 300.0), ("door", 125.0)])
)


async def never(job: jobs.Sift) -> jobs.Sifted:
    raise AssertionError


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., Collector]:
    """Writes a collection and returns a collector that has read it."""

    def store(**about: object) -> Collector:
        files = FrameFiles(tmp_path / "frames")
        made = Collection((), 10, 1000.0, 1e9, FRAMES, **about)  # type: ignore[arg-type]
        files.save("m", made)
        for frame in FRAMES:
            (files.folder("m") / frame.name).write_bytes(b"picture")
        return Collector(files, never)

    return store


def test_report_counts_uses_and_cameras(stored: Callable[..., Collector], tmp_path: Path) -> None:
    (found,) = frame_report.collections(stored(finished=True, id=id_of(FRAMES), duplicates=3).kept)
    assert (found.state, found.kept, found.calibrate, found.judge, found.bytes) == ("finished", 4, 2, 1, 400)
    assert found.cameras == (
        CollectedCamera("door", 2, 0, 300, 1e9 + 60, 1e9 + 300),
        CollectedCamera("yard", 0, 1, 100, 1e9 + 180, 1e9 + 180),
    )
    assert found.folder == str(tmp_path / "frames" / "m")
    assert found.frames == ()
    assert summary(found) == "finished: 4 of 10 frames (2 to calibrate, 1 to judge)"


def test_report_crosses_the_wire_unchanged(stored: Callable[..., Collector]) -> None:
    found = frame_report.collection(stored().kept, "m", each=True)
    assert found is not None
    assert [each.use for each in found.frames] == ["calibrate", "judge", "calibrate", "gap"]
    assert to_struct(to_message(found, pb.FrameCollection), FrameCollection) == found


def test_report_of_a_damaged_index_says_what_to_do(stored: Callable[..., Collector], tmp_path: Path) -> None:
    stored()
    (tmp_path / "frames" / "m" / "collection.json").write_text("{}")
    (found,) = frame_report.collections(Collector(FrameFiles(tmp_path / "frames"), never).kept)
    assert found.state == "damaged"
    assert "edged samples remove m" in found.problem


def test_report_of_no_frames_says_that_cameras_are_silent(tmp_path: Path) -> None:
    files = FrameFiles(tmp_path / "frames")
    files.save("m", Collection(("door",), 10, 1000.0, 1e9))
    found = frame_report.collection(Collector(files, never).kept, "m")
    assert found is not None
    assert found.problem
    assert frame_report.collection(Collector(files, never).kept, "other") is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("30min", 1800.0), ("5m", 300.0), ("24h", 86400.0), ("1.5 d", 129600.0)]
)
def test_duration_of_the_command_line(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "24", "h", "-3h", "1e3h", "3 weeks", "٣h"])
def test_duration_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_duration(text)
