"""A model's settings: what is accepted, and that what was written is read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import ConfigError
from edged.models.settings import backends, parse_assignments, precisions, read_toml, threads, validate, write_toml

# What lies beyond has a test of its own.
TEXT = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))


@given(st.dictionaries(TEXT, TEXT))
def test_settings_that_were_written_are_read_again(settings: dict[str, str]) -> None:
    assert read_toml(write_toml(settings)) == settings


@pytest.mark.parametrize("value", ["😀", "\U0001d518"])
def test_settings_of_any_characters_are_read_again(value: str) -> None:
    assert read_toml(write_toml({"names": value})) == {"names": value}


def test_what_people_write_by_hand_becomes_flat_text() -> None:
    text = b"""
        threads = 2
        backends = ["openvino", "onnxruntime"]
        [preprocess]
        scale = 0.5
        swap = true
        [thresholds]
        score = 0.25
    """
    assert read_toml(text) == {
        "threads": "2",
        "backends": "openvino,onnxruntime",
        "preprocess.scale": "0.5",
        "preprocess.swap": "true",
        "thresholds.score": "0.25",
    }


@pytest.mark.parametrize("text", [b"threads", b"= 1", b"a = 1\na = 2", b"\xff\xfe", b"a = [1", b"a = " + b"9" * 5000])
def test_what_is_no_toml_is_a_mistake_in_one_line(text: bytes) -> None:
    with pytest.raises(ConfigError, match="not valid TOML") as raised:
        read_toml(text)
    assert "\n" not in str(raised.value)


def test_words_of_a_command_line_are_assignments() -> None:
    assert parse_assignments(["a=1", " b = two words ", "c=x=y", "d="]) == {
        "a": "1",
        "b": "two words",
        "c": "x=y",
        "d": "",
    }
    assert parse_assignments([]) == {}


@pytest.mark.parametrize("word", ["a", "", "=1", " =1"])
def test_a_word_that_is_no_assignment_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_assignments([word])


@pytest.mark.parametrize("key", ["backends", "threads", "family", "names", "preprocess.scale", "thresholds.score"])
def test_known_names_are_accepted(key: str) -> None:
    validate({key: {"backends": "null", "threads": "1"}.get(key, "x")})


@pytest.mark.parametrize(
    ("key", "hint"), [("thread", "threads"), ("backend", "backends"), ("familly", "family"), ("qqqq", "preprocess")]
)
def test_an_unknown_name_is_refused_and_the_nearest_or_all_are_named(key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        validate({key: "1"})


@pytest.mark.parametrize("key", ["preprocess", "thresholds", "", "preprocess_scale"])
def test_a_prefix_alone_is_no_setting(key: str) -> None:
    with pytest.raises(ConfigError):
        validate({key: "1"})


def test_backends_are_a_list_in_order_of_preference() -> None:
    assert backends({}) is None
    assert backends({"backends": " openvino , null,"}) == ("openvino", "null")


@pytest.mark.parametrize("text", ["", ",", "tensorflow", "openvino,cuda"])
def test_backends_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="choose from"):
        validate({"backends": text})


def test_threads_are_numbers_to_try_each_once() -> None:
    assert threads({}) == (0,)
    assert threads({"threads": "0"}) == (0,)
    assert threads({"threads": "1024"}) == (1024,)
    assert threads({"threads": "2, 1,2 "}) == (2, 1)


def test_precisions_are_those_to_try_in_their_order() -> None:
    assert precisions({}) is None
    assert precisions({"precisions": "bf16, fp32,bf16"}) == ("bf16", "fp32")


@pytest.mark.parametrize("text", ["", ",", "fp8", "FP32", "fp32 bf16"])
def test_precisions_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="choose from fp32"):
        validate({"precisions": text})


@pytest.mark.parametrize("text", ["", "-1", "1025", "1.5", "two", "1 2", "1,", "1e3", "²", "1,2,3,4,5,6,7,8,9"])
def test_threads_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        validate({"threads": text})


def test_a_number_of_endless_digits_is_refused() -> None:
    with pytest.raises(ConfigError):
        validate({"threads": "9" * 5000})
