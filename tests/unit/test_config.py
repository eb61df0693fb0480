"""The configuration file: what it may say, and one line for everything that is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.config import Config, Frigate, Http, Zmq, load
from edged.config.checking import contradictions, faults
from edged.config.keys import dotted, tables
from edged.config.limits import HostLimits, Limits
from edged.config.template import disclosed
from edged.errors import ConfigError


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "edged.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load(written(tmp_path, "")) == Config()


def test_everything_can_be_set(tmp_path: Path) -> None:
    text = """
        listen = ["unix:/run/x.sock", "127.0.0.1:8001"]
        state = "/s"
        cache = "/c"
        stop_seconds = 2.5
        [models]
        yolo = "/m/yolo.onnx"
        [build]
        seconds = 10.0
        memory_mb = 100
        [hosts]
        arena_mb = 64
        job_seconds = 3.0
        [frigate]
        endpoint = "tcp://172.17.0.1:5555"
        allow_remote = true
        model = "yolo"
        uploads = true
        score = 0.3
        timeout_ms = 400
        pixel_format = "bgr"
        labels = 80
        [zmq]
        frames = "ipc:///run/f"
        publish = "ipc:///run/p"
        [http]
        listen = "127.0.0.1:8000"
        body_mb = 16
    """
    config = load(written(tmp_path, text))
    assert config.listen == ("unix:/run/x.sock", "127.0.0.1:8001")
    assert (config.state, config.cache, config.stop_seconds) == ("/s", "/c", 2.5)
    assert config.models == {"yolo": "/m/yolo.onnx"}
    assert config.build == Limits(10.0, 100)
    assert config.hosts == HostLimits(64, 3.0)
    assert config.frigate == Frigate(
        endpoint="tcp://172.17.0.1:5555",
        model="yolo",
        uploads=True,
        score=0.3,
        timeout_ms=400,
        pixel_format="bgr",
        labels=80,
        allow_remote=True,
    )
    assert config.zmq == Zmq(frames="ipc:///run/f", publish="ipc:///run/p")
    assert config.http == Http(listen="127.0.0.1:8000", body_mb=16)


def test_an_empty_table_opens_frigates_lane_and_none_leaves_it_closed(tmp_path: Path) -> None:
    assert load(written(tmp_path, "[frigate]")).frigate == Frigate()
    assert load(written(tmp_path, "[zmq]")).frigate is None


def test_whole_numbers_are_seconds_too(tmp_path: Path) -> None:
    assert load(written(tmp_path, "stop_seconds = 3")).stop_seconds == 3


def test_a_file_may_begin_with_the_mark_of_editors_that_leave_one(tmp_path: Path) -> None:
    assert load(written(tmp_path, b"\xef\xbb\xbfstop_seconds = 3")).stop_seconds == 3.0


def test_the_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().state = "/elsewhere"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lisen = []", "did you mean `listen`"),
        ("[hosts]\narena = 5", "did you mean `arena_mb`"),
        ("[build]\nsecond = 5", "did you mean `seconds`"),
        ("[frigate]\nendpont = ''", "did you mean `endpoint`"),
        ("[zmq]\nframe = ''", "did you mean `frames`"),
        ("[http]\nbody = 5", "did you mean `body_mb`"),
        ("[frigate]\npixel_format = 'yuv'", "pixel_format"),
        ("qqqqqqqq = 1", "there are listen, state"),
        ("stop-seconds = 1", "stop-seconds"),
        ("listen = 5", "listen"),
        ("listen = [5]", "listen"),
        ('stop_seconds = "5"', "stop_seconds"),
        ("[models]\nyolo = 5", "models"),
        ("models = []", "models"),
        ("listen = [", "not valid TOML"),
        ("a = 1\na = 2", "not valid TOML"),
        (b'\nstate = "\xff"', "edged.toml:2: not valid TOML: byte 0xff is not UTF-8"),
        (f"listen = [{{{'.'.join('a' * 3000)} = 1}}]", "listen[0]"),
        (f"state = [{{{'.'.join('a' * 3000)} = 1}}]", "nested too deep"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file_and_the_place(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(written(tmp_path, text))
    assert "edged.toml" in str(raised.value)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_a_file_that_cannot_be_read_says_so(tmp_path: Path, what: str) -> None:
    path = tmp_path if what == "folder" else tmp_path / "none.toml"
    with pytest.raises(ConfigError, match="cannot be read"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        "stop_seconds = -1.0",
        "stop_seconds = nan",
        "[hosts]\narena_mb = 0",
        "[hosts]\narena_mb = -1",
        "[hosts]\njob_seconds = 0.0",
        "[hosts]\njob_seconds = nan",
        "[build]\nseconds = 0.0",
        "[build]\nmemory_mb = -1",
        "[frigate]\nscore = 1.5",
        "[frigate]\nscore = nan",
        "[frigate]\ntimeout_ms = 0",
        "[frigate]\nlabels = -1",
        "[http]\nbody_mb = 0",
    ],
)
def test_a_value_out_of_range_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load(written(tmp_path, text))


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """A table with secrets."""

    password: Annotated[str, msgspec.Meta(min_length=9, extra={"secret": True})] = ""
    tokens: Annotated[dict[str, int], msgspec.Meta(extra={"secret": True})] = {}
    ports: tuple[Annotated[int, msgspec.Meta(le=9)], ...] = ()


def test_a_secret_is_neither_repeated_nor_shown() -> None:
    root = tables(Login)
    found = {fault.path: fault.message for fault in faults({"password": "hunter2", "tokens": {"a": "xyz"}}, root)}
    assert set(found) == {("password",), ("tokens", "a")}
    assert "hunter2" not in found["password",]
    assert "xyz" not in found["tokens", "a"]
    password, _, ports = root.keys
    assert disclosed(password, "hunter2") == "(hidden)"
    assert disclosed(password, "") == ""
    assert disclosed(ports, (1,)) == (1,)


def test_everything_that_is_wrong_in_a_list_is_told_with_its_place() -> None:
    found = [(dotted(fault.path), fault.message) for fault in faults({"ports": [1, "x", 3, 10]}, tables(Login))]
    assert found == [
        ("ports[1]", 'expected a whole number, at most 9, got "x"'),
        ("ports[3]", "expected a whole number, at most 9, got 10"),
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*Config.__struct_fields__, "budget_mb", "unix", "x[0]", ""]), inner)
        ),
        max_leaves=20,
    )
)
def test_whatever_a_file_says_what_has_no_faults_can_be_used(tree: object) -> None:
    """Checking and converting agree, apart from keys that contradict each other."""
    if not isinstance(tree, dict):
        return
    wrong = [*faults(tree, tables()), *contradictions(tree, tables())]
    try:
        msgspec.convert(tree, Config)
    except msgspec.ValidationError:
        assert wrong
    else:
        assert not wrong


def test_every_part_refuses_unknown_names() -> None:
    for kind in (Config, Limits, HostLimits, Frigate, Zmq, Http):
        with pytest.raises(msgspec.ValidationError):
            msgspec.toml.decode("no_such_name = 1", type=kind)
