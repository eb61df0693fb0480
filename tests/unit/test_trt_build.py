"""Builds with every generation of TensorRT's interface. Each fake has only the members of its generation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edged.backends.contract import Signature
from edged.backends.trt import load
from edged.errors import EngineUnusable, OutOfSpace, Unsuitable
from edged.tensors import TensorSpec
from tests.fake_trt import GENERATIONS, Script
from tests.unit.trt_builds import KINDS, Y, build, gpu, order

__all__ = ["gpu"]


# -- builds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", GENERATIONS)
def test_build_writes_a_plan_within_the_limits_of_its_recipe(
    generation: str, tmp_path: Path, gpu: SimpleNamespace
) -> None:
    _, trace = build(generation, tmp_path)
    assert (tmp_path / "out" / "engine.plan").read_bytes() == b"plan"
    config = trace.config
    assert config.pools == {"WORKSPACE": 64 << 20}
    assert config.builder_optimization_level == 3
    assert config.profiling_verbosity.name == "DETAILED"
    assert not hasattr(config, "DLA_core")
    assert trace.host_code == [False]
    assert gpu.closed == 1


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    ("precision", "flags"),
    [("fp32", set()), ("tf32", {"TF32"}), ("fp16", {"FP16"}), ("int8", {"INT8"})],
)
def test_build_sets_flags_of_precision_only_without_strong_types(
    generation: str, precision: str, flags: set[str], tmp_path: Path
) -> None:
    _, trace = build(generation, tmp_path, wanted=order(tmp_path, precision=precision))
    typed = generation != "8.6"
    assert trace.flags == ((flags & {"TF32"}) if typed else flags)
    assert trace.network_flags == {"8.6": 0b1, "10": 0b11, "11": 0b1, "rtx": 0b1}[generation]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_build_open_dimensions_get_the_recipes_range(generation: str, tmp_path: Path) -> None:
    signature = Signature((TensorSpec("x", "FP32", ("n", 4)),), (Y,))
    script = Script(inputs=[("x", "FLOAT", (-1, 4))])
    _, trace = build(generation, tmp_path, script, order(tmp_path, signature, profile="x=1x4:2x4:8x4"))
    assert trace.profiles == [{"x": ((1, 4), (2, 4), (8, 4))}]
    with pytest.raises(Unsuitable, match=r"profile\.x"):
        build(generation, tmp_path, script, order(tmp_path, signature))
    refusing = Script(inputs=script.inputs, profile_index=-1)
    with pytest.raises(Unsuitable, match="does not accept the range of shapes x=1x4:2x4:8x4"):
        build(generation, tmp_path, refusing, order(tmp_path, signature, profile="x=1x4:2x4:8x4"))


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("effort", "level", "workspace_mb"), [("full", 3, 64), ("reduced", 1, 32), ("least", 0, 16)])
def test_build_with_less_effort_has_lower_limits(
    generation: str, effort: Any, level: int, workspace_mb: int, tmp_path: Path
) -> None:
    wanted = msgspec.structs.replace(order(tmp_path), effort=effort)
    _, trace = build(generation, tmp_path, wanted=wanted)
    assert trace.config.builder_optimization_level == level
    assert trace.config.pools == {"WORKSPACE": workspace_mb << 20}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_build_compatible_engine_sets_its_flags(generation: str, tmp_path: Path) -> None:
    options = "hardware_compatible;version_compatible;workspace_mb=64"
    _, trace = build(generation, tmp_path, wanted=order(tmp_path, options=options))
    assert trace.config.hardware_compatibility_level.name == "AMPERE_PLUS"
    assert trace.flags == {"VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME"}


# -- refusals -------------------------------------------------------------------------------------------------------


def error(operator: str, node: int = 0, name: str = "", code: str = "INVALID_NODE", desc: str = "") -> dict[str, Any]:
    reason = desc or 'creator && "Plugin not found, are the plugin name, version, and namespace correct?"'
    return {"code": code, "desc": reason, "node": node, "node_name": name, "node_operator": operator}


@pytest.mark.parametrize("generation", ["10", "11", "rtx"])
def test_build_unknown_operators_are_counted_and_named(generation: str, tmp_path: Path) -> None:
    errors = [error("Foo", 3, "a"), error("Bar", 5, "b"), *(error("Foo", n, f"f{n}") for n in range(6, 10))]
    with pytest.raises(Unsuitable) as refusal:
        build(generation, tmp_path, Script(errors=errors))
    kind = KINDS.get(generation, "TensorRT")
    assert str(refusal.value) == (
        f"{kind} does not support 6 nodes of m.onnx: Foo 5x (a, f6, f7, …): no such operator; Bar (b): no such operator"
    )


def test_build_oldest_parser_names_the_operator_in_its_log(tmp_path: Path) -> None:
    output = [("ERROR", 'ModelImporter.cpp:726: While parsing node number 12 [Foo -> "y"]:')]
    desc = (
        'In node 12 (importFallbackPluginImporter): UNSUPPORTED_NODE: Assertion failed: creator && "Plugin not found"'
    )
    with pytest.raises(Unsuitable, match=r"does not support 1 node of m\.onnx: Foo \(node 12\): no such operator"):
        build("8.6", tmp_path, Script(errors=[error("", 12, code="UNSUPPORTED_NODE", desc=desc)], parser_says=output))


def test_build_many_operators_make_one_line(tmp_path: Path) -> None:
    errors = [error(f"Operator{n}", n, "n" * 500, desc="x" * 5000, code="UNSUPPORTED_NODE") for n in range(50)]
    with pytest.raises(Unsuitable, match=r"does not support 50 nodes .*; 42 more operators$") as refusal:
        build("10", tmp_path, Script(errors=errors))
    assert len(str(refusal.value)) < 2500
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_build_unreadable_model_is_unusable_and_not_unsuitable(generation: str, tmp_path: Path) -> None:
    broken = error("Conv", 4, "c1", "INVALID_GRAPH", "weights are missing")
    with pytest.raises(EngineUnusable, match=r"refuses m\.onnx: .*weights are missing") as refusal:
        build(generation, tmp_path, Script(errors=[broken]))
    assert not isinstance(refusal.value, Unsuitable)
    with pytest.raises(EngineUnusable, match="finds no output"):
        build(generation, tmp_path, Script(outputs=[]))


@pytest.mark.parametrize(
    ("model", "network", "problem"),
    [
        ("INT64", "INT32", "would convert the INT64 tensor x to INT32"),
        ("FP64", "FLOAT", "does not support FP64, the datatype of tensor x"),
        ("BYTES", "FLOAT", "does not support BYTES"),
        ("FP32", "HALF", "would convert the FP32 tensor x to FP16"),
    ],
)
def test_build_narrowed_datatype_is_unsuitable(model: str, network: str, problem: str, tmp_path: Path) -> None:
    signature = Signature((TensorSpec("x", model, (1, 4)),), (Y,))
    with pytest.raises(Unsuitable, match=problem):
        build("8.6", tmp_path, Script(inputs=[("x", network, (1, 4))]), order(tmp_path, signature))


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("IBuilder::buildSerializedNetwork: Error Code 2: OutOfMemory (Requested size was 99)", "ran out of memory"),
        (
            "10: Could not find any implementation for node {ForeignNode[a...b]}.",
            "raising tensorrt.workspace_mb may help",
        ),
        (
            "1: [cuda.cpp::x::1] Error Code 1: Cuda Runtime (no CUDA-capable device is detected)",
            "no CUDA device can be",
        ),
        (
            "Error Code 6: API Usage Error (Unable to load library: libx.so.1: cannot open)",
            "libx.so.1 is not installed",
        ),
        ("IBuilder::x: Error Code 4: API Usage Error (Odd. In validate at /_src/network.cpp:42)", r"\(Odd\.?\)?$"),
    ],
)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_build_failure_has_the_reason_in_one_line(generation: str, output: str, problem: str, tmp_path: Path) -> None:
    script = Script(
        plan=None, says=[("ERROR", output), ("INFO", "chatter"), ("ERROR", "[checkMacros.cpp::catchCudaError::250] x")]
    )
    with pytest.raises(EngineUnusable, match=problem) as refusal:
        build(generation, tmp_path, script)
    assert "/_src" not in str(refusal.value)
    assert not list((tmp_path / "out").iterdir())


def test_build_failure_without_a_reason_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineUnusable, match="the runtime gives no reason"):
        build("10", tmp_path, Script(plan=None))


def test_build_without_a_builder_has_the_runtimes_reason(tmp_path: Path) -> None:
    with pytest.raises(EngineUnusable, match="TensorRT cannot start here: CUDA initialization failure with error: 35"):
        build("10", tmp_path, Script(no_builder="CUDA initialization failure with error: 35"))


def test_build_full_disk_is_out_of_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, data: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(OutOfSpace):
        build("10", tmp_path)


# -- other devices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ["8.6", "10", "11"])
def test_build_for_another_device_without_rtx_is_unsuitable(generation: str, tmp_path: Path) -> None:
    with pytest.raises(Unsuitable, match="TensorRT builds only for the device that it runs on"):
        build(generation, tmp_path, wanted=order(tmp_path, capability="8.6"))


def test_build_rtx_for_another_capability_needs_no_device(tmp_path: Path, gpu: SimpleNamespace) -> None:
    made, trace = build("rtx", tmp_path, wanted=order(tmp_path, capability="12.0"))
    assert trace.capability == [("SM120", 0)]
    assert trace.config.num_compute_capabilities == 1
    assert trace.host_code == []  # there is no device to load it on
    assert gpu.closed == 0
    assert made.layers == {"fp32": 2}
    assert "with the graph's precisions" in made.notes[0]


def test_build_rtx_for_this_device_targets_the_current_capability(tmp_path: Path) -> None:
    _, trace = build("rtx", tmp_path)
    assert trace.capability == [("CURRENT", 0)]


@pytest.mark.parametrize("capability", ["9.0", "8.60", "x"])
def test_build_rtx_for_an_unknown_capability_is_unsuitable(capability: str, tmp_path: Path) -> None:
    with pytest.raises(Unsuitable, match=f"builds for compute capability 7.5, 8.6, 12.0, not {capability}"):
        build("rtx", tmp_path, wanted=order(tmp_path, capability=capability))


def test_build_rtx_on_an_unsupported_device_is_unsuitable(tmp_path: Path, gpu: SimpleNamespace) -> None:
    gpu.properties.compute_capability = "9.0"
    with pytest.raises(Unsuitable, match=r"builds for compute capability 7\.5, 8\.6, 12\.0, but this device has 9\.0"):
        build("rtx", tmp_path)
    assert gpu.closed == 1


@pytest.mark.parametrize(("generation", "advice"), [("10", r"with a CUDA device$"), ("rtx", "--for sm_86`$")])
def test_build_without_a_device_says_what_to_do(
    generation: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(name: str) -> None:
        raise EngineUnusable("cuInit failed")

    monkeypatch.setattr(load, "open_device", none)
    with pytest.raises(EngineUnusable, match=rf"no CUDA device can be used here \(cuInit failed\).*{advice}"):
        build(generation, tmp_path)


# -- DLA ------------------------------------------------------------------------------------------------------------

DLA = "dla_core=1;workspace_mb=64"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_build_dla_layers_that_fall_back_are_reported(generation: str, tmp_path: Path) -> None:
    script = Script(cores=2, on_dla=False)
    made, trace = build(generation, tmp_path, script, order(tmp_path, options=DLA))
    assert trace.config.DLA_core == 1
    assert trace.config.default_device_type.name == "DLA"
    assert "GPU_FALLBACK" in trace.flags
    assert made.fallback == ("2 of 2 layers run on the GPU and not on DLA core 1: conv1, relu1",)


def test_build_dla_reports_what_the_builder_did(tmp_path: Path) -> None:
    script = Script(cores=2, says=[("INFO", "[GpuLayer] SOFTMAX: out"), ("INFO", "[DlaLayer] {ForeignNode[a...b]}")])
    made, _ = build("10", tmp_path, script, order(tmp_path, options=DLA))
    assert made.fallback == ("1 of 2 layers run on the GPU and not on DLA core 1: SOFTMAX: out",)
    made, _ = build("10", tmp_path, Script(cores=2), order(tmp_path, options=DLA))
    assert made.fallback == ()


@pytest.mark.parametrize("cores", [0, 1])
def test_build_dla_core_that_does_not_exist_is_unsuitable(cores: int, tmp_path: Path) -> None:
    with pytest.raises(Unsuitable, match=r"tensorrt\.dla_core"):
        build("10", tmp_path, Script(cores=cores), order(tmp_path, options=DLA))
