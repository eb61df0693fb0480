"""What a changed configuration means: every key has its part, and only what changed is touched."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edged.config import Access, Config, Engines, Frigate, Http, Zmq
from edged.config.changes import PARTS, Outcome, Part, diff, value, with_value
from edged.config.limits import Limits

NONE = Config()


def test_every_key_of_the_configuration_has_a_part() -> None:
    """A key that is new has to be thought of: what does it touch while the daemon runs?"""
    tables = {key.partition(".")[0] for key in PARTS if "." in key}
    named = set(Config.__struct_fields__)
    assert {key.partition(".")[0] for key in PARTS} == named
    for table in tables:
        inner = {key.partition(".")[2] for key in PARTS if key.startswith(f"{table}.")}
        assert inner == set(getattr(NONE, table).__struct_fields__)
        assert table not in PARTS


def test_every_part_has_a_key() -> None:
    assert set(PARTS.values()) == set(Part)


def test_an_equal_configuration_touches_nothing() -> None:
    assert diff(NONE, Config()) == ()
    assert diff(Config(listen=("a", "b")), Config(listen=("a", "b"))) == ()


@pytest.mark.parametrize(
    ("changed", "key", "part", "told"),
    [
        ({"listen": ("localhost:1",)}, "listen", Part.LISTENERS, "listen: localhost:1 is new"),
        ({"state": "/s"}, "state", Part.START, "state: none → /s"),
        ({"models": {"m": "/m.onnx"}}, "models", Part.MODELS, "models: m is /m.onnx"),
        ({"engines": Engines(budget_mb=5)}, "engines", Part.ENGINES, "engines.budget_mb: 0 → 5"),
        ({"build": Limits(seconds=5.0)}, "build", Part.BUILDS, "build.seconds: 3600.0 → 5.0"),
        ({"frigate": Frigate()}, "frigate", Part.FRIGATE, "frigate: none → there"),
        ({"zmq": Zmq(frames="ipc:///f")}, "zmq.frames", Part.FRAMES, "zmq.frames: none → ipc:///f"),
        ({"http": Http(body_mb=5)}, "http", Part.HTTP, "http.body_mb: 64 → 5"),
        (
            {"allow_shared_memory_over_tcp": True},
            "allow_shared_memory_over_tcp",
            Part.SHARED_MEMORY,
            "allow_shared_memory_over_tcp: false → true",
        ),
    ],
)
def test_a_change_touches_its_part_alone(changed: dict[str, Any], key: str, part: Part, told: str) -> None:
    (change,) = diff(NONE, Config(**changed))
    assert (change.key, change.part, change.told) == (key, part, told)


def test_what_is_gone_what_is_new_and_what_changed_is_told_by_name() -> None:
    old = Config(listen=("a", "b"), models={"m": "/1", "n": "/2"}, frigate=Frigate(labels=1))
    new = Config(listen=("b", "c"), models={"n": "/3", "o": "/4"}, frigate=Frigate(labels=2))
    assert [change.told for change in diff(old, new)] == [
        "listen: without a; listen: c is new",
        "models: without m; models: n is /3; models: o is /4",
        "frigate.labels: 1 → 2",
    ]


def test_what_is_a_list_is_told_as_people_write_it() -> None:
    old, new = Config(), Config(access=Access(grants={"localhost:8001": ("infer", "read"), "localhost:8002": ()}))
    (change,) = diff(old, new)
    assert change.told == "access.grants: localhost:8001 is infer, read; access.grants: localhost:8002 is none"


def test_another_order_is_a_change_that_can_be_told() -> None:
    (change,) = diff(Config(listen=("a", "b")), Config(listen=("b", "a")))
    assert change.told == "listen: in another order"


@pytest.mark.parametrize("key", PARTS)
def test_one_value_is_taken_over_and_no_other(key: str) -> None:
    other = msgspec.structs.replace(
        NONE,
        **{name: msgspec.UNSET for name in Config.__struct_fields__ if name not in ("zmq",)},
        zmq=Zmq(frames="ipc:///f", publish="ipc:///p"),
    )
    taken = with_value(NONE, other, key)
    assert value(taken, key) == value(other, key)
    assert all(value(taken, each) == value(NONE, each) for each in PARTS if each != key)


def test_an_outcome_in_a_line() -> None:
    assert str(Outcome("a", "a: 1 → 2")) == "a: 1 → 2"
    assert str(Outcome("a", "a: 1 → 2", "the port is taken")) == "a: 1 → 2: the port is taken"
