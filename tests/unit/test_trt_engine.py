"""Reports of built engines, and loading of engines, with fake modules of TensorRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.backends.contract import Order, Recipe, Signature
from edged.backends.trt import load
from edged.errors import EngineUnusable
from tests.fake_trt import Script, make
from tests.unit.trt_builds import build, gpu

__all__ = ["gpu"]


# -- reports --------------------------------------------------------------------------------------------------------


def test_build_reports_a_limited_number_of_warnings_once(tmp_path: Path) -> None:
    output = [("WARNING", f"Warning {n // 2}") for n in range(40)]
    made, _ = build("10", tmp_path, Script(says=output))
    assert made.notes[-6:] == (*(f"Warning {n}" for n in range(5)), "15 more warnings")


def test_inspector_counts_layers_by_input_precision(tmp_path: Path) -> None:
    def layer(kind: str, reads: str) -> dict[str, Any]:
        return {"Name": "n", "LayerType": kind, "Inputs": [{"Format/Datatype": reads}], "Outputs": [], "Extra": 1}

    layers = [
        layer("CaskConvolution", "Four wide channel vectorized row major Int8 format"),
        layer("CaskConvolution", "Channel major FP16 format where channel % 8 == 0"),
        layer("PointWiseV2", "Half"),
        layer("kgen", "Row major linear FP32"),
        layer("Reformat", "Row major linear FP32"),
        layer("Strange", ""),
    ]
    made, _ = build("10", tmp_path, Script(inspector=msgspec.json.encode({"Layers": layers}).decode()))
    assert made.layers == {"fp16": 2, "fp32": 1, "int8": 1, "other": 1}
    assert made.notes == ("6 layers after fusion, 1 of which only move or convert data",)


@pytest.mark.parametrize("text", ['{"Layers": ["a", "b"]}', "{", "[]", "", '{"Layers": 3}', "{}"])
def test_inspector_with_less_detail_is_accepted(text: str, tmp_path: Path) -> None:
    made, _ = build("11", tmp_path, Script(inspector=text))
    assert made.layers == {}
    assert made.notes


def test_build_of_an_engine_that_cannot_be_inspected_succeeds(tmp_path: Path) -> None:
    made, _ = build("10", tmp_path, Script(loads=False))
    assert any("TensorRT cannot load the engine: Serialization (wrong tag)" in note for note in made.notes)
    assert made.layers == {"fp32": 2}


# -- loading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("validity", "words"),
    [
        (("INVALID", 1), "another version of the runtime built it"),
        (("INVALID", 2), "it is for another GPU"),
        (("INVALID", 33), "another version of the runtime built it, it is damaged"),
        (("INVALID", 0), "it cannot be used here"),
    ],
)
def test_deserialise_invalid_rtx_engine_is_refused_before_it_is_loaded(validity: tuple[str, int], words: str) -> None:
    trt, trace = make("rtx", Script(validity=validity))
    with pytest.raises(EngineUnusable, match=f"TensorRT-RTX cannot load the engine: {words}"):
        load.deserialise(trt, b"plan", "TensorRT-RTX")
    assert trace.host_code == []


@pytest.mark.parametrize("verdict", ["VALID", "SUBOPTIMAL"])
def test_deserialise_valid_or_suboptimal_rtx_engine_is_loaded(verdict: str) -> None:
    trt, trace = make("rtx", Script(validity=(verdict, 0)))
    load.deserialise(trt, b"plan", "TensorRT-RTX")
    assert trace.host_code == [False]


@pytest.mark.parametrize("generation", ["8.6", "10", "11"])
def test_deserialise_without_validation_is_refused_by_the_runtime(generation: str) -> None:
    trt, _ = make(generation, Script(loads=False))
    with pytest.raises(EngineUnusable, match=r"TensorRT cannot load the engine: Serialization \(wrong tag\)"):
        load.deserialise(trt, b"plan", "TensorRT")


def test_deserialise_engine_for_a_dla_core_is_loaded_on_that_core() -> None:
    trt, trace = make("10")
    recipe = Recipe("tensorrt", "cuda:0", optimization="3", options="dla_core=1;workspace_mb=64")
    core = load.dla_core(Order("", Signature((), ()), recipe))
    load.deserialise(trt, b"plan", "TensorRT", core)
    load.deserialise(trt, b"plan", "TensorRT")
    assert trace.dla_cores == [1, None]
