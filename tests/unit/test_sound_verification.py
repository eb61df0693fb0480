"""Engines of models that take sound: what they are asked, and how their classes are compared."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from edged.backends.contract import Signature
from edged.models import settings as model_settings
from edged.verification import probes, sounds
from edged.verification.shape_range import ShapeRange
from edged.verification.standard import TOLERANCES
from edged.verification.verify import Pair, judge, matcher_for
from edged.vision.family import recognise
from edged.vision.settings import SOUND
from tests.vision_signatures import tensors

INPUTS, OUTPUTS = tensors("input [n,s], state [2,n,128], sr:INT64 []"), tensors("output [n,1], stateN [2,n,128]")
VOICE = recognise(INPUTS, OUTPUTS, {}, {})
SHAPES = {"input": (1, 576), "state": (2, 1, 128), "sr": ()}


def test_seeded_tensors_have_the_shapes_of_a_window_and_the_rate() -> None:
    (first, *_) = probes.tensors(Signature(INPUTS, OUTPUTS), VOICE, ShapeRange())
    for probe in first:
        assert {name: array.shape for name, array in probe.inputs.items()} == SHAPES
        assert probe.inputs["sr"].dtype == np.int64
        assert int(probe.inputs["sr"]) == 16000


def test_made_sounds_are_windows_of_a_new_source() -> None:
    made = list(probes.made_sounds(VOICE))
    assert len({probe.name for probe in made}) == len(made) == 4
    for probe in made:
        assert probe.kind == probes.SOUND
        assert {name: array.shape for name, array in probe.inputs.items()} == SHAPES
        assert not probe.inputs["state"].any()
    for one, other in itertools.combinations(made, 2):
        assert not np.array_equal(one.inputs["input"], other.inputs["input"])


def test_made_sounds_of_a_model_of_pictures_are_none() -> None:
    assert not list(probes.made_sounds(recognise((), (), {}, {})))


@pytest.mark.parametrize(("count", "rate"), [(1, 16000), (576, 16000), (256, 8000), (100, 100)])
def test_made_sounds_are_finite_and_within_full_scale(count: int, rate: int) -> None:
    for _, samples in sounds.made(count, rate):
        assert samples.shape == (count,)
        assert samples.dtype == np.float32
        assert np.abs(samples).max() <= 1


@pytest.mark.parametrize(("difference", "is_good"), [(0.0, True), (0.3, False)])
def test_verdict_compares_the_scores_of_classes(difference: float, is_good: bool) -> None:
    state = np.ones((2, 1, 128), np.float32)
    right = {"output": np.array([[0.4]], np.float32), "stateN": state}
    found = {"output": np.array([[0.4 + difference]], np.float32), "stateN": state}
    verdict = judge([Pair(right, found, "made voice")], TOLERANCES["fp32"], matcher_for(VOICE, 0.0))
    assert verdict.accepted == is_good
    assert verdict.figures["class_score"] == pytest.approx(difference)


@pytest.mark.parametrize("key", SOUND)
def test_settings_of_sound_are_settings_of_a_model(key: str) -> None:
    model_settings.validate({key: "8000"})
