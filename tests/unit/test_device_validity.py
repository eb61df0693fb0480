"""The facts in an engine's key: facts that must change the key, and facts that must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.device.fingerprint import Fingerprint, probe
from edged.device.validity import is_driver, relevant
from edged.errors import Unsupported

BOXES = Path(__file__).parents[1] / "fixtures" / "devices"
PAIRS = [
    ("onnxruntime", "cpu"),
    ("onnxruntime", "cuda"),
    ("openvino", "cpu"),
    ("openvino", "intel-gpu"),
    ("openvino", "intel-npu"),
    ("tensorrt", "cuda"),
    ("tensorrt_rtx", "cuda"),
]
# Facts of a box whose change never makes an engine invalid.
HARMLESS = """
    os.kernel os.name os.version libc.version python.version memory.total_mb memory.limit_mb cpu.quota cpu.cores
    cpu.threads cpu.features runtime.onnxruntime_gpu_code gpu.0.pci cuda.version cuda.driver nvidia.state board.model
    jetson.model
"""


def key(box: Fingerprint, backend: str, kind: str) -> list[str | None]:
    """Return the values of the facts in an engine's key."""
    return [box.facts.get(name) for name in relevant(backend, kind)]


def with_fact(box: Fingerprint, name: str, value: str = "changed") -> Fingerprint:
    return Fingerprint(box.facts | {name: value})


@pytest.mark.parametrize(("backend", "kind"), PAIRS)
def test_key_changes_with_relevant_but_not_with_harmless_facts(backend: str, kind: str) -> None:
    box = probe(BOXES / "jetson-orin-nano")
    names = relevant(backend, kind)
    assert len(set(names)) == len(names)
    for name in (*names, *HARMLESS.split()):
        assert (key(with_fact(box, name), backend, kind) != key(box, backend, kind)) is (name in names), name
    assert not set(names) & {*HARMLESS.split()}


@pytest.mark.parametrize(
    ("backend", "kind", "name", "changes"),
    [
        ("onnxruntime", "cpu", "runtime.openvino", False),
        ("onnxruntime", "cpu", "nvidia.driver", False),
        ("openvino", "cpu", "runtime.onnxruntime", False),
        ("openvino", "cpu", "cpu.isa", True),
        ("tensorrt", "cuda", "runtime.openvino", False),
        ("tensorrt", "cuda", "cpu.isa", False),
        ("tensorrt", "cuda", "nvidia.driver", True),
        ("tensorrt", "cuda", "jetson.power_mode", True),
        ("tensorrt", "cuda", "gpu.1.name", False),
        ("tensorrt_rtx", "cuda", "tensorrt.version", False),
        ("openvino", "intel-gpu", "intel.opencl", True),
        ("openvino", "intel-gpu", "intel.npu_firmware", False),
    ],
)
def test_key_ignores_facts_of_other_backends(backend: str, kind: str, name: str, changes: bool) -> None:
    box = probe(BOXES / "desktop-rtx-4070")
    assert (key(with_fact(box, name), backend, kind) != key(box, backend, kind)) is changes


def test_relevant_has_the_facts_of_the_device_index() -> None:
    assert "gpu.1.name" in relevant("tensorrt", "cuda", 1)
    assert "gpu.0.name" not in relevant("tensorrt", "cuda", 1)
    assert "intel.npu.2.device" in relevant("openvino", "intel-npu", 2)
    assert relevant("null", "cuda", 3) == ()


@pytest.mark.parametrize(("backend", "kind"), [("tensorrt", "cpu"), ("openvino", "cuda"), ("", ""), ("new", "cpu")])
def test_relevant_unknown_pair_is_refused(backend: str, kind: str) -> None:
    with pytest.raises(Unsupported, match="builds no engines"):
        relevant(backend, kind)


# Facts that are not compiled into an engine. After a change, a trial shows whether the engine still works.
DRIVERS = """
    cpu.vendor cpu.model cpu.signature nvidia.driver nvidia.kernel_module jetson.l4t jetson.power_mode
    intel.gpu.0.driver intel.gpu.0.driver_version intel.opencl intel.level_zero_gpu intel.graphics_compiler
    intel.npu.0.driver intel.npu.0.driver_version intel.npu_compiler intel.level_zero_npu intel.npu_firmware
"""
LOOKALIKES = """
    cpu.models xcpu.model cpu.model.name nvidia.drivers intel.gpu.driver intel.gpu.x.driver recipe.device format model
    nvidia_driver intel-opencl
"""


def test_is_driver_only_for_facts_that_are_not_compiled_in() -> None:
    every = {name for backend, kind in PAIRS for name in relevant(backend, kind)}
    assert {name for name in every if is_driver(name)} == {*DRIVERS.split()}
    assert is_driver("intel.gpu.1.driver")
    assert is_driver("intel.npu.12.driver_version")
    assert not any(map(is_driver, ("", *LOOKALIKES.split())))
