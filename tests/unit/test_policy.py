"""Which engines a model should have on a box: its settings and the box's facts decide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backend.contract import Recipe
from edged.build.builder import REFERENCE
from edged.control.policy import candidates, precisions
from edged.errors import ConfigError

BOTH = {"runtime.onnxruntime": "1", "runtime.openvino": "2"}


def on(features: str) -> dict[str, str]:
    return BOTH | {"cpu.features": features}


def test_a_box_without_any_runtime_still_has_the_reference() -> None:
    assert candidates({}, {}) == (REFERENCE,)


def test_the_reference_comes_first_then_every_installed_backend() -> None:
    assert candidates({}, BOTH) == (REFERENCE, Recipe("onnxruntime"), Recipe("openvino"))


def test_a_backend_is_tried_only_where_its_runtime_is_installed() -> None:
    assert candidates({}, {"runtime.openvino": "2"}) == (REFERENCE, Recipe("openvino"))
    assert Recipe("openvino") not in candidates({}, {"runtime.onnxruntime": "1"})


def test_the_backend_that_answers_anything_is_never_chosen_by_itself() -> None:
    assert all(recipe.backend != "null" for recipe in candidates({}, BOTH))


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
    assert precisions("openvino", {}, on(features)) == expected


@pytest.mark.parametrize("backend", ["onnxruntime", "null"])
def test_a_backend_that_knows_no_other_precision_is_given_none(backend: str) -> None:
    everything = on("avx512_bf16 avx512_fp16")
    assert precisions(backend, {}, everything) == ("fp32",)
    assert precisions(backend, {"precisions": "bf16,fp32,fp16"}, everything) == ("fp32",)


def test_settings_narrow_the_precisions_and_widen_them_beyond_what_is_native() -> None:
    assert precisions("openvino", {"precisions": "bf16"}, on("")) == ("bf16",)
    assert precisions("openvino", {"precisions": "fp32"}, on("avx512_bf16")) == ("fp32",)
    assert precisions("openvino", {"precisions": "fp16, fp32, fp16"}, on("")) == ("fp16", "fp32")


@pytest.mark.parametrize("text", ["fp64", "", "fp32,nonsense"])
def test_a_precision_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        candidates({"precisions": text}, BOTH)


# -- threads --------------------------------------------------------------------------------------------------------


def test_every_number_of_threads_is_tried_and_the_reference_has_the_first() -> None:
    found = candidates({"threads": "2,4", "backends": "openvino"}, BOTH)
    assert [(r.backend, r.threads, r.is_reference) for r in found] == [
        ("onnxruntime", 2, True),
        ("openvino", 2, False),
        ("openvino", 4, False),
    ]


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
