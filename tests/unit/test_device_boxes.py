"""Recorded boxes replayed: their facts and devices."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from edged.cli.app import app
from edged.device.fingerprint import Device, Fingerprint, devices, probe
from edged.device.nvidia import REBOOT_PENDING

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
        "gpu.0.compute_capability": "8.9",
        "gpu.0.cores": "5888",
        "gpu.0.memory_bus_bits": "192",
        "gpu.0.memory_mb": "12282",
        "gpu.0.name": "NVIDIA GeForce RTX 4070",
        "gpu.0.pci": "0000:01:00.0",
        "intel.gpu.0.device": "0xa780",
        "intel.gpu.0.driver": "i915",
        "intel.gpu.0.integrated": "yes",
        "intel.graphics_compiler": "1.0.15468.25-2",
        "intel.opencl": "23.43.27642.40-1ubuntu3",
        "nvidia.driver": "550.144.03",
        "nvidia.kernel_module": "550.144.03",
        "runtime.cuda": "12.9.79",
        "runtime.cudnn": "9.10.2.21",
        "runtime.onnxruntime_gpu": "1.23.2",
        "runtime.openvino": "2026.4.1",
        "runtime.tensorrt": "10.13.3.9",
        "tensorrt.version": "10.13.3.9",
    }
    cpu, cuda, intel = devices(box)
    assert (cpu.name, cpu.memory_mb) == ("cpu", 31873)
    card = "NVIDIA GeForce RTX 4070, compute capability 8.9"
    assert cuda == Device("cuda:0", "cuda", card, 12282, 0, "8.9", False)
    assert intel == Device("intel-gpu:0", "intel-gpu", "Intel GPU 0xa780 (i915)", 31873, is_integrated=True)


def test_a_desktop_whose_driver_was_upgraded_waits_for_its_reboot() -> None:
    """NVML answers nothing then, so that the card's constants are unknown until the reboot."""
    box = probe(BOXES / "desktop-reboot-pending")
    assert box.subset(["gpu", "nvidia", "cuda"]).facts == {
        "gpu.0.name": "NVIDIA GeForce RTX 4070",
        "gpu.0.pci": "0000:01:00.0",
        "nvidia.driver": "570.133.07",
        "nvidia.kernel_module": "550.144.03",
        "nvidia.state": REBOOT_PENDING,
    }
    assert devices(box)[1] == Device("cuda:0", "cuda", "NVIDIA GeForce RTX 4070")


@pytest.mark.parametrize("name", sorted(path.name for path in BOXES.iterdir() if path.is_dir()))
def test_no_other_box_waits_for_a_reboot(name: str) -> None:
    assert ("nvidia.state" in probe(BOXES / name).facts) is (name == "desktop-reboot-pending")


def test_nuc_with_an_integrated_gpu() -> None:
    box = probe(BOXES / "intel-nuc-11")
    assert box.subset(["intel", "runtime", "cpu.model"]).facts == {
        "cpu.model": "11th Gen Intel(R) Core(TM) i5-1135G7 @ 2.40GHz",
        "intel.gpu.0.device": "0x9a49",
        "intel.gpu.0.driver": "i915",
        "intel.gpu.0.integrated": "yes",
        "intel.graphics_compiler": "1.0.12504.6-1+b1",
        "intel.opencl": "22.43.24595.41-1",
        "runtime.onnxruntime": "1.31.1",
        "runtime.openvino": "2026.4.1",
    }
    assert "avx512_vnni" in box.facts["cpu.features"]
    assert devices(box)[1:] == (
        Device("intel-gpu:0", "intel-gpu", "Intel GPU 0x9a49 (i915)", 15798, is_integrated=True),
    )


def test_nuc_with_an_npu() -> None:
    box = probe(BOXES / "intel-nuc-14-npu")
    npu = "1.13.0.20250131-13074932693"
    assert box.subset(["intel"]).facts == {
        "intel.gpu.0.device": "0x7d55",
        "intel.gpu.0.driver": "i915",
        "intel.gpu.0.integrated": "yes",
        "intel.graphics_compiler": "2.7.11+18581",
        "intel.level_zero_gpu": "25.05.32567.17-0",
        "intel.level_zero_npu": npu,
        "intel.npu.0.device": "0x7d1d",
        "intel.npu.0.driver": "intel_vpu",
        "intel.npu.0.integrated": "yes",
        "intel.npu_compiler": npu,
        "intel.npu_firmware": npu,
        "intel.opencl": "25.05.32567.17-0",
    }
    assert devices(box)[1:] == (
        Device("intel-gpu:0", "intel-gpu", "Intel GPU 0x7d55 (i915)", 31631, is_integrated=True),
        Device("intel-npu:0", "intel-npu", "Intel NPU 0x7d1d (intel_vpu)", 31631, is_integrated=True),
    )


def test_two_cards_and_a_discrete_intel_gpu_are_told_apart() -> None:
    found = devices(
        Fingerprint(
            {
                "memory.total_mb": "64000",
                **{f"gpu.{n}.name": "NVIDIA L4" for n in (0, 1)},
                **{f"gpu.{n}.compute_capability": "8.9" for n in (0, 1)},
                "gpu.1.memory_mb": "23034",
                "intel.gpu.0.device": "0xe20b",
                "intel.gpu.0.driver": "xe",
            }
        )
    )
    assert found[1:] == (
        Device("cuda:0", "cuda", "NVIDIA L4, compute capability 8.9", None, 0, "8.9"),
        Device("cuda:1", "cuda", "NVIDIA L4, compute capability 8.9", 23034, 1, "8.9"),
        Device("intel-gpu:0", "intel-gpu", "Intel GPU 0xe20b (xe)"),
    )


@pytest.mark.parametrize("box", sorted(path.name for path in BOXES.iterdir() if path.is_dir()))
def test_the_command_shows_a_recorded_box(box: str) -> None:
    shown = CliRunner().invoke(app, ["device", "--root", str(BOXES / box), "--json"])
    assert shown.exit_code == 0
    said = msgspec.json.decode(shown.stdout)
    found = probe(BOXES / box)
    assert said["facts"] == found.facts
    assert said["devices"] == [msgspec.to_builtins(device) for device in devices(found)]


@pytest.mark.parametrize("box", sorted(path.name for path in BOXES.iterdir() if path.is_dir()))
def test_facts_are_short_printable_and_anonymous(box: str) -> None:
    found = probe(BOXES / box)
    assert list(found.facts) == sorted(found.facts)
    for name, value in found.facts.items():
        assert value == " ".join(value.split()), name
        assert value.isprintable(), name
    everything = str(found.facts).lower()
    assert not any(word in everything for word in ("gpu-", "serial", "uuid", "mhz"))
