"""Engine keys: the parts that change a key, and engines of other keys that may be tried before a build."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.contract import Recipe
from edged.device.fingerprint import Fingerprint
from edged.device.validity import relevant
from edged.errors import Unsupported
from edged.store import key as key_module
from edged.store.key import EngineKey, PartChange, changes, differ_by_driver, may_be_for, nearest

FACTS = {
    "cpu.arch": "x86_64",
    "cpu.isa": "avx2",
    "cpu.vendor": "GenuineIntel",
    "cpu.model": "N100",
    "cpu.signature": "6-190-0",
    "cpu.threads": "4",
    "cpu.features": "avx avx2",
    "memory.total_mb": "8192",
    "os.kernel": "6.1",
    "libc.version": "2.36",
    "nvidia.driver": "550.1",
    "runtime.onnxruntime": "1.23.0",
    "runtime.openvino": "2026.1",
}
RECIPE = Recipe("onnxruntime")
DECIDING = ("runtime.onnxruntime", "cpu.arch", "cpu.isa", "cpu.vendor", "cpu.model", "cpu.signature")
OTHER_RECIPES = {
    "backend": "openvino",
    "device": "cuda:0",
    "precision": "fp16",
    "optimization": "basic",
    "threads": 2,
    "profile": "x=1:1:8",
    "options": "dla_core=0",
    "calibration": "0123456789ab",
}


def key(model: str = "m" * 64, recipe: Recipe = RECIPE, **facts: str) -> EngineKey:
    return EngineKey.of(model, recipe, Fingerprint(FACTS | {name.replace("__", "."): v for name, v in facts.items()}))


def with_fact(fact: str, value: str | None, recipe: Recipe = RECIPE) -> EngineKey:
    """Return a key of a box on which one fact has another value, or is missing."""
    facts = {name: known for name, known in FACTS.items() if name != fact} | ({} if value is None else {fact: value})
    return EngineKey.of("m" * 64, recipe, Fingerprint(facts))


# -- digests --------------------------------------------------------------------------------------------------------


def test_key_parts_are_format_model_recipe_and_deciding_facts() -> None:
    recipe = [f"recipe.{name}" for name in Recipe.__struct_fields__]
    assert list(key().parts) == ["format", "model", *recipe, *relevant("onnxruntime", "cpu")]
    assert with_fact("cpu.isa", None).parts["cpu.isa"] == "absent"


def test_digest_is_32_hexadecimal_digits_and_survives_json() -> None:
    assert len(key().digest) == 32
    assert int(key().digest, 16) >= 0
    assert msgspec.json.decode(msgspec.json.encode(key()), type=EngineKey).digest == key().digest


def test_digest_but_not_generation_changes_with_model_recipe_and_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(OTHER_RECIPES) == set(Recipe.__struct_fields__)
    others = {name: key(recipe=msgspec.structs.replace(RECIPE, **{name: v})) for name, v in OTHER_RECIPES.items()}
    for name, other in others.items():
        assert f"recipe.{name}" in [change.part for change in changes(key().parts, other.parts)]
    old, model = key(), key(model="n" * 64)
    monkeypatch.setattr(key_module, "FORMAT", "next")
    assert [change.part for change in changes(old.parts, key().parts)] == ["format"]
    assert len({each.digest for each in (old, model, key(), *others.values())}) == 3 + len(others)
    same = [model, key(), others["precision"], others["threads"]]
    assert {each.generation for each in same} == {old.generation}
    assert old.generation not in {others["backend"].generation, others["device"].generation}


@pytest.mark.parametrize("fact", FACTS)
def test_digest_and_generation_change_only_with_deciding_facts(fact: str) -> None:
    changed, gone = with_fact(fact, "another"), with_fact(fact, None)
    count = 3 if fact in DECIDING else 1
    assert len({key().digest, changed.digest, gone.digest}) == count
    assert len({key().generation, changed.generation, gone.generation}) == count
    expected = (PartChange(fact, FACTS[fact], "another"),) if fact in DECIDING else ()
    assert changes(key().parts, changed.parts) == expected


def test_digest_of_a_gpu_depends_only_on_the_facts_of_that_gpu() -> None:
    gpus = {"gpu.0.name": "A", "gpu.1.name": "B", "gpu.1.compute_capability": "8.7"}

    def on(device: str, **more: str) -> str:
        return EngineKey.of("m", Recipe("onnxruntime", device=device), Fingerprint(FACTS | gpus | more)).digest

    assert on("cuda:0") != on("cuda:1") == on("cuda:1", **{"gpu.0.name": "C"})
    assert on("cuda:1", **{"gpu.1.name": "C"}) != on("cuda:1")


def test_key_for_hardware_that_a_backend_does_not_support_is_refused() -> None:
    with pytest.raises(Unsupported):
        key(recipe=Recipe("openvino", device="cuda:0"))


PARTS = st.dictionaries(st.text("ab=\n;", max_size=3), st.text("ab=\n;", max_size=3), max_size=4)


@given(PARTS, PARTS)
def test_digest_differs_for_different_parts(one: dict[str, str], other: dict[str, str]) -> None:
    same = list(one.items()) == list(other.items())
    assert (EngineKey(one).digest == EngineKey(other).digest) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "bc"}, {"ab": "c"}),
        ({"a": "b", "c": "d"}, {"a": "bcd"}),
        ({"a": "", "b": ""}, {"a": "b", "": ""}),
        ({"a": "b"}, {"a": "b", "": ""}),
        ({"a": "b", "c": "d"}, {"c": "d", "a": "b"}),
        ({}, {"": ""}),
    ],
)
def test_digest_of_similar_parts_differs(one: dict[str, str], other: dict[str, str]) -> None:
    assert EngineKey(one).digest != EngineKey(other).digest


# -- engines that may be tried before a build -----------------------------------------------------------------------

GPU = Recipe("onnxruntime", device="cuda:0")
NEWER = {"nvidia.driver": "560.1"}


@pytest.mark.parametrize(
    ("facts", "may"),
    [
        *(({fact: "another"}, True) for fact in ("nvidia.driver", "nvidia.kernel_module", "cpu.model", "cpu.vendor")),
        (NEWER | {"nvidia.kernel_module": "560.1", "cpu.signature": "6-191-0"}, True),
        ({}, False),
        *(
            (NEWER | {fact: "another"}, False)
            for fact in ("runtime.onnxruntime", "cpu.isa", "cpu.arch", "gpu.0.name", "cudnn.version")
        ),
    ],
    ids=str,
)
def test_differ_by_driver_allows_only_other_drivers_and_processor_models(facts: dict[str, str], may: bool) -> None:
    one, other = (EngineKey.of("m" * 64, GPU, Fingerprint(FACTS | more)).parts for more in ({}, facts))
    assert differ_by_driver(one, other) is differ_by_driver(other, one) is may


def test_differ_by_driver_refuses_another_model_recipe_or_format(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = EngineKey.of("m" * 64, GPU, Fingerprint(FACTS | NEWER)).parts
    assert differ_by_driver(with_fact("nvidia.driver", None, GPU).parts, newer)
    assert not differ_by_driver(key(model="n" * 64, recipe=GPU).parts, newer)
    assert not differ_by_driver(key(recipe=msgspec.structs.replace(GPU, threads=2)).parts, newer)
    monkeypatch.setattr(key_module, "FORMAT", "next")
    assert not differ_by_driver(key(recipe=GPU).parts, newer)


NAMED = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("xyz"), max_size=6)


@given(NAMED, NAMED)
def test_changes_applied_to_the_old_parts_give_the_new(old: dict[str, str], new: dict[str, str]) -> None:
    walked = dict(old)
    for change in changes(old, new):
        assert change.old != change.new
        assert walked.get(change.part) == change.old
        if change.new is None:
            del walked[change.part]
        else:
            walked[change.part] = change.new
    assert walked == new
    assert len(changes(old, new)) == len(changes(new, old))
    assert changes(old, old) == ()


def test_changes_follow_the_order_of_the_new_parts() -> None:
    found = changes({"a": "1", "gone": "x", "b": "1"}, {"b": "2", "new": "y", "a": "2"})
    assert [change.part for change in found] == ["b", "new", "a", "gone"]


STORED = st.dictionaries(
    st.text("0123456789abcdef", min_size=4, max_size=4),
    st.fixed_dictionaries(
        {"model": st.sampled_from("MN"), "recipe.backend": st.sampled_from("BC"), "x": st.sampled_from("123")},
        optional={"y": st.sampled_from("12")},
    ),
    max_size=6,
)


@given(STORED)
def test_nearest_prefers_backend_then_model_then_fewest_changes(
    stored: dict[str, dict[str, str]],
) -> None:
    wanted = {"model": "M", "recipe.backend": "B", "x": "1", "y": "1"}

    def apart(parts: dict[str, str]) -> tuple[bool, int]:
        return parts["model"] != "M", sum(parts.get(name) != wanted.get(name) for name in {*parts, *wanted})

    rivals = {digest: parts for digest, parts in stored.items() if parts["recipe.backend"] == "B"}
    found = nearest(wanted, stored.items())
    if not rivals:
        assert found is None
    else:
        assert found is not None
        assert apart(rivals[found]) == min(map(apart, rivals.values()))
        assert found == nearest(wanted, reversed(stored.items()))


# -- built for another device ---------------------------------------------------------------------------------------

AHEAD = Recipe("tensorrt_rtx", "cuda:0", options="workspace_mb=1024")
CARD = {
    "runtime.tensorrt_rtx": "1.7",
    "cpu.arch": "x86_64",
    "gpu.0.compute_capability": "8.6",
    "gpu.0.name": "RTX A2000",
    "gpu.0.memory_mb": "6138",
    "nvidia.driver": "550.1",
}


def built_ahead(recipe: Recipe = AHEAD, *unknown: str, **facts: str) -> dict[str, str]:
    known = CARD | {name.replace("__", "."): value for name, value in facts.items()}
    known = {name: value for name, value in known.items() if name not in unknown}
    return EngineKey.of("m", recipe, Fingerprint(known)).parts


@pytest.mark.parametrize(
    ("built", "may"),
    [
        (built_ahead(), True),
        (built_ahead(AHEAD, "gpu.0.name", "gpu.0.memory_mb", "nvidia.driver"), True),
        (built_ahead(AHEAD, nvidia__driver="540.1"), True),
        (built_ahead(msgspec.structs.replace(AHEAD, options="workspace_mb=512")), True),
        (built_ahead(msgspec.structs.replace(AHEAD, options="version_compatible;workspace_mb=1024")), False),
        *(
            (built_ahead(AHEAD, **{fact: "other"}), False)
            for fact in (
                "gpu__0__compute_capability",
                "gpu__0__name",
                "runtime__tensorrt_rtx",
                "cpu__arch",
                "gpu__0__memory_mb",
            )
        ),
        *(
            (built_ahead(msgspec.structs.replace(AHEAD, **change)), False)
            for change in ({"precision": "fp16"}, {"profile": "x=1:1:1"}, {"optimization": "5"})
        ),
        (built_ahead() | {"model": "n"}, False),
    ],
    ids=[
        *("same", "unknown facts", "other driver", "other workspace", "other option"),
        *("capability", "GPU", "runtime", "architecture", "memory", "precision", "profile", "optimization", "model"),
    ],
)
def test_may_be_for_allows_unknown_facts_another_driver_and_workspace(built: dict[str, str], may: bool) -> None:
    assert may_be_for(built, built_ahead()) is may


def test_may_be_for_refuses_a_device_that_lacks_a_known_fact() -> None:
    assert not may_be_for(built_ahead(), built_ahead(AHEAD, "gpu.0.name"))


# -- compatible engines of TensorRT ---------------------------------------------------------------------------------


VERSION, HARDWARE = "version_compatible;workspace_mb=64", "hardware_compatible;workspace_mb=64"


def of_tensorrt(options: str, **facts: str) -> dict[str, str]:
    recipe = Recipe("tensorrt", "cuda:0", options=options)
    known = CARD | {"tensorrt.version": "10.3.0.30", "runtime.tensorrt": "10.3.0"}
    return EngineKey.of("m", recipe, Fingerprint(known | {n.replace("__", "."): v for n, v in facts.items()})).parts


@pytest.mark.parametrize(
    ("options", "facts", "may"),
    [
        (
            VERSION,
            {"tensorrt__version": "10.16.1.11", "runtime__tensorrt": "10.16.1"},
            True,
        ),
        (VERSION, {"tensorrt__version": "11.0.0.1", "runtime__tensorrt": "11.0.0"}, False),
        ("workspace_mb=64", {"tensorrt__version": "10.16.1.11"}, False),
        (HARDWARE, {"gpu__0__name": "L4", "gpu__0__compute_capability": "8.9"}, True),
        (HARDWARE, {"gpu__0__compute_capability": "7.5"}, False),
        (HARDWARE, {"tensorrt__version": "10.16.1.11"}, False),
        ("workspace_mb=64", {"gpu__0__compute_capability": "8.9"}, False),
        (VERSION, {"cpu__arch": "aarch64", "tensorrt__version": "10.16.1.11"}, False),
    ],
)
def test_differ_by_driver_allows_versions_that_an_engine_supports(
    options: str, facts: dict[str, str], may: bool
) -> None:
    assert differ_by_driver(of_tensorrt(options), of_tensorrt(options, **facts)) is may
