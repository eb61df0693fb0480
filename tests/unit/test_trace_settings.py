"""Trace settings by their names on the wire."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import InvalidInput
from edged.serving.trace_settings import Changes, TraceSettings, read, shown


def test_what_is_set_is_what_is_shown() -> None:
    values = {
        "trace_file": ["mine.json"],
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": ["3"],
        "trace_count": ["7"],
        "log_frequency": ["2"],
        "trace_mode": ["triton"],
    }
    assert shown(read(values, Changes()).over(TraceSettings())) == values


def test_without_settings_nothing_is_traced() -> None:
    assert shown(TraceSettings())["trace_level"] == ["OFF"]
    assert not TraceSettings().is_on


def test_a_setting_without_values_is_taken_back_and_others_stay() -> None:
    before = Changes(rate=5, count=9)
    assert read({"trace_rate": []}, before) == Changes(count=9)


def test_off_takes_precedence_over_nothing_and_old_names_still_mean_timestamps() -> None:
    assert read({"trace_level": ["OFF"]}, Changes()).levels == ()
    assert read({"trace_level": ["MAX"]}, Changes()).levels == ("TIMESTAMPS",)
    assert read({"trace_level": ["TENSORS", "TIMESTAMPS", "TENSORS"]}, Changes()).levels == ("TIMESTAMPS", "TENSORS")


def test_settings_of_one_model_lie_over_those_of_all() -> None:
    everywhere = Changes(rate=2, levels=("TIMESTAMPS",)).over(TraceSettings())
    assert Changes(rate=1).over(everywhere) == TraceSettings(levels=("TIMESTAMPS",), rate=1)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/etc/passwd", "a/b", ".hidden", "a\x00b", "a\nb", "a b", "x" * 101, "-x", "ü"]
)
def test_a_file_is_a_plain_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="plain file name"):
        read({"trace_file": [name]}, Changes())


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("trace_rate", ["0"]),
        ("trace_rate", ["-1"]),
        ("trace_rate", ["1", "2"]),
        ("trace_rate", ["many"]),
        ("trace_rate", ["1.5"]),
        ("trace_rate", ["99999999999999999999"]),
        ("trace_rate", ["٣"]),  # a digit that int() would take
        ("trace_count", ["-2"]),
        ("log_frequency", ["-1"]),
        ("trace_level", ["LOUD"]),
        ("trace_level", ["TIMESTAMPS", "LOUD"]),
        ("trace_mode", ["opentelemetry"]),
        ("trace_colour", ["red"]),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(setting: str, values: list[str]) -> None:
    with pytest.raises(InvalidInput, match=setting):
        read({setting: values}, Changes())


_NAMES = st.sampled_from([*shown(TraceSettings()), "trace_colour"])


@given(st.dictionaries(_NAMES | st.text(), st.lists(st.text() | st.integers().map(str), max_size=3)))
def test_whatever_is_sent_is_taken_or_refused(values: dict[str, list[str]]) -> None:
    with contextlib.suppress(InvalidInput):
        settings = read(values, Changes()).over(TraceSettings())
        assert settings.rate >= 1
        assert "/" not in settings.file
