"""Cameras in the configuration: keys, mistakes, and hidden passwords."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.config.cameras import Camera, Events, Line, Sinks, Zone, settings
from edged.config.reading import read
from edged.config.template import lines, rows

HALL = """
[cameras.hall]
source = "rtsp://user:password@192.168.1.20/main"
model = "doors"
max_fps = 10
[cameras.hall.zones.door]
points = [[0.1, 0.2], [0.6, 0.2], [0.6, 0.9]]
classes = ["person"]
[cameras.hall.lines.way]
points = [[0, 0.5], [1, 0.5]]
[cameras.hall.events]
snapshots = true
[cameras.hall.sinks]
mqtt = "mqtt://edged@broker/edged"
[cameras.yard]
source = "/dev/video0"
model = "doors"
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "edged.toml"
    file.write_text(text)
    return file


def test_read_cameras_with_zones_and_lines(tmp_path: Path) -> None:
    cameras = read(written(tmp_path, HALL)).required().cameras
    assert list(cameras) == ["hall", "yard"]
    hall = cameras["hall"]
    assert hall == Camera(
        source="rtsp://user:password@192.168.1.20/main",
        model="doors",
        max_fps=10.0,
        zones={"door": Zone(points=((0.1, 0.2), (0.6, 0.2), (0.6, 0.9)), classes=("person",))},
        lines={"way": Line(points=((0.0, 0.5), (1.0, 0.5)))},
        events=Events(snapshots=True),
        sinks=Sinks(mqtt="mqtt://edged@broker/edged"),
    )
    assert hall.is_tracked
    assert not cameras["yard"].is_tracked


@pytest.mark.parametrize(
    ("old", "new", "key", "line", "message"),
    [
        ("max_fps", "max_fsp", "cameras.hall.max_fsp", 5, "unknown key; did you mean `max_fps`?"),
        ("max_fps = 10", 'max_fps = "x"', "cameras.hall.max_fps", 5, 'expected a number from 0 to 1000, got "x"'),
        ('model = "doors"\nmax', "max", "cameras.hall", 2, "model is missing; set it"),
        ("[0.1, 0.2], ", "", "cameras.hall.zones.door.points", 7, "points has too few corners"),
        ("0.5], [1", "0.5], [0", "cameras.hall.lines.way.points", 10, "points has the same end twice"),
        ("[cameras.yard]", "[cameras.'a b']", "cameras", 0, "cameras has the invalid name"),
        ("[0, 0.5]", "[0, 50]", "cameras.hall.lines.way.points[0][1]", 10, "expected a number from 0 to 1, got 50"),
        ("[cameras.hall.sinks]", "[cameras.hall.sinsk]", "cameras.hall.sinsk", 13, "did you mean `sinks`?"),
    ],
)
def test_read_mistake_names_its_key_and_line(
    tmp_path: Path, old: str, new: str, key: str, line: int, message: str
) -> None:
    assert old in HALL
    (problem,) = read(written(tmp_path, HALL.replace(old, new, 1))).problems
    assert message in problem.message
    assert problem.key == key
    assert problem.origin.line == line


def test_read_variable_sets_all_cameras(tmp_path: Path) -> None:
    environment = {"EDGED_CAMERAS": '{ gate = { source = "gate.mp4", model = "m" } }'}
    cameras = read(written(tmp_path, HALL), environment).required().cameras
    assert set(cameras) == {"hall", "yard", "gate"}


def test_lines_list_every_camera_without_passwords(tmp_path: Path) -> None:
    reading = read(written(tmp_path, HALL))
    text = "\n".join(lines(reading, with_origin=True))
    assert "password@" not in text
    assert 'source = "rtsp://192.168.1.20/main"' in text
    assert "[cameras.hall.zones.door]" in text
    assert "[cameras.yard]" in text
    found = {row.key: row for row in rows(reading)}
    assert found["cameras.hall.max_fps"].value == 10.0
    assert found["cameras.hall.max_fps"].origin.line == 5
    assert found["cameras.yard.max_fps"].origin.kind == "default"


def test_settings_have_only_values_that_differ_from_the_defaults() -> None:
    camera = Camera(source="hall.mp4", model="m", events=Events(clips=True), max_fps=5.0)
    found = settings(camera)
    assert set(found) == {"source", "model", "events", "max_fps"}
    assert found["events"] == {"clips": True}
