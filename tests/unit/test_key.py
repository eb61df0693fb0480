"""Every part of a key is there for a reason: one test for each that must change it, and for what must not."""

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


def test_the_same_question_has_the_same_digest_of_32_hexadecimal_digits() -> None:
    assert key().digest == key().digest
    assert len(key().digest) == 32
    assert int(key().digest, 16) >= 0


def test_the_format_comes_first_and_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    old = key()
    assert next(iter(old.parts)) == "format"
    monkeypatch.setattr(key_module, "FORMAT", "next")
    assert key().digest != old.digest
    assert [change.part for change in changes(old.parts, key().parts)] == ["format"]


def test_the_content_of_the_model_changes_the_digest() -> None:
    assert key(model="n" * 64).digest != key().digest


@pytest.mark.parametrize("name", OTHER_RECIPES)
def test_every_part_of_the_recipe_changes_the_digest(name: str) -> None:
    other = msgspec.structs.replace(RECIPE, **{name: OTHER_RECIPES[name]})
    assert key(recipe=other).digest != key().digest
    assert f"recipe.{name}" in [change.part for change in changes(key().parts, key(recipe=other).parts)]


def test_no_part_of_the_recipe_is_left_out_of_these_tests() -> None:
    assert set(OTHER_RECIPES) == set(Recipe.__struct_fields__)


@pytest.mark.parametrize("fact", DECIDING)
def test_a_fact_that_decides_changes_the_digest_when_it_changes_and_when_it_goes(fact: str) -> None:
    changed = EngineKey.of("m" * 64, RECIPE, Fingerprint(FACTS | {fact: "another"}))
    gone = EngineKey.of("m" * 64, RECIPE, Fingerprint({n: v for n, v in FACTS.items() if n != fact}))
    assert len({key().digest, changed.digest, gone.digest}) == 3
    assert changes(key().parts, changed.parts) == (PartChange(fact, FACTS[fact], "another"),)


@pytest.mark.parametrize("fact", sorted(set(FACTS) - set(DECIDING)))
def test_a_fact_that_decides_nothing_does_not_change_the_digest(fact: str) -> None:
    changed = EngineKey.of("m" * 64, RECIPE, Fingerprint(FACTS | {fact: "another"}))
    gone = EngineKey.of("m" * 64, RECIPE, Fingerprint({n: v for n, v in FACTS.items() if n != fact}))
    assert changed.digest == gone.digest == key().digest


def test_another_gpu_of_the_box_is_another_key_and_only_its_own_facts_count() -> None:
    gpus = {"gpu.0.name": "A", "gpu.1.name": "B", "gpu.1.compute_capability": "8.7"}

    def on(device: str, **more: str) -> EngineKey:
        return EngineKey.of("m", Recipe("onnxruntime", device=device), Fingerprint(FACTS | gpus | more))

    assert on("cuda:0").digest != on("cuda:1").digest
    assert on("cuda:1", **{"gpu.0.name": "C"}).digest == on("cuda:1").digest
    assert on("cuda:1", **{"gpu.1.name": "C"}).digest != on("cuda:1").digest


def test_a_backend_has_no_key_for_hardware_that_it_does_not_know() -> None:
    with pytest.raises(Unsupported):
        key(recipe=Recipe("openvino", device="cuda:0"))


PARTS = st.dictionaries(st.text("ab=\n;", max_size=3), st.text("ab=\n;", max_size=3), max_size=4)


@given(PARTS, PARTS)
def test_two_different_sets_of_parts_never_have_one_digest(one: dict[str, str], other: dict[str, str]) -> None:
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
def test_moving_a_letter_from_one_part_to_another_changes_the_digest(
    one: dict[str, str], other: dict[str, str]
) -> None:
    assert EngineKey(one).digest != EngineKey(other).digest


def test_a_key_that_was_written_and_read_again_has_its_digest() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(key()), type=EngineKey)
    assert stored.digest == key().digest


# -- what a part is for ---------------------------------------------------------------------------------------------


def test_every_part_is_named_after_the_format_the_model_the_recipe_or_a_fact_and_in_that_order() -> None:
    names = list(key().parts)
    recipe = [f"recipe.{name}" for name in Recipe.__struct_fields__]
    assert names[: 2 + len(recipe)] == ["format", "model", *recipe]
    assert names[2 + len(recipe) :] == list(relevant("onnxruntime", "cpu"))


def test_a_fact_that_the_box_lacks_is_named_as_absent() -> None:
    parts = EngineKey.of("m", RECIPE, Fingerprint({"cpu.arch": "x86_64"})).parts
    assert parts["cpu.arch"] == "x86_64"
    assert parts["runtime.onnxruntime"] == "absent"


@pytest.mark.parametrize("fact", DECIDING)
def test_engines_of_other_facts_do_not_share_a_host(fact: str) -> None:
    changed = EngineKey.of("m" * 64, RECIPE, Fingerprint(FACTS | {fact: "another"}))
    assert changed.generation != key().generation


def test_engines_of_equal_facts_share_a_host_whatever_their_model_and_recipe() -> None:
    assert key(model="n" * 64).generation == key().generation
    assert key(recipe=Recipe("onnxruntime", precision="fp16", threads=4)).generation == key().generation
    assert key(recipe=Recipe("openvino")).generation != key().generation


def test_a_new_format_is_no_reason_for_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    old = key()
    monkeypatch.setattr(key_module, "FORMAT", "next")
    assert key().generation == old.generation


# -- which engines may be tried instead of built --------------------------------------------------------------------

GPU = Recipe("onnxruntime", device="cuda:0")


def gpu_key(**facts: str) -> EngineKey:
    return key(recipe=GPU, **facts)


@pytest.mark.parametrize("fact", ["nvidia__driver", "nvidia__kernel_module", "cpu__model", "cpu__vendor"])
def test_engines_that_differ_by_a_driver_or_the_model_of_the_processor_may_be_tried(fact: str) -> None:
    assert differ_by_driver(gpu_key().parts, gpu_key(**{fact: "another"}).parts)
    assert differ_by_driver(gpu_key(**{fact: "another"}).parts, gpu_key().parts)


def test_several_halves_of_a_driver_may_differ_at_once_and_one_may_have_come_or_gone() -> None:
    other = gpu_key(nvidia__driver="560.1", nvidia__kernel_module="560.1", cpu__signature="6-191-0")
    assert differ_by_driver(gpu_key().parts, other.parts)
    without = EngineKey.of("m" * 64, GPU, Fingerprint({n: v for n, v in FACTS.items() if n != "nvidia.driver"}))
    assert differ_by_driver(without.parts, gpu_key().parts)


@pytest.mark.parametrize("fact", ["runtime__onnxruntime", "cpu__isa", "cpu__arch", "gpu.0.name", "cudnn__version"])
def test_engines_of_another_runtime_instruction_set_or_gpu_are_built(fact: str) -> None:
    other = {fact: "another", "nvidia__driver": "560.1"}
    assert not differ_by_driver(gpu_key().parts, gpu_key(**other).parts)


def test_engines_of_another_model_recipe_or_format_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = gpu_key(nvidia__driver="560.1").parts
    assert not differ_by_driver(key(model="n" * 64, recipe=GPU).parts, newer)
    assert not differ_by_driver(key(recipe=Recipe("onnxruntime", device="cuda:0", threads=2)).parts, newer)
    monkeypatch.setattr(key_module, "FORMAT", "next")
    assert not differ_by_driver(gpu_key().parts, newer)


def test_equal_engines_need_no_trial() -> None:
    assert not differ_by_driver(gpu_key().parts, gpu_key().parts)


NAMED = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("xyz"), max_size=6)


@given(NAMED, NAMED)
def test_changes_are_exactly_the_way_from_one_to_the_other(old: dict[str, str], new: dict[str, str]) -> None:
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


def test_changes_come_in_the_order_of_the_new_key_then_what_only_the_old_one_has() -> None:
    found = changes({"a": "1", "gone": "x", "b": "1"}, {"b": "2", "new": "y", "a": "2"})
    assert [change.part for change in found] == ["b", "new", "a", "gone"]


def test_a_change_reads_as_one_line() -> None:
    assert str(PartChange("runtime.openvino", "2026.1", "2026.2")) == "openvino 2026.1 → 2026.2"
    assert str(PartChange("cpu.isa", None, "avx2")) == "cpu.isa absent → avx2"
    assert str(PartChange("cpu.isa", "avx2", None)) == "cpu.isa avx2 → absent"


STORED = st.dictionaries(
    st.text("0123456789abcdef", min_size=4, max_size=4),
    st.fixed_dictionaries(
        {"model": st.sampled_from("MN"), "recipe.backend": st.sampled_from("BC"), "x": st.sampled_from("123")},
        optional={"y": st.sampled_from("12")},
    ),
    max_size=6,
)


@given(STORED)
def test_the_nearest_key_is_of_the_same_backend_then_the_same_model_then_with_the_fewest_changes(
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


# -- built ahead ----------------------------------------------------------------------------------------------------

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


def test_an_engine_built_ahead_may_be_for_a_device_of_which_nothing_known_is_different() -> None:
    wanted = built_ahead()
    assert may_be_for(wanted, wanted)
    assert may_be_for(built_ahead(AHEAD, "gpu.0.name", "gpu.0.memory_mb", "nvidia.driver"), wanted)
    assert may_be_for(built_ahead(AHEAD, nvidia__driver="540.1"), wanted)


def test_the_memory_that_a_builder_was_allowed_is_no_difference_and_its_other_options_are() -> None:
    other = msgspec.structs.replace(AHEAD, options="workspace_mb=512")
    assert may_be_for(built_ahead(other), built_ahead())
    compatible = msgspec.structs.replace(AHEAD, options="version_compatible;workspace_mb=1024")
    assert not may_be_for(built_ahead(compatible), built_ahead())


@pytest.mark.parametrize(
    "fact", ["gpu.0.compute_capability", "gpu.0.name", "runtime.tensorrt_rtx", "cpu.arch", "gpu.0.memory_mb"]
)
def test_an_engine_built_ahead_for_something_else_is_not_for_this_device(fact: str) -> None:
    assert not may_be_for(built_ahead(AHEAD, **{fact.replace(".", "__"): "other"}), built_ahead())


@pytest.mark.parametrize("change", [{"precision": "fp16"}, {"profile": "x=1:1:1"}, {"optimization": "5"}])
def test_an_engine_built_ahead_of_another_recipe_is_not_this_one(change: dict[str, str]) -> None:
    assert not may_be_for(built_ahead(msgspec.structs.replace(AHEAD, **change)), built_ahead())
    assert not may_be_for(built_ahead() | {"model": "n"}, built_ahead())


def test_what_was_known_then_and_is_not_known_now_is_different() -> None:
    assert not may_be_for(built_ahead(), built_ahead(AHEAD, "gpu.0.name"))


# -- built to be compatible -----------------------------------------------------------------------------------------


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
def test_an_engine_built_to_be_compatible_may_be_tried_with_what_it_is_compatible_with(
    options: str, facts: dict[str, str], may: bool
) -> None:
    assert differ_by_driver(of_tensorrt(options), of_tensorrt(options, **facts)) is may
