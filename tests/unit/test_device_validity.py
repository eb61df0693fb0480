"""Which facts are part of an engine's key: each that must change it, and those that must not."""

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
# What changes with ordinary updates and settings of a box, and never makes an engine wrong.
HARMLESS = [
    *(
        "os.kernel",
        "os.name",
        "os.version",
        "libc.version",
        "python.version",
        "memory.total_mb",
        "memory.limit_mb",
    ),
    *("cpu.quota", "cpu.cores", "cpu.threads", "cpu.features", "gpu.0.pci", "cuda.version", "cuda.driver"),
    *("nvidia.state", "board.model", "jetson.model"),
]


def key(box: Fingerprint, backend: str, kind: str, index: int = 0) -> str:
    return box.subset(relevant(backend, kind, index)).digest


def with_fact(box: Fingerprint, name: str, value: str = "changed") -> Fingerprint:
    return Fingerprint(box.facts | {name: value})


@pytest.mark.parametrize(("backend", "kind"), PAIRS)
def test_each_relevant_fact_changes_the_key(backend: str, kind: str) -> None:
    box = probe(BOXES / "jetson-orin-nano")
    for name in relevant(backend, kind):
        assert key(with_fact(box, name), backend, kind) != key(box, backend, kind), name


@pytest.mark.parametrize(("backend", "kind"), PAIRS)
def test_harmless_facts_do_not(backend: str, kind: str) -> None:
    box = probe(BOXES / "jetson-orin-nano")
    for name in HARMLESS:
        assert key(with_fact(box, name), backend, kind) == key(box, backend, kind), name


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
def test_one_backend_is_not_bothered_by_another(backend: str, kind: str, name: str, changes: bool) -> None:
    box = probe(BOXES / "desktop-rtx-4070")
    assert (key(with_fact(box, name), backend, kind) != key(box, backend, kind)) is changes


def test_each_device_has_its_own_facts() -> None:
    assert "gpu.1.name" in relevant("tensorrt", "cuda", 1)
    assert "gpu.0.name" not in relevant("tensorrt", "cuda", 1)
    assert "intel.npu.2.device" in relevant("openvino", "intel-npu", 2)


def test_names_come_once() -> None:
    for backend, kind in PAIRS:
        names = relevant(backend, kind)
        assert len(set(names)) == len(names)


def test_the_null_backend_depends_on_nothing() -> None:
    assert relevant("null", "cpu") == ()
    assert relevant("null", "cuda", 3) == ()


@pytest.mark.parametrize(("backend", "kind"), [("tensorrt", "cpu"), ("openvino", "cuda"), ("", ""), ("new", "cpu")])
def test_an_unknown_pair_is_refused_rather_than_free_of_conditions(backend: str, kind: str) -> None:
    with pytest.raises(Unsupported, match="builds no engines"):
        relevant(backend, kind)


# -- what is only beneath an engine ---------------------------------------------------------------------------------

EVERY_RELEVANT = sorted({name for backend, kind in PAIRS for name in relevant(backend, kind)})
# Not compiled into an engine: trying it, and comparing its answers, tells whether it still works.
DRIVERS = {
    *("cpu.vendor", "cpu.model", "cpu.signature"),
    *("nvidia.driver", "nvidia.kernel_module", "jetson.l4t", "jetson.power_mode"),
    *("intel.gpu.0.driver", "intel.gpu.0.driver_version", "intel.opencl", "intel.level_zero_gpu"),
    *("intel.graphics_compiler", "intel.npu.0.driver", "intel.npu.0.driver_version", "intel.npu_compiler"),
    *("intel.level_zero_npu", "intel.npu_firmware"),
}


def test_the_facts_that_are_only_beneath_an_engine_are_facts_of_some_engine() -> None:
    assert set(EVERY_RELEVANT) >= DRIVERS


@pytest.mark.parametrize("name", EVERY_RELEVANT)
def test_a_fact_is_either_beneath_an_engine_or_part_of_it(name: str) -> None:
    assert is_driver(name) is (name in DRIVERS)


@pytest.mark.parametrize(
    "name",
    [
        *("runtime.tensorrt", "runtime.openvino", "tensorrt.version", "cuda.runtime", "cudnn.version", "cpu.isa"),
        *("cpu.arch", "gpu.0.name", "jetson.soc", "jetson.module", "intel.gpu.0.device", "intel.npu.0.device"),
    ],
)
def test_what_an_engine_is_compiled_for_is_never_left_to_a_trial(name: str) -> None:
    assert not is_driver(name)


def test_every_device_of_a_box_has_its_own_driver() -> None:
    assert is_driver("intel.gpu.1.driver")
    assert is_driver("intel.npu.12.driver_version")


@pytest.mark.parametrize(
    "name",
    [
        *("", "cpu.models", "xcpu.model", "cpu.model.name", "nvidia.drivers", "intel.gpu.driver", "intel.gpu.x.driver"),
        *("recipe.device", "format", "model", "nvidia_driver", "intel-opencl"),
    ],
)
def test_a_name_that_only_looks_like_one_is_none(name: str) -> None:
    assert not is_driver(name)
