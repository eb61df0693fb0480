"""Intel GPUs and NPUs from sysfs and dpkg."""

from __future__ import annotations

from pathlib import Path

from edged.device import intel
from edged.device.root import Root
from tests.unit.device_files import write


def device(top: Path, node: str, code: str, driver: str, slot: str, vendor: str = "0x8086") -> None:
    write(top, f"sys/class/{node}/device/vendor", f"{vendor}\n")
    write(top, f"sys/class/{node}/device/device", f"{code}\n")
    write(top, f"sys/class/{node}/device/uevent", f"DRIVER={driver}\nPCI_SLOT_NAME={slot}\n")


def facts(top: Path) -> dict[str, str]:
    return {name: value for name, value in intel.probe(Root(top)).items() if value}


def test_devices_are_numbered_by_slot_and_others_are_left_out(tmp_path: Path) -> None:
    device(tmp_path, "drm/card0", "0xe20b", "xe", "0000:03:00.0")
    device(tmp_path, "drm/card1", "0x7d55", "i915", "0000:00:02.0")
    device(tmp_path, "drm/card1-HDMI-A-1", "0x7d55", "i915", "0000:00:02.0")
    device(tmp_path, "drm/card2", "0x2786", "nvidia", "0000:01:00.0", vendor="0x10de")
    device(tmp_path, "accel/accel0", "0x7d1d", "intel_vpu", "0000:00:0b.0")
    write(tmp_path, "sys/module/xe/version", "1.2.3\n")
    assert {name: value.strip() for name, value in facts(tmp_path).items()} == {
        "intel.gpu.0.device": "0x7d55",
        "intel.gpu.0.driver": "i915",
        "intel.gpu.0.integrated": "yes",
        "intel.gpu.1.device": "0xe20b",
        "intel.gpu.1.driver": "xe",
        "intel.gpu.1.driver_version": "1.2.3",
        "intel.npu.0.device": "0x7d1d",
        "intel.npu.0.driver": "intel_vpu",
        "intel.npu.0.integrated": "yes",
    }


def test_driver_packages_count_only_with_a_device(tmp_path: Path) -> None:
    write(
        tmp_path,
        "var/lib/dpkg/status",
        "Package: intel-opencl-icd\nStatus: install ok installed\nVersion: 25.1-1\n\n"
        "Package: intel-level-zero-gpu\nStatus: install ok installed\nVersion: 1.3-2\n\n"
        "Package: intel-driver-compiler-npu\nStatus: install ok installed\nVersion: 1.8\n",
    )
    assert facts(tmp_path) == {}
    device(tmp_path, "drm/card0", "0x46a6", "i915", "0000:00:02.0")
    assert facts(tmp_path) == {
        "intel.gpu.0.device": "0x46a6",
        "intel.gpu.0.driver": "i915",
        "intel.gpu.0.integrated": "yes",
        "intel.opencl": "25.1-1",
        "intel.level_zero_gpu": "1.3-2",
    }


def test_without_dpkg_the_library_tells_the_version(tmp_path: Path) -> None:
    device(tmp_path, "drm/card0", "0x46a6", "i915", "0000:00:02.0")
    write(tmp_path, "usr/lib64/libze_intel_gpu.so.1.3.29735", "")
    (tmp_path / "usr/lib64/libze_intel_gpu.so.1").symlink_to("libze_intel_gpu.so.1.3.29735")
    assert facts(tmp_path)["intel.level_zero_gpu"] == "1.3.29735"


def test_a_device_without_a_driver(tmp_path: Path) -> None:
    write(tmp_path, "sys/class/drm/card0/device/vendor", "0x8086\n")
    assert facts(tmp_path) == {}
