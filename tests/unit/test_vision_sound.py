"""Models that take sound: recognised by their tensors, fed with windows, decoded to classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import ConfigError, EngineUnusable, InvalidInput
from edged.vision.family import Recognition, open_sound, recognise
from edged.vision.sound import Sound, State, Windows, samples_of
from tests.vision_signatures import tensors

V5 = "input [n,s], state [2,n,128], sr:INT64 []", "output [n,1], stateN [a,b,c]"
V4 = "input [n,s], sr:INT64 [], h [2,n,64], c [2,n,64]", "output [n,1], hn [2,n,64], cn [2,n,64]"
YAMNET = "waveform [s]", "output_0 [r,521], output_1 [r,1024], output_2 [m,64]"
PANNS = "input [b,s]", "embedding [b,2048], clipwise_output [b,527]"
OTHER = "audio [1,8000]", "scores [1,10]"


def found(model: tuple[str, str], **settings: str) -> Recognition:
    given = {key.replace("_", ".", 1): value for key, value in settings.items()}
    return recognise(tensors(model[0]), tensors(model[1]), {}, given)


def sound(model: tuple[str, str], **settings: str) -> Sound:
    heard = found(model, **settings).sound
    assert heard is not None
    return heard


# -- recognition -----------------------------------------------------------------------------------------------------


def test_silero_v5_gets_windows_of_512_after_a_context_of_64() -> None:
    expected = Sound("input", 16000, 512, 512, 64, False, "sr", (), (State("state", "stateN", (2, 1, 128)),))
    assert sound(V5) == expected
    assert found(V5).names == ("speech",)
    assert found(V5).reading.outputs == ("output",)


def test_silero_at_8_khz_has_half_the_window_and_context() -> None:
    heard = sound(V5, sound_rate="8000")
    assert (heard.rate, heard.window, heard.context) == (8000, 256, 32)


def test_silero_v4_has_two_states_and_no_context() -> None:
    heard = sound(V4)
    assert (heard.window, heard.context) == (512, 0)
    assert heard.states == (State("h", "hn", (2, 1, 64)), State("c", "cn", (2, 1, 64)))


def test_silero_without_rate_input_takes_16_khz_only() -> None:
    model = "input [1,576], state [2,1,128]", "output [1,1], stateN [2,1,128]"
    assert sound(model).rate_input == ""
    with pytest.raises(ConfigError, match=r"sound\.rate=8000"):
        found(model, sound_rate="8000")


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("input [n,512], state [2,n,128], sr:INT64 []", V5[1]),  # no room for the context
        ("input [n,s], state [2,n,64], sr:INT64 []", V5[1]),
        ("input [n,s], state [2,n,128], sr []", V5[1]),
        (V5[0], "output [n,2], stateN [a,b,c]"),
        (V5[0], "output [n,1]"),
        ("input [l,576], h [1,1,128], c [1,1,128]", "speech_probs [l], hn [1,x,128], cn [1,x,128]"),
    ],
)
def test_silero_with_other_tensors_is_not_recognised(inputs: str, outputs: str) -> None:
    assert found((inputs, outputs)).sound is None


def test_yamnet_and_panns_are_recognised_by_their_classes() -> None:
    yamnet, panns = sound(YAMNET), sound(PANNS)
    assert (yamnet.rate, yamnet.window, yamnet.shape) == (16000, 15600, (15600,))
    assert (panns.rate, panns.window, panns.shape) == (32000, 320000, (1, 320000))
    assert found(PANNS).reading.outputs == ("clipwise_output",)


@pytest.mark.parametrize("inputs", ["embedding [n,2048]", "embedding [1,1024]", "a [n,s], b [n,s]", "x [n,64,96,1]"])
def test_model_with_the_classes_of_a_tagger_but_no_samples_is_not_recognised(inputs: str) -> None:
    assert found((inputs, "scores [n,521]")).sound is None


def test_other_tagger_needs_the_setting_and_its_rate() -> None:
    assert found(OTHER).sound is None
    with pytest.raises(ConfigError, match=r"set sound\.rate"):
        found(OTHER, family="audio-tags")
    heard = sound(OTHER, family="audio-tags", sound_rate="8000", sound_hop="4000")
    assert (heard.rate, heard.window, heard.hop) == (8000, 8000, 4000)


@pytest.mark.parametrize(
    "settings",
    [
        {"sound_rate": "0"},
        {"sound_rate": "16000.5"},
        {"sound_window": "99999999"},
        {"sound_window": "100", "sound_hop": "101"},
        {"sound_windows": "100"},
        {"names": "one,two"},
    ],
)
def test_recognise_invalid_setting_of_sound_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        found(YAMNET, **settings)


def test_silero_refuses_another_window() -> None:
    with pytest.raises(ConfigError, match=r"sound\.window"):
        found(V5, sound_window="1024")


def test_setting_of_a_sound_family_needs_its_tensors() -> None:
    with pytest.raises(ConfigError, match="needs tensors like"):
        found(("images [1,3,64,64]", "output [1,10]"), family="silero-vad")


def test_setting_raw_turns_recognition_off() -> None:
    assert found(V5, family="raw").sound is None


# -- samples and windows ---------------------------------------------------------------------------------------------


def test_samples_of_both_formats_are_floats() -> None:
    expected = np.array([0.0, 0.5, -1.0], np.float32)
    assert np.array_equal(samples_of(np.array([0, 16384, -32768], "<i2").tobytes(), "s16", 8000), expected)
    assert np.array_equal(samples_of(expected.tobytes(), "f32", 8000), expected)


@pytest.mark.parametrize("data", [b"\0" * 6, np.array([np.nan], "<f4").tobytes(), np.array([np.inf], "<f4").tobytes()])
def test_samples_that_are_cut_or_not_finite_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        samples_of(data, "f32", 8000)


def test_samples_of_more_than_ten_minutes_are_refused() -> None:
    assert len(samples_of(bytes(2 * 600), "s16", 1)) == 600
    with pytest.raises(InvalidInput, match="stream"):
        samples_of(bytes(2 * 601), "s16", 1)


@given(st.lists(st.integers(0, 40)), st.integers(1, 9), st.integers(0, 5), st.data())
def test_windows_do_not_depend_on_the_length_of_frames(
    lengths: list[int], window: int, context: int, data: st.DataObject
) -> None:
    hop = data.draw(st.integers(1, window))
    cut = Windows(Sound("x", 1, window, hop, context))
    samples = np.arange(1, sum(lengths) + 1, dtype=np.float32)
    parts = np.split(samples, np.cumsum(lengths))
    windows = [each for part in parts for each in cut.feed(part)]
    padded = np.concatenate((np.zeros(context, np.float32), samples))
    starts = range(0, max(0, len(samples) - window + 1), hop)
    assert np.array_equal(windows, [padded[at : at + context + window] for at in starts] or windows)
    assert len(windows) == len(starts)
    last = cut.rest()
    covered = (len(starts) - 1) * hop + window if starts else 0
    assert len(last) == (len(samples) > covered)
    if last:
        kept = padded[len(starts) * hop :]
        assert np.array_equal(last[0][: len(kept)], kept)
        assert not last[0][len(kept) :].any()


# -- decoding --------------------------------------------------------------------------------------------------------


def test_scores_are_the_highest_of_the_rows() -> None:
    family = open_sound(found(OTHER, family="audio-tags", sound_rate="8000"))
    rows = np.zeros((2, 10), np.float32)
    rows[0, 3], rows[1, 3], rows[1, 7] = 0.4, 0.9, 0.2
    scores = family.scores({"scores": rows})
    assert family.classes(scores, family.thresholds).class_ids == (3,)
    assert scores[7] == np.float32(0.2)


def test_scores_that_are_not_finite_count_as_zero() -> None:
    family = open_sound(found(V5))
    assert family.scores({"output": np.array([[np.nan]], np.float32)}).tolist() == [0.0]


def test_scores_without_rows_are_zero() -> None:
    family = open_sound(found(YAMNET))
    assert not family.scores({"output_0": np.zeros((0, 521), np.float32)}).any()


@pytest.mark.parametrize("shape", [(1, 2), (1,), (1, 1, 1)])
def test_scores_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EngineUnusable):
        open_sound(found(V5)).scores({"output": np.zeros(shape, np.float32)})


def test_activation_of_the_settings_is_applied() -> None:
    settings = {"family": "audio-tags", "sound_rate": "8000", "decode_activation": "sigmoid"}
    scores = open_sound(found(OTHER, **settings)).scores({"scores": np.zeros((1, 10), np.float32)})
    assert np.allclose(scores, 0.5)
