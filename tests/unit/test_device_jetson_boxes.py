"""Recorded Jetsons replayed: their facts and devices, across modules and JetPacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.device.fingerprint import Device, devices, probe

BOXES = Path(__file__).parents[1] / "fixtures" / "devices"


def test_jetson_orin_nano() -> None:
    box = probe(BOXES / "jetson-orin-nano")
    model = "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"
    assert box.subset(["jetson", "gpu", "nvidia", "cuda", "cudnn", "tensorrt", "runtime", "board", "os"]).facts == {
        "board.model": model,
        "cuda.runtime": "12.6.68",
        "cuda.version": "12.6.11",
        "cudnn.version": "9.3.0",
        "gpu.0.compute_capability": "8.7",
        "gpu.0.integrated": "yes",
        "gpu.0.memory_mb": "8192",
        "gpu.0.name": "tegra234 integrated GPU",
        "jetson.l4t": "36.4.3",
        "jetson.model": model,
        "jetson.module": "p3767-0005",
        "jetson.power_mode": "MAXN_SUPER",
        "jetson.soc": "tegra234",
        "nvidia.driver": "540.4.0",
        "nvidia.kernel_module": "540.4.0",
        "os.kernel": "5.15.148-tegra",
        "os.name": "ubuntu",
        "os.version": "22.04",
        "runtime.onnxruntime": "1.23.2",
        "runtime.tensorrt": "10.3.0",
        "tensorrt.version": "10.3.0.30",
    }
    assert devices(box) == (
        Device("cpu", "cpu", "Cortex-A78AE, 6 CPUs", 7619),
        Device("cuda:0", "cuda", f"{model}, compute capability 8.7", 7619, 0, "8.7", True),
    )


# Jetson: facts that tell the releases and modules apart.
AGX = {
    "jetson-agx-orin-jp60": {
        "cuda.runtime": "12.2.140",
        "cudnn.version": "8.9.4",
        "gpu.0.compute_capability": "8.7",
        "gpu.0.integrated": "yes",
        "gpu.0.memory_mb": "65536",
        "gpu.0.name": "tegra234 integrated GPU",
        "jetson.l4t": "36.3.0",
        "jetson.model": "NVIDIA Jetson AGX Orin Developer Kit",
        "jetson.module": "p3701-0005",
        "jetson.power_mode": "MODE_30W",
        "jetson.soc": "tegra234",
        "nvidia.driver": "540.3.0",
        "nvidia.kernel_module": "540.3.0",
        "python.version": "3.10",
        "runtime.onnxruntime": "1.23.2",
        "runtime.tensorrt": "8.6.2",
        "tensorrt.version": "8.6.2.3",
    },
    "jetson-agx-orin-jp72": {
        "cuda.runtime": "13.2.75",
        "cudnn.version": "9.20.0",
        "gpu.0.compute_capability": "8.7",
        "gpu.0.integrated": "yes",
        "gpu.0.memory_mb": "65536",
        "gpu.0.name": "tegra234 integrated GPU",
        "jetson.l4t": "39.2.0",
        "jetson.model": "NVIDIA Jetson AGX Orin Developer Kit",
        "jetson.module": "p3701-0005",
        "jetson.power_mode": "MAXN",
        "jetson.soc": "tegra234",
        "nvidia.driver": "595.78",
        "nvidia.kernel_module": "595.78",
        "python.version": "3.12",
        "runtime.onnxruntime": "1.31.1",
        "runtime.tensorrt": "10.16.2.10",
        "tensorrt.version": "10.16.2.10",
    },
    "jetson-agx-thor-jp71": {
        "cuda.driver": "13.0",
        "cuda.runtime": "13.0.48",
        "cudnn.version": "9.12.0",
        "gpu.0.compute_capability": "11.0",
        "gpu.0.integrated": "yes",
        "gpu.0.memory_mb": "131072",
        "gpu.0.name": "NVIDIA Thor",
        "gpu.0.pci": "0000:01:00.0",
        "jetson.l4t": "38.4.0",
        "jetson.model": "NVIDIA Jetson AGX Thor Developer Kit",
        "jetson.module": "p3834-0008",
        "jetson.power_mode": "120W",
        "jetson.soc": "tegra264",
        "nvidia.driver": "580.00",
        "nvidia.kernel_module": "580.00",
        "python.version": "3.12",
        "runtime.onnxruntime": "1.31.1",
        "runtime.tensorrt": "10.13.3.9",
        "tensorrt.version": "10.13.3.9",
    },
}


@pytest.mark.parametrize(
    ("name", "cpu", "memory_mb", "capability"),
    [
        ("jetson-agx-orin-jp60", "Cortex-A78AE, 12 CPUs", 62841, "8.7"),
        ("jetson-agx-orin-jp72", "Cortex-A78AE, 12 CPUs", 62708, "8.7"),
        ("jetson-agx-thor-jp71", "Neoverse-V3AE, 14 CPUs", 125771, "11.0"),
    ],
)
def test_jetson_agx(name: str, cpu: str, memory_mb: int, capability: str) -> None:
    box = probe(BOXES / name)
    wanted = ["jetson", "gpu", "nvidia", "cuda", "cudnn", "tensorrt", "runtime", "python"]
    assert box.subset(wanted).facts == AGX[name]
    description = f"{box.facts['jetson.model']}, compute capability {capability}"
    assert devices(box) == (
        Device("cpu", "cpu", cpu, memory_mb),
        Device("cuda:0", "cuda", description, memory_mb, 0, capability, True),
    )
