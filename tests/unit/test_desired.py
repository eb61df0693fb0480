"""Facts, models and settings decide which engines there should be, and nothing else does."""

from __future__ import annotations

import pytest

from edged.backends.contract import Recipe
from edged.device.fingerprint import Fingerprint
from edged.engines.desired import DesiredEngine, candidates, desired
from edged.errors import ConfigError
from edged.models.model import Model
from edged.verification.standard import Standard
from tests.unit.control_room import FACTS, box, entry, inspection, key_of, model


def keys(content: str = "content", name: str = "m", settings: dict[str, str] | None = None, **facts: str) -> list[str]:
    of = model(name, content, **(settings or {}))
    return [engine.key.digest for engine in desired(box(**facts), {name: of})[name]]


def test_every_candidate_of_every_model_has_its_key_in_order_of_preference() -> None:
    models = {"m": model("m", "one"), "n": model("n", "two", backends="null")}
    found = desired(box(), models)
    assert list(found) == ["m", "n"]
    for name, engines in found.items():
        recipes = candidates(models[name].entry.settings, FACTS)
        assert tuple(engine.recipe for engine in engines) == recipes
        assert [engine.key for engine in engines] == [key_of(models[name], recipe) for recipe in recipes]


def test_every_engine_is_held_to_the_standard_of_its_model_in_its_precision() -> None:
    of = model(precisions="fp32,bf16")
    for engine in desired(box(), {"m": of})["m"]:
        assert engine.standard == Standard.of(of, engine.recipe.precision).digest
    standards = {engine.recipe.precision: engine.standard for engine in desired(box(), {"m": of})["m"]}
    assert standards["fp32"] != standards["bf16"]


def test_another_content_or_another_runtime_are_other_engines() -> None:
    assert not set(keys()) & set(keys("other"))
    assert set(keys()) - set(keys(runtime__openvino="3")) == {key_of(model(), Recipe("openvino")).digest}


def test_a_setting_that_changes_only_how_engines_are_judged_changes_their_standard_and_not_their_keys() -> None:
    strict = {"verify.fp32.cosine": "0.9999999"}
    assert keys() == keys(settings=strict)
    before, after = desired(box(), {"m": model()})["m"], desired(box(), {"m": model(**strict)})["m"]
    assert all(one.standard != other.standard for one, other in zip(before, after, strict=True))
    assert before == desired(box(), {"m": model()})["m"]


def on_a_gpu(settings: dict[str, str], shape: tuple[int | str, ...]) -> list[DesiredEngine]:
    facts = {
        "runtime.tensorrt": "10.3.0",
        "tensorrt.version": "10.3.0.30",
        "gpu.0.compute_capability": "8.6",
        "gpu.0.memory_mb": "8192",
    }
    of = Model.of(entry(**settings), inspection(shape=shape))
    found = desired(Fingerprint(FACTS | facts), {"m": of})["m"]
    return [engine for engine in found if engine.recipe.backend == "tensorrt"]


def test_tensorrt_is_given_the_shapes_and_options_that_are_part_of_its_key() -> None:
    before = on_a_gpu({"precisions": "fp32"}, ("batch", 4))
    (engine,) = before
    assert engine.problem == ""
    assert engine.lane == "cuda:0"
    assert engine.recipe.profile == "x=1x4:1x4:8x4"
    assert engine.recipe.options == "workspace_mb=2048"
    assert engine.recipe.optimization == "3"
    for settings in ({"profile.x": "1x4"}, {"tensorrt.workspace_mb": "64"}, {"tensorrt.builder_level": "5"}):
        (other,) = on_a_gpu({"precisions": "fp32", **settings}, ("batch", 4))
        assert other.key != engine.key
    assert on_a_gpu({"precisions": "fp32"}, (1, 4))[0].recipe.profile == ""


def test_an_engine_that_cannot_be_made_says_what_to_set() -> None:
    for engine in on_a_gpu({}, (1, "length")):
        assert 'set profile.x = "' in engine.problem
    (engine,) = on_a_gpu({"precisions": "int8"}, (1, 4))
    assert engine.problem.startswith("int8 is calibrated on pictures")
    (engine,) = on_a_gpu({"precisions": "fp32", "tensorrt.workspace_mb": "9000"}, (1, 4))
    assert "9000" in engine.problem


def test_a_range_of_shapes_for_what_is_no_input_is_told_whatever_backend_there_is() -> None:
    with pytest.raises(ConfigError, match=r"profile\.z"):
        model(**{"profile.z": "1x4"})
