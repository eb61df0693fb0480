"""Changes of the configuration: the changed keys, one line for each, and the effect of a reload."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.config import Access, Config, Describe, Engines, Frigate, Http, Pipeline, Zmq
from edged.config.cameras import Camera
from edged.config.changes import RELOADS, Change, diff, value, with_value
from edged.config.child_limits import Limits
from edged.config.keys import all_keys

DEFAULTS = Config()
HALL = Camera(source="rtsp://user:password@hall/main", model="m")


def test_reloads_cover_every_key() -> None:
    """A new key gets its effect from a `Reload` annotation in the schema: its own, or that of its table."""
    for key in all_keys():
        (unit,) = (each for each in RELOADS if key.name == each or key.name.startswith(f"{each}."))
        assert key.reload is RELOADS[unit]


def test_service_page_describes_the_reload_of_every_key() -> None:
    page = Path(__file__, "../../../docs/service.md").resolve().read_text()
    _, _, table = page.partition("| key | effect of a reload |")
    rows = itertools.takewhile(lambda line: line.startswith("|"), table.splitlines()[2:])
    named = [name for row in rows for name in re.findall(r"`([a-z_.]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(RELOADS)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {}, []),
        ({"listen": ("a", "b")}, {"listen": ("a", "b")}, []),
        ({}, {"state": "/s"}, ["state: none → /s"]),
        ({}, {"models": {"m": "/m.onnx"}}, ["models: m is /m.onnx"]),
        (
            {},
            {"engines": Engines(budget_mb=5), "build": Limits(5.0)},
            ["engines.budget_mb: 0 → 5", "build.seconds: 3600.0 → 5.0"],
        ),
        ({}, {"frigate": Frigate()}, ["frigate: none → new"]),
        ({}, {"zmq": Zmq(frames="ipc:///f")}, ["zmq.frames: none → ipc:///f"]),
        ({}, {"http": Http(body_mb=5)}, ["http.body_mb: 64 → 5"]),
        ({}, {"cameras": {"hall": HALL}}, ["cameras: hall is new"]),
        ({"cameras": {"hall": HALL}}, {}, ["cameras: hall removed"]),
        (
            {"cameras": {"hall": HALL}},
            {"cameras": {"hall": Camera(source="rtsp://user:secret@hall/sub", model="m", max_fps=5.0)}},
            ["cameras.hall.source: rtsp://hall/main → rtsp://hall/sub; cameras.hall.max_fps: 0.0 → 5.0"],
        ),
        ({}, {"allow_shared_memory_over_tcp": True}, ["allow_shared_memory_over_tcp: false → true"]),
        ({"listen": ("a", "b")}, {"listen": ("b", "a")}, ["listen: order changed"]),
        (
            {},
            {"access": Access(grants={"localhost:8001": ("infer", "read"), "localhost:8002": ()})},
            ["access.grants: localhost:8001 is infer, read; access.grants: localhost:8002 is none"],
        ),
        (
            {"listen": ("a", "b"), "models": {"m": "/1", "n": "/2"}, "frigate": Frigate(labels=1)},
            {"listen": ("b", "c"), "models": {"n": "/3", "o": "/4"}, "frigate": Frigate(labels=2)},
            [
                "listen: a removed; listen: c added",
                "models: m removed; models: n is /3; models: o is /4",
                "frigate.labels: 1 → 2",
            ],
        ),
    ],
)
def test_diff_in_lines(old: dict[str, Any], new: dict[str, Any], expected: list[str]) -> None:
    changes = diff(Config(**old), Config(**new))
    assert [change.change for change in changes] == expected
    assert all(change.change.startswith(change.key) and change.key in RELOADS for change in changes)


@pytest.mark.parametrize("key", RELOADS)
def test_with_value_replaces_only_one_key(key: str) -> None:
    given = {
        "zmq": Zmq(frames="ipc:///f", publish="ipc:///p"),
        "describe": {"gate": Describe(camera="gate", model="m")},
        "pipelines": {"plates": Pipeline(detect="m", then="n")},
        "cameras": {"hall": HALL},
    }
    unset = {name: msgspec.UNSET for name in Config.__struct_fields__ if name not in given}
    other = msgspec.structs.replace(DEFAULTS, **unset, **given)
    taken = with_value(DEFAULTS, other, key)
    assert value(taken, key) == value(other, key)
    assert all(value(taken, each) == value(DEFAULTS, each) for each in RELOADS if each != key)


def test_change_as_text_is_one_line() -> None:
    assert str(Change("a", "a: 1 → 2")) == "a: 1 → 2"
    assert str(Change("a", "a: 1 → 2", "the port is taken")) == "a: 1 → 2: the port is taken"
