"""Which engines a model should have on a box: its settings and the box's facts decide."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.contract import REFERENCE, Recipe
from edged.device.fingerprint import Device, probe
from edged.engines.desired import candidates, lanes, precisions
from edged.errors import ConfigError

BOTH = {"runtime.onnxruntime": "1", "runtime.openvino": "2"}


CPU = Device("cpu", "cpu", "a processor")


def on(features: str) -> dict[str, str]:
    return BOTH | {"cpu.features": features}


def test_a_backend_is_tried_only_where_its_runtime_is_installed() -> None:
    assert candidates({}, {"runtime.openvino": "2"}) == (REFERENCE, Recipe("openvino"))
    assert Recipe("openvino") not in candidates({}, {"runtime.onnxruntime": "1"})


def test_settings_choose_the_backends_and_their_order_and_the_reference_stays() -> None:
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
def test_openvino_tries_what_the_processor_does_natively(features: str, expected: tuple[str, ...]) -> None:
    assert precisions("openvino", CPU, {}, on(features)) == expected


@pytest.mark.parametrize("backend", ["onnxruntime", "null"])
def test_a_backend_is_given_no_precision_that_it_does_not_know(backend: str) -> None:
    everything = on("avx512_bf16 avx512_fp16")
    assert precisions(backend, CPU, {}, everything) == ("fp32",)
    assert precisions(backend, CPU, {"precisions": "bf16,fp32,tf32"}, everything) == ("fp32",)


def test_settings_narrow_the_precisions_and_widen_them_beyond_what_is_native() -> None:
    assert precisions("openvino", CPU, {"precisions": "bf16"}, on("")) == ("bf16",)
    assert precisions("openvino", CPU, {"precisions": "fp32"}, on("avx512_bf16")) == ("fp32",)
    assert precisions("openvino", CPU, {"precisions": "fp16, fp32, fp16"}, on("")) == ("fp16", "fp32")


def test_int8_is_only_for_who_asks_for_it() -> None:
    everything = on("avx512_vnni amx_int8 avx512_fp16 avx512_bf16")
    assert all(recipe.precision != "int8" for recipe in candidates({}, everything))
    asked = candidates({"precisions": "int8"}, everything)
    assert asked == (REFERENCE, Recipe("onnxruntime", precision="int8"), Recipe("openvino", precision="int8"))


@pytest.mark.parametrize("text", ["fp64", "", "fp32,nonsense"])
def test_a_precision_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        candidates({"precisions": text}, BOTH)


# -- threads --------------------------------------------------------------------------------------------------------


def test_a_number_that_is_named_twice_is_tried_once() -> None:
    assert len(candidates({"threads": "2,2,0,2", "backends": "null"}, {})) == 3


def test_backends_precisions_and_threads_are_combined_with_the_backend_varying_slowest() -> None:
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
def test_recorded_boxes_have_the_candidates_that_their_hardware_is_good_for(
    name: str, expected: tuple[str, ...]
) -> None:
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


def test_onnx_runtime_is_a_candidate_for_cuda_only_where_its_package_has_cuda() -> None:
    facts = {"runtime.onnxruntime": "1", "gpu.0.compute_capability": "8.6"}
    assert {recipe.device for recipe in candidates({}, facts)} == {"cpu"}
    facts = {"runtime.onnxruntime_gpu": "1", "gpu.0.compute_capability": "8.6"}
    assert {recipe.device for recipe in candidates({}, facts)} == {"cpu", "cuda:0"}


def test_a_gpu_whose_compute_capability_nobody_tells_is_left_alone() -> None:
    assert {recipe.device for recipe in candidates({}, gpu())} == {"cpu"}
    assert {recipe.device for recipe in candidates({}, gpu(compute_capability="unknown"))} == {"cpu"}


@pytest.mark.parametrize(
    ("capability", "expected"),
    [("5.0", {"fp32"}), ("6.1", {"fp32", "fp16"}), ("7.5", {"fp32", "fp16"}), ("10.0", {"fp32", "fp16", "tf32"})],
)
def test_a_gpu_is_asked_for_what_its_generation_can_do(capability: str, expected: set[str]) -> None:
    found = candidates({"backends": "tensorrt"}, gpu(compute_capability=capability))
    assert {recipe.precision for recipe in found if recipe.device == "cuda:0"} == expected


def test_threads_are_a_matter_of_the_cpu() -> None:
    found = candidates({"threads": "1,2", "precisions": "fp32"}, gpu(compute_capability="8.6"))
    assert [(r.backend, r.threads) for r in found if r.device == "cuda:0"] == [("onnxruntime", 0), ("tensorrt", 0)]


def test_two_gpus_have_candidates_each() -> None:
    facts = gpu(compute_capability="8.6") | {"gpu.1.compute_capability": "7.5"}
    found = candidates({"backends": "tensorrt"}, facts)
    assert [f"{r.device} {r.precision}" for r in found[1:]] == [
        *("cuda:0 fp16", "cuda:0 tf32", "cuda:0 fp32"),
        *("cuda:1 fp16", "cuda:1 fp32"),
    ]


def test_devices_that_share_the_systems_memory_share_a_lane() -> None:
    assert lanes(probe(BOXES / "jetson-orin-nano").facts) == {"cpu": "cpu", "cuda:0": "cpu"}
    assert lanes(probe(BOXES / "desktop-rtx-4070").facts) == {
        "cpu": "cpu",
        "cuda:0": "cuda:0",
        "intel-gpu:0": "cpu",
    }


FACTS = st.fixed_dictionaries(
    {"cpu.features": st.lists(st.sampled_from(("avx2", "avx512_bf16", "asimdhp"))).map(" ".join)},
    optional={"runtime.onnxruntime": st.just("1"), "runtime.openvino": st.just("2")},
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "backends": st.sampled_from(("null", "openvino,onnxruntime", "openvino,openvino")),
        "precisions": st.sampled_from(("fp32", "bf16", "bf16,fp16,fp32")),
        "threads": st.sampled_from(("0", "1,2", "4,4,0")),
    },
)


@given(SETTINGS, FACTS)
def test_there_is_always_exactly_one_reference_and_it_comes_first(
    settings: dict[str, str], facts: dict[str, str]
) -> None:
    found = candidates(settings, facts)
    assert [recipe.is_reference for recipe in found] == [True] + [False] * (len(found) - 1)
    assert (found[0].backend, found[0].precision) == (REFERENCE.backend, REFERENCE.precision)
    assert found == candidates(settings, facts)


@given(SETTINGS, FACTS)
def test_no_engine_is_wanted_twice(settings: dict[str, str], facts: dict[str, str]) -> None:
    found = candidates(settings, facts)
    assert len(set(found)) == len(found)


def test_candidates_of_model_that_is_not_decoded_are_exact_unless_it_names_precisions() -> None:
    facts = on("avx512_bf16")
    assert {recipe.precision for recipe in candidates({}, facts, is_decoded=False)} == {"fp32"}
    assert candidates({"precisions": "bf16"}, facts, is_decoded=False)[1].precision == "bf16"
