"""Facts, models and settings decide which engines there should be, and nothing else does."""

from __future__ import annotations

from edged.backend.contract import Recipe
from edged.build.standard import Standard
from edged.control.desired import desired
from edged.control.policy import candidates
from tests.unit.control_room import FACTS, box, key_of, model


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


def test_equal_models_have_equal_engines_whatever_they_are_called() -> None:
    assert keys(name="m") == keys(name="n")


def test_another_content_or_another_runtime_are_other_engines() -> None:
    assert not set(keys()) & set(keys("other"))
    assert set(keys()) - set(keys(runtime__openvino="3")) == {key_of(model(), Recipe("openvino")).digest}


def test_a_setting_that_changes_only_how_engines_are_judged_changes_their_standard_and_not_their_keys() -> None:
    strict = {"verify.fp32.cosine": "0.9999999"}
    assert keys() == keys(settings=strict)
    before, after = desired(box(), {"m": model()})["m"], desired(box(), {"m": model(**strict)})["m"]
    assert all(one.standard != other.standard for one, other in zip(before, after, strict=True))
    assert before == desired(box(), {"m": model()})["m"]


def test_no_models_no_engines() -> None:
    assert desired(box(), {}) == {}
