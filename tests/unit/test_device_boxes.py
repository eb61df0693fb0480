"""Recorded boxes replayed: their facts and devices."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edged.device.devices import Device, devices
from edged.device.fingerprint import probe

BOXES = Path(__file__).parents[1] / "fixtures" / "devices"


def isa(flags: str) -> str:
    return hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16]


def test_raspberry_pi_5() -> None:
    box = probe(BOXES / "raspberry-pi-5")
    assert box.facts == {
        "board.model": "Raspberry Pi 5 Model B Rev 1.0",
        "cpu.arch": "aarch64",
        "cpu.cores": "4",
        "cpu.features": "asimd asimdhp asimddp",
        "cpu.isa": isa("fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimdrdm asimddp"),
        "cpu.model": "Cortex-A76",
        "cpu.signature": "0x41/0xd0b",
        "cpu.threads": "4",
        "cpu.vendor": "ARM",
        "memory.total_mb": "8062",
        "os.kernel": "6.6.51+rpt-rpi-2712",
        "os.name": "debian",
        "os.version": "12",
        "python.version": "3.11",
        "runtime.onnxruntime": "1.31.1",
    }
    assert devices(box) == (Device("cpu", "cpu", "Cortex-A76, 4 CPUs", 8062),)


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
        Device("cuda:0", "cuda", f"{model}, compute capability 8.7", 7619),
    )


def test_server() -> None:
    box = probe(BOXES / "server-epyc")
    assert box.subset(["cpu.arch", "cpu.model", "cpu.signature", "cpu.quota", "memory", "runtime", "libc"]).facts == {
        "cpu.arch": "x86_64",
        "cpu.model": "AMD EPYC 9354P 32-Core Processor",
        "cpu.quota": "1.50",
        "cpu.signature": "family 25 model 17",
        "libc.version": "glibc 2.36",
        "memory.limit_mb": "4096",
        "memory.total_mb": "16000",
        "runtime.onnxruntime": "1.31.1",
        "runtime.openvino": "2026.4.1",
    }
    assert "avx512_vnni" in box.facts["cpu.features"]
    assert devices(box) == (Device("cpu", "cpu", "AMD EPYC 9354P 32-Core Processor, 1.50 CPUs", 4096),)


def test_desktop() -> None:
    box = probe(BOXES / "desktop-rtx-4070")
    assert box.subset(["gpu", "nvidia", "intel", "runtime", "tensorrt", "cpu.features", "cpu.vendor"]).facts == {
        "cpu.features": "sse4_2 avx f16c fma avx2 avx_vnni",
        "cpu.vendor": "GenuineIntel",
        "gpu.0.name": "NVIDIA GeForce RTX 4070",
        "gpu.0.pci": "0000:01:00.0",
        "intel.gpu.0.device": "0xa780",
        "intel.gpu.0.driver": "i915",
        "intel.graphics_compiler": "1.0.15468.25-2",
        "intel.opencl": "23.43.27642.40-1ubuntu3",
        "nvidia.driver": "550.144.03",
        "nvidia.kernel_module": "550.144.03",
        "runtime.cuda": "12.9.79",
        "runtime.cudnn": "9.10.2.21",
        "runtime.onnxruntime_gpu": "1.23.2",
        "runtime.openvino": "2026.4.1",
        "runtime.tensorrt": "10.13.3.9",
    }
    assert [(device.name, device.kind, device.memory_mb) for device in devices(box)] == [
        ("cpu", "cpu", 31873),
        ("cuda:0", "cuda", None),
        ("intel-gpu:0", "intel-gpu", None),
    ]


@pytest.mark.parametrize("box", sorted(path.name for path in BOXES.iterdir() if path.is_dir()))
def test_facts_are_short_printable_and_anonymous(box: str) -> None:
    found = probe(BOXES / box)
    assert list(found.facts) == sorted(found.facts)
    for name, value in found.facts.items():
        assert value == " ".join(value.split()), name
        assert value.isprintable(), name
    everything = str(found.facts).lower()
    assert not any(word in everything for word in ("gpu-", "serial", "uuid", "mhz"))
