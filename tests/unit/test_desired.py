"""The desired engines of a model, from the box's facts, the model's settings and earlier rejections."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edged
from edged.backends import registry
from edged.backends.contract import INT8_ASYMMETRIC, REFERENCE, Recipe
from edged.config import Engines
from edged.device.fingerprint import Device, Fingerprint, probe
from edged.device.validity import relevant
from edged.engines.desired import DesiredEngine, below, candidates, desired, lanes, precisions
from edged.engines.engine import EngineState
from edged.engines.plan import PlannedModel, Planner, is_lowering_due
from edged.errors import ConfigError
from edged.models.model import Model
from edged.store.record import EngineRecord
from edged.store.store import Store
from edged.verification.standard import Standard
from tests import models
from tests.unit.control_room import FACTS, box, entry, inspection, key_of, model, planned_model, put, record_of


def keys(content: str = "content", name: str = "m", settings: dict[str, str] | None = None, **facts: str) -> list[str]:
    of = model(name, content, **(settings or {}))
    return [engine.key.digest for engine in desired(box(**facts), of)]


@pytest.mark.parametrize("of", [model("m", "one"), model("n", "two", backends="null")], ids=["any", "null"])
def test_desired_engines_are_the_candidates_in_order_of_preference(of: Model) -> None:
    engines, recipes = desired(box(), of), candidates(of.entry.settings, FACTS)
    assert tuple(engine.recipe for engine in engines) == recipes
    assert [engine.key for engine in engines] == [key_of(of, recipe) for recipe in recipes]


def test_desired_engine_has_the_standard_of_its_model_and_precision() -> None:
    of = model(precisions="fp32,bf16")
    for engine in desired(box(), of):
        assert engine.standard == Standard.of(of, engine.recipe.precision, FACTS).digest
    standards = {engine.recipe.precision: engine.standard for engine in desired(box(), of)}
    assert standards["fp32"] != standards["bf16"]


def test_desired_keys_differ_by_digest_and_runtime() -> None:
    assert not set(keys()) & set(keys("other"))
    assert set(keys()) - set(keys(runtime__openvino="3")) == {key_of(model(), Recipe("openvino")).digest}


def test_desired_verification_settings_change_the_standard_only() -> None:
    strict = {"verify.fp32.cosine": "0.9999999"}
    assert keys() == keys(settings=strict)
    before, after = desired(box(), model()), desired(box(), model(**strict))
    assert all(one.standard != other.standard for one, other in zip(before, after, strict=True))
    assert before == desired(box(), model())


def on_a_gpu(settings: dict[str, str], shape: tuple[int | str, ...]) -> list[DesiredEngine]:
    facts = {
        "runtime.tensorrt": "10.3.0",
        "tensorrt.version": "10.3.0.30",
        "gpu.0.compute_capability": "8.6",
        "gpu.0.memory_mb": "8192",
    }
    of = Model.of(entry(**settings), inspection(shape=shape))
    found = desired(Fingerprint(FACTS | facts), of)
    return [engine for engine in found if engine.recipe.backend == "tensorrt"]


def test_desired_tensorrt_has_shapes_and_options_in_its_key() -> None:
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


def test_desired_unsuitable_engine_names_the_setting() -> None:
    for engine in on_a_gpu({}, (1, "length")):
        assert 'set profile.x = "' in engine.problem
    exact, engine = on_a_gpu({"precisions": "int8"}, (1, 4))
    assert exact.problem == ""
    assert engine.problem.startswith("int8 is calibrated on pictures")
    (engine,) = on_a_gpu({"precisions": "fp32", "tensorrt.workspace_mb": "9000"}, (1, 4))
    assert "9000" in engine.problem


def test_desired_profile_of_an_unknown_input_is_reported_for_every_backend() -> None:
    with pytest.raises(ConfigError, match=r"profile\.z"):
        model(**{"profile.z": "1x4"})


S = EngineState
ORT = Recipe("onnxruntime")


def at(level: str) -> Recipe:
    return msgspec.structs.replace(ORT, optimization=level)


def judged(level: str, *, accepted: bool, standard: str = "") -> EngineRecord:
    held_to = standard or desired(box(), model())[1].standard
    return record_of(key_of(model(), at(level)), at(level), accepted=accepted, standard=held_to)


def plan(store: Store, into: PlannedModel | None = None) -> PlannedModel:
    into = into or planned_model()
    Planner(store, box(), Engines()).plan(into, model())
    return into


def levels(planned: PlannedModel) -> list[tuple[str, EngineState]]:
    own = (engine for engine in planned.engines.values() if engine.recipe.backend == "onnxruntime")
    return [(engine.recipe.optimization, engine.state) for engine in own if not engine.recipe.is_reference]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.mark.parametrize(
    ("recipe", "level"),
    [
        (at("all"), "extended"),
        (at("extended"), "basic"),
        (at("basic"), None),
        (at("none"), None),
        (Recipe("openvino"), None),
        (Recipe("onnxruntime", precision="int8"), None),
        (Recipe("onnxruntime", device="cuda:0"), "extended"),
    ],
)
def test_below_returns_the_next_lower_level(recipe: Recipe, level: str | None) -> None:
    lower = below(recipe)
    assert lower == (None if level is None else msgspec.structs.replace(recipe, optimization=level))


def test_desired_without_rejections_has_no_lower_level(store: Store) -> None:
    assert levels(plan(store)) == [("all", S.ABSENT)]
    put(store, judged("all", accepted=True))
    found = plan(store)
    assert levels(found) == [("all", S.READY)]
    assert not is_lowering_due(found)


def test_desired_after_a_stored_rejection_has_the_next_lower_level(store: Store) -> None:
    put(store, judged("all", accepted=False))
    assert levels(plan(store)) == [("all", S.REJECTED), ("extended", S.ABSENT)]
    put(store, judged("extended", accepted=False))
    put(store, judged("basic", accepted=True))
    found = plan(store)
    assert levels(found) == [("all", S.REJECTED), ("extended", S.REJECTED), ("basic", S.READY)]
    assert not is_lowering_due(found)
    last = list(found.engines.values())[3]
    assert last.key == key_of(model(), at("basic")), "the key is the same as in any other plan"


def test_desired_after_rejection_of_the_lowest_level_has_no_other(store: Store) -> None:
    for level in ("all", "extended", "basic"):
        put(store, judged(level, accepted=False))
    found = plan(store)
    assert [level for level, _ in levels(found)] == ["all", "extended", "basic"]
    assert not is_lowering_due(found)


def test_desired_ignores_verdicts_by_another_standard(store: Store) -> None:
    put(store, judged("all", accepted=False, standard="another"))
    assert levels(plan(store)) == [("all", S.ABSENT)]


def test_desired_after_a_rejection_at_run_time_has_the_next_lower_level(store: Store) -> None:
    found = plan(store)
    engine = next(e for e in found.engines.values() if e.recipe == ORT)
    for state in (S.QUEUED, S.BUILDING, S.VERIFYING):
        engine.move(state)
    engine.finish(judged("all", accepted=False), None)
    assert is_lowering_due(found)
    plan(store, found)  # the store has no record, as on a full disk
    assert levels(found) == [("all", S.REJECTED), ("extended", S.ABSENT)]
    assert not is_lowering_due(found)


@pytest.mark.long
def test_desired_serves_the_highest_level_with_right_answers(tmp_path: Path) -> None:
    """With the real runtime. This model's answers change at the levels above `basic`."""
    path = models.save(models.scaled_matmul(), tmp_path / "m.onnx")
    with edged.load(path, cache=tmp_path / "cache", settings={"backends": "onnxruntime"}):
        verdicts = {r.recipe.optimization: r.verdict.accepted for r in Store(tmp_path / "cache").records().values()}
    assert verdicts == {"none": True, "all": False, "extended": False, "basic": True}


BOTH = {"runtime.onnxruntime": "1", "runtime.openvino": "2"}


CPU = Device("cpu", "cpu", "a processor")


def on(features: str) -> dict[str, str]:
    return BOTH | {"cpu.features": features}


def test_desired_backends_are_the_installed_ones() -> None:
    assert candidates({}, {"runtime.openvino": "2"}) == (REFERENCE, Recipe("openvino"))
    assert Recipe("openvino") not in candidates({}, {"runtime.onnxruntime": "1"})


def test_desired_backends_follow_the_setting_and_keep_the_reference() -> None:
    assert candidates({"backends": "openvino"}, BOTH) == (REFERENCE, Recipe("openvino"))
    assert candidates({"backends": "null, openvino"}, BOTH) == (REFERENCE, Recipe("null"), Recipe("openvino"))
    with pytest.raises(ConfigError):
        candidates({"backends": "tensorflow"}, BOTH)


# -- precisions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("", ("fp32",)),
        ("avx avx2 f16c", ("fp32",)),
        ("avx512_bf16", ("fp32", "bf16")),
        ("amx_bf16", ("fp32", "bf16")),
        ("svebf16", ("fp32", "bf16")),
        ("avx512_fp16", ("fp32", "fp16")),
        ("amx_fp16", ("fp32", "fp16")),
        ("asimdhp", ("fp32", "fp16")),
        ("avx512_fp16 amx_tile avx512_bf16", ("fp32", "bf16", "fp16")),
        ("avx512_bf16x xamx_fp16", ("fp32",)),
    ],
)
def test_desired_openvino_precisions_are_native_to_the_processor(features: str, expected: tuple[str, ...]) -> None:
    assert precisions("openvino", CPU, {}, on(features)) == expected


@pytest.mark.parametrize("backend", ["onnxruntime", "null"])
def test_desired_precisions_are_known_to_the_backend(backend: str) -> None:
    everything = on("avx512_bf16 avx512_fp16")
    assert precisions(backend, CPU, {}, everything) == ("fp32",)
    assert precisions(backend, CPU, {"precisions": "bf16,fp32,tf32"}, everything) == ("fp32",)


def test_desired_precisions_follow_the_setting() -> None:
    assert precisions("openvino", CPU, {"precisions": "bf16"}, on("")) == ("fp32", "bf16")
    assert precisions("openvino", CPU, {"precisions": "fp32"}, on("avx512_bf16")) == ("fp32",)
    assert precisions("openvino", CPU, {"precisions": "fp16, fp32, fp16"}, on("")) == ("fp16", "fp32")


def test_desired_int8_only_if_set() -> None:
    everything = on("avx512_vnni amx_int8 avx512_fp16 avx512_bf16")
    assert all(recipe.precision != "int8" for recipe in candidates({}, everything))
    asked = candidates({"precisions": "int8"}, everything)
    assert asked == (
        REFERENCE,
        *(Recipe("onnxruntime"), Recipe("openvino")),
        Recipe("onnxruntime", precision="int8"),
        Recipe("openvino", precision="int8"),
        Recipe("openvino", precision="int8", options=INT8_ASYMMETRIC),
    )


def test_desired_exact_engines_come_first_on_the_cpu_and_always_exist() -> None:
    found = candidates({"precisions": "int8,bf16"}, on("avx512_bf16"))[1:]
    assert [recipe.precision for recipe in found[:2]] == ["fp32", "fp32"]
    assert "fp32" not in {recipe.precision for recipe in found[2:]}
    on_gpu = candidates({"backends": "tensorrt", "precisions": "fp16"}, gpu(compute_capability="8.6"))[1:]
    assert {recipe.precision for recipe in on_gpu} == {"fp16", "fp32"}


def test_desired_precision_that_the_box_does_not_have_leaves_the_fp32_engines() -> None:
    assert candidates({"precisions": "tf32"}, on("")) == candidates({"precisions": "fp32"}, on(""))
    assert len(candidates({"precisions": "bf16"}, on(""))) == 4, "fp32 of every backend, to compare with"


def test_desired_second_int8_recipe_is_for_openvino_on_the_cpu_only() -> None:
    facts = gpu(compute_capability="8.6") | probe(BOXES / "intel-nuc-14-npu").facts
    found = [recipe for recipe in candidates({"precisions": "int8"}, facts) if recipe.options == INT8_ASYMMETRIC]
    assert [(recipe.backend, recipe.device) for recipe in found] == [("openvino", "cpu")]


@pytest.mark.parametrize("text", ["fp64", "", "fp32,nonsense"])
def test_desired_unknown_precision_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        candidates({"precisions": text}, BOTH)


# -- threads --------------------------------------------------------------------------------------------------------


def test_desired_repeated_thread_count_is_tried_once() -> None:
    assert len(candidates({"threads": "2,2,0,2", "backends": "null"}, {})) == 3


def test_desired_order_varies_the_backend_slowest() -> None:
    found = candidates({"threads": "1,2"}, on("avx512_bf16"))
    assert [(r.backend, r.precision, r.threads) for r in found[1:]] == [
        ("onnxruntime", "fp32", 1),
        ("onnxruntime", "fp32", 2),
        ("openvino", "fp32", 1),
        ("openvino", "fp32", 2),
        ("openvino", "bf16", 1),
        ("openvino", "bf16", 2),
    ]


# -- devices --------------------------------------------------------------------------------------------------------

BOXES = Path(__file__).parents[1] / "fixtures" / "devices"
JETSON = ("onnxruntime cpu fp32", "tensorrt cuda:0 fp16", "tensorrt cuda:0 tf32", "tensorrt cuda:0 fp32")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("raspberry-pi-5", ("onnxruntime cpu fp32",)),
        ("server-epyc", ("onnxruntime cpu fp32", "openvino cpu fp32", "openvino cpu bf16")),
        ("jetson-orin-nano", JETSON),
        ("jetson-agx-orin-jp60", JETSON),
        ("jetson-agx-orin-jp72", JETSON),
        ("jetson-agx-thor-jp71", JETSON),
        (
            "desktop-rtx-4070",
            (
                *("onnxruntime cpu fp32", "openvino cpu fp32"),
                *("onnxruntime cuda:0 fp16", "onnxruntime cuda:0 tf32", "onnxruntime cuda:0 fp32"),
                *("tensorrt cuda:0 fp16", "tensorrt cuda:0 tf32", "tensorrt cuda:0 fp32"),
                *("openvino intel-gpu:0 fp16", "openvino intel-gpu:0 fp32"),
            ),
        ),
        ("desktop-reboot-pending", ()),
        (
            "intel-nuc-11",
            (
                *("onnxruntime cpu fp32", "openvino cpu fp32"),
                *("openvino intel-gpu:0 fp16", "openvino intel-gpu:0 fp32"),
            ),
        ),
        (
            "intel-nuc-14-npu",
            (
                *("onnxruntime cpu fp32", "openvino cpu fp32"),
                *("openvino intel-gpu:0 fp16", "openvino intel-gpu:0 fp32", "openvino intel-npu:0 fp16"),
            ),
        ),
    ],
)
def test_desired_candidates_of_recorded_boxes(name: str, expected: tuple[str, ...]) -> None:
    found = candidates({}, probe(BOXES / name).facts)
    assert found[0] == REFERENCE
    assert tuple(f"{recipe.backend} {recipe.device} {recipe.precision}" for recipe in found[1:]) == expected


def gpu(**facts: str) -> dict[str, str]:
    named = {f"gpu.0.{name}": value for name, value in facts.items()}
    return {
        "runtime.onnxruntime_gpu": "1",
        "runtime.tensorrt": "10.3.0",
        "tensorrt.version": "10.3.0.30",
        "gpu.0.name": "a card",
    } | named


def test_desired_onnxruntime_on_cuda_only_with_its_cuda_package() -> None:
    facts = {"runtime.onnxruntime": "1", "gpu.0.compute_capability": "8.6"}
    assert {recipe.device for recipe in candidates({}, facts)} == {"cpu"}
    facts = {"runtime.onnxruntime_gpu": "1", "gpu.0.compute_capability": "8.6"}
    assert {recipe.device for recipe in candidates({}, facts)} == {"cpu", "cuda:0"}


@pytest.mark.parametrize(
    ("capability", "code", "expected"),
    [
        ("8.7", "sm_89 sm_90a sm_120a sm_121a", False),  # Orin with the wheel for aarch64
        ("11.0", "sm_89 sm_90a sm_120a sm_121a", False),
        ("8.7", "sm_72 sm_87", True),
        ("8.9", "sm_89", True),
        ("8.7", None, True),  # the library could not be read, so a build has to show it
    ],
)
def test_desired_onnxruntime_on_cuda_needs_code_for_the_gpu(capability: str, code: str | None, expected: bool) -> None:
    facts = gpu(compute_capability=capability) | ({"runtime.onnxruntime_gpu_code": code} if code else {})
    found = {recipe.backend for recipe in candidates({}, facts) if recipe.device == "cuda:0"}
    assert found == {"tensorrt", *(("onnxruntime",) if expected else ())}


def test_desired_gpu_of_unknown_capability_is_skipped() -> None:
    assert {recipe.device for recipe in candidates({}, gpu())} == {"cpu"}
    assert {recipe.device for recipe in candidates({}, gpu(compute_capability="unknown"))} == {"cpu"}


@pytest.mark.parametrize(
    ("capability", "expected"),
    [("5.0", {"fp32"}), ("6.1", {"fp32", "fp16"}), ("7.5", {"fp32", "fp16"}), ("10.0", {"fp32", "fp16", "tf32"})],
)
def test_desired_gpu_precisions_follow_its_capability(capability: str, expected: set[str]) -> None:
    found = candidates({"backends": "tensorrt"}, gpu(compute_capability=capability))
    assert {recipe.precision for recipe in found if recipe.device == "cuda:0"} == expected


def test_desired_threads_apply_to_the_cpu_only() -> None:
    found = candidates({"threads": "1,2", "precisions": "fp32"}, gpu(compute_capability="8.6"))
    assert [(r.backend, r.threads) for r in found if r.device == "cuda:0"] == [("onnxruntime", 0), ("tensorrt", 0)]


def test_desired_of_two_gpus_has_candidates_for_each() -> None:
    facts = gpu(compute_capability="8.6") | {"gpu.1.compute_capability": "7.5"}
    found = candidates({"backends": "tensorrt"}, facts)
    assert [f"{r.device} {r.precision}" for r in found[1:]] == [
        *("cuda:0 fp16", "cuda:0 tf32", "cuda:0 fp32"),
        *("cuda:1 fp16", "cuda:1 fp32"),
    ]


def test_desired_devices_with_shared_memory_share_a_lane() -> None:
    assert lanes(probe(BOXES / "jetson-orin-nano").facts) == {"cpu": "cpu", "cuda:0": "cpu"}
    assert lanes(probe(BOXES / "desktop-rtx-4070").facts) == {
        "cpu": "cpu",
        "cuda:0": "cuda:0",
        "intel-gpu:0": "cpu",
    }


SOME_FACTS = st.fixed_dictionaries(
    {"cpu.features": st.lists(st.sampled_from(("avx2", "avx512_bf16", "asimdhp"))).map(" ".join)},
    optional={"runtime.onnxruntime": st.just("1"), "runtime.openvino": st.just("2")},
)
SOME_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "backends": st.sampled_from(("null", "openvino,onnxruntime", "openvino,openvino")),
        "precisions": st.sampled_from(("fp32", "bf16", "bf16,fp16,fp32")),
        "threads": st.sampled_from(("0", "1,2", "4,4,0")),
    },
)


@given(SOME_SETTINGS, SOME_FACTS)
def test_desired_begins_with_exactly_one_reference(settings: dict[str, str], facts: dict[str, str]) -> None:
    found = candidates(settings, facts)
    assert [recipe.is_reference for recipe in found] == [True] + [False] * (len(found) - 1)
    assert (found[0].backend, found[0].precision) == (REFERENCE.backend, REFERENCE.precision)
    assert found == candidates(settings, facts)


@given(SOME_SETTINGS, SOME_FACTS)
def test_desired_engines_are_distinct(settings: dict[str, str], facts: dict[str, str]) -> None:
    found = candidates(settings, facts)
    assert len(set(found)) == len(found)


def test_desired_raw_model_is_exact_unless_precisions_are_set() -> None:
    facts = on("avx512_bf16")
    assert {recipe.precision for recipe in candidates({}, facts, is_decoded=False)} == {"fp32"}
    assert candidates({"precisions": "bf16"}, facts, is_decoded=False)[-1].precision == "bf16"


@pytest.mark.parametrize("backend", registry.NAMES)
def test_tables_of_precisions_facts_and_titles_have_every_backend(backend: str) -> None:
    """A backend that is missing in a table would get no engines, without an error."""
    gpu, cpu = Device("cuda:0", "cuda", "", compute_capability="8.6"), Device("cpu", "cpu", "")
    device = gpu if backend in registry.TIMING_KERNELS else cpu
    assert "fp32" in precisions(backend, device, {}, {})
    assert relevant(backend, device.kind) or backend == "null"
    assert backend in registry.TITLES or backend == "null"
