"""The OpenVINO backend: the device of a recipe, properties for compiling, and the composition of compiled models."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import onnx
import openvino as ov
import pytest

from edged.backends import openvino
from edged.backends.contract import Composition, Order, Recipe
from edged.device.root import Root
from edged.errors import EngineUnusable, Unsuitable
from edged.jobs.int8_pictures import SEVEN_BITS, Way
from edged.jobs.precision import convert
from tests import engines, models
from tests.unit import precision_models as nets

SAMPLES = [nets.picture(seed) for seed in range(4)]


class Core:
    """A fake of `openvino.Core` with these devices and their PCI buses; None if a device has no such property."""

    def __init__(self, **buses: int | None) -> None:
        self._buses = {name.replace("_", "."): bus for name, bus in buses.items()}

    @property
    def available_devices(self) -> list[str]:
        return list(self._buses)

    def get_property(self, device: str, name: str) -> object:
        bus = self._buses[device]
        if name != "DEVICE_PCI_INFO" or bus is None:
            raise RuntimeError("unsupported property")
        return SimpleNamespace(domain=0, bus=bus, device=2, function=0)


def recipe(device: str, precision: str = "fp32", **more: object) -> Recipe:
    return Recipe("openvino", device=device, precision=precision, **more)  # type: ignore[arg-type]


# -- names ----------------------------------------------------------------------------------------------------------


def sysfs(top: Path, *buses: int, kind: str = "drm/card") -> Root:
    """Return a box with an Intel device on each of these PCI buses, in the kernel's order."""
    for number, bus in enumerate(buses):
        device = top / f"sys/class/{kind}{number}/device"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x8086\n")
        (device / "uevent").write_text(f"DRIVER=xe\nPCI_SLOT_NAME=0000:{bus:02x}:02.0\n")
    return Root(top)


@pytest.mark.parametrize(
    ("core", "buses", "device", "expected"),
    [
        (Core(CPU=None), (), "cpu", "CPU"),
        (Core(CPU=None, GPU=0), (0,), "intel-gpu:0", "GPU"),
        (Core(CPU=None, GPU=None), (3,), "intel-gpu:0", "GPU"),
        (Core(CPU=None, GPU=5), (3,), "intel-gpu:0", "GPU"),  # other numbers in a virtual machine, but only one device
        (Core(CPU=None, GPU=None), (), "intel-gpu:0", "GPU"),  # sysfs has no address either
        (Core(CPU=None, GPU_0=0, GPU_1=3), (0, 3), "intel-gpu:0", "GPU.0"),
        (Core(CPU=None, GPU_0=0, GPU_1=3), (0, 3), "intel-gpu:1", "GPU.1"),
        # OpenVINO lists the integrated GPU first, and the others in the driver's order.
        (Core(CPU=None, GPU_0=10, GPU_1=9, GPU_2=3), (9, 3, 10), "intel-gpu:1", "GPU.1"),
        (Core(CPU=None, GPU_0=10, GPU_1=9, GPU_2=3), (9, 3, 10), "intel-gpu:2", "GPU.0"),
        (Core(CPU=None, GPU=3), (0, 3), "intel-gpu:1", "GPU"),  # OpenVINO does not see the other GPU
    ],
)
def test_find_device_matches_the_pci_address(
    core: Core, buses: tuple[int, ...], device: str, expected: str, tmp_path: Path
) -> None:
    assert openvino.find(core, device, sysfs(tmp_path, *buses)) == expected


@pytest.mark.parametrize("name", ["NPU", "NPU_4000"])
def test_find_npu_returns_the_only_one(name: str, tmp_path: Path) -> None:
    root = sysfs(tmp_path, 0, kind="accel/accel")
    assert openvino.find(Core(CPU=None, **{name: None}), "intel-npu:0", root) == name.replace("_", ".")


@pytest.mark.parametrize(
    ("core", "buses", "device", "expected"),
    [
        (Core(CPU=None), (), "intel-gpu:0", "does not see intel-gpu:0; it sees CPU; install intel-opencl-icd"),
        (Core(CPU=None), (0, 3), "intel-gpu:1", "does not see intel-gpu:1; it sees CPU; install intel-opencl-icd"),
        (
            Core(CPU=None, GPU=0),
            (0,),
            "intel-gpu:1",
            "does not see intel-gpu:1; it sees CPU, GPU; install intel-opencl",
        ),
        (
            Core(CPU=None, GPU=3),
            (0, 3),
            "intel-gpu:0",
            "does not see intel-gpu:0; it sees CPU, GPU; install intel-opencl",
        ),
        (
            Core(CPU=None, GPU=0),
            (0,),
            "intel-npu:0",
            "does not see intel-npu:0; it sees CPU, GPU; install intel-level-ze",
        ),
        (Core(CPU=None), (), "cuda:0", "OpenVINO serves cpu, intel-gpu and intel-npu devices, not cuda:0"),
        (Core(CPU=None, GPU=None), (0, 3), "intel-gpu:0", "cannot tell which OpenVINO device is intel-gpu:0; update"),
        (Core(GPU_0=None, GPU_1=None), (0, 3), "intel-gpu:1", "cannot tell which OpenVINO device is intel-gpu:1"),
    ],
)
def test_openvino_missing_device_is_unsuitable_with_the_remedy(
    core: Core, buses: tuple[int, ...], device: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(Unsuitable) as raised:
        openvino.find(core, device, sysfs(tmp_path, *buses))
    assert expected in str(raised.value)


def test_openvino_gpu_with_an_address_of_zeroes_is_unsuitable(tmp_path: Path) -> None:
    core = Core(GPU_0=3)
    core.get_property = lambda device, name: SimpleNamespace(domain=0, bus=0, device=0, function=0)  # type: ignore[method-assign]
    with pytest.raises(Unsuitable, match="cannot tell which"):
        openvino.find(core, "intel-gpu:0", sysfs(tmp_path, 0, 3))


# -- properties -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "precision", "hint"),
    [
        ("CPU", "fp32", "f32"),
        ("CPU", "bf16", "bf16"),
        ("CPU", "fp16", "f16"),
        ("CPU", "int8", "f32"),
        ("GPU.1", "fp32", "f32"),
        ("GPU", "fp16", "f16"),
        ("GPU", "int8", "f16"),
        ("NPU", "fp16", "f16"),
        ("NPU", "int8", "f16"),
    ],
)
def test_compile_properties_have_the_precision_as_hint(device: str, precision: str, hint: str) -> None:
    assert openvino.compile_properties(recipe("x", precision), device)["INFERENCE_PRECISION_HINT"] == hint


@pytest.mark.parametrize(("device", "precision"), [("NPU", "fp32"), ("NPU", "bf16"), ("CPU", "tf32"), ("GPU", "tf32")])
def test_compile_properties_precision_that_the_device_lacks_is_unsuitable(device: str, precision: str) -> None:
    with pytest.raises(Unsuitable, match=precision):
        openvino.compile_properties(recipe("x", precision), device)


def test_compile_properties_have_threads_for_cpus_only() -> None:
    assert openvino.compile_properties(recipe("cpu", threads=3), "CPU")["INFERENCE_NUM_THREADS"] == "3"
    assert "INFERENCE_NUM_THREADS" not in openvino.compile_properties(recipe("intel-gpu:0", threads=3), "GPU")
    assert "INFERENCE_NUM_THREADS" not in openvino.compile_properties(recipe("cpu"), "CPU")


# -- compositions, with the real runtime on the CPU -----------------------------------------------------------------


def build(
    folder: Path, proto: onnx.ModelProto, precision: str, path: str = "", device: str = "cpu"
) -> tuple[Order, Composition]:
    """Build an engine. Return the order that opens it, and its composition."""
    path = path or str(models.save(proto, folder / "model.onnx"))
    wanted = Order(path, models.signature(proto), recipe(device, precision))
    return engines.build(wanted, folder / f"engine-{precision}")


def test_build_counts_layers_by_the_precision_in_use(tmp_path: Path) -> None:
    _, made = build(tmp_path, nets.chain(4), "fp32")
    assert made.layers.keys() == {"fp32"}
    assert made.layers["fp32"] >= 4
    assert made.notes == made.fallback == ()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_build_in_lower_precision_reports_the_precision_in_use(tmp_path: Path, precision: str) -> None:
    _, made = build(tmp_path, nets.chain(4), precision)
    names = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
    compiled = ov.Core().compile_model(
        str(tmp_path / "model.onnx"), "CPU", openvino.compile_properties(recipe("cpu", precision), "CPU")
    )
    taken = names[compiled.get_property("INFERENCE_PRECISION_HINT").to_string()]
    assert taken in made.layers
    if taken == precision:
        assert made.notes == ()
    else:  # a CPU without instructions for this precision
        assert made.notes[0].startswith(f"{precision} was requested, but OpenVINO computes in ")
        assert precision not in made.layers


def test_build_quantised_graph_runs_in_int8_with_similar_answers(tmp_path: Path) -> None:
    proto = nets.chain(4)
    (tmp_path / "graph").mkdir()
    # On every processor: on those without VNNI, sums of 8-bit products overflow.
    way = Way(levels=SEVEN_BITS)
    made = convert(nets.store(proto, tmp_path), "int8", tmp_path / "graph" / "model.onnx", SAMPLES, way)
    order, composition = build(tmp_path, proto, "int8", made.path)
    if "int8" in composition.layers:
        assert composition.layers["int8"] >= 3
        assert composition.notes == ()
    else:  # an ARM CPU without dot products, which a note must report
        assert platform.machine() == "aarch64"
        assert any(note.startswith("int8 was requested, but OpenVINO computes in ") for note in composition.notes)
    session = engines.opened(order)
    for seed in range(3):
        expected = nets.answers(made.path, nets.picture(seed))["y"]
        found = session.infer(nets.picture(seed))["y"]
        np.testing.assert_allclose(found, expected, atol=float(np.abs(expected).max()) * 0.05)


def test_openvino_missing_plugin_properties_are_ignored() -> None:
    class Silent:
        def get_runtime_model(self) -> object:
            raise RuntimeError("not implemented")

    assert openvino.kinds(Silent()) is None
    made = openvino.composition(Silent(), recipe("intel-npu:0", "fp16"), "NPU")
    assert made.layers == {}
    assert made.notes == ("OpenVINO's NPU device does not report the layers of the compiled model",)


# -- missing devices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["intel-gpu:7", "intel-npu:7"])
def test_build_and_open_on_a_missing_device_are_refused(tmp_path: Path, device: str) -> None:
    order, _ = build(tmp_path, models.conv(), "fp32")
    with pytest.raises(Unsuitable, match=f"does not see {device}"):
        build(tmp_path, models.conv(), "fp16", device=device)
    with pytest.raises(EngineUnusable, match=f"does not see {device}"):
        engines.opened(msgspec.structs.replace(order, recipe=recipe(device, "fp16")))


def test_build_for_an_npu_with_dynamic_dimensions_is_unsuitable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "find", lambda core, device: "NPU")
    with pytest.raises(Unsuitable, match="'x'"):
        build(tmp_path, models.dynamic(), "fp16", device="intel-npu:0")
