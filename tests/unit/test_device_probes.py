"""Facts from generated files: runtimes, system, Jetson, NVIDIA and Intel. See test_device_boxes for recorded boxes."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TypeAlias

import pytest

from edged.backends import registry
from edged.device import intel, jetson, libraries, nvidia, nvml, runtimes, system
from edged.device.fingerprint import Probe
from edged.device.root import Root
from tests.unit.device_files import dpkg, tree

Files: TypeAlias = dict[str, str] | dict[str, bytes] | dict[str, str | bytes]
Case: TypeAlias = tuple[Files, dict[str, str]]


def facts(probe: Probe, top: Path, files: Files) -> dict[str, str]:
    return {name: value.strip() for name, value in probe(tree(top, files)).items() if value}


# -- runtimes -------------------------------------------------------------------------------------------------------

SITE = "usr/local/lib/python3.11/dist-packages"
LIB = "usr/lib/x86_64-linux-gnu"
RTLIB = f"{LIB}/libnvinfer.so.10.3.0"
WHEEL_LIB = f"{SITE}/tensorrt_libs/libnvinfer.so.10.3.0"
MARKED = b"\x7fELF\0createInferBuilder\0tensorrt_version_10_3_0_30\0" + bytes(1 << 16)
TWO_CUDAS = {
    f"usr/local/cuda-{each}/version.json": f'{{"cuda": {{"version": "{each}.1"}}}}' for each in ("12.6", "13.0")
}
TWO_CUDAS |= {f"usr/local/cuda-{each}/targets/x86_64-linux/lib/libcudart.so.{each}.9": "" for each in ("12.6", "13.0")}
# Debian's packages use absolute links through /etc/alternatives.
LINKED_CUDA = {"etc/alternatives/cuda": "-> /usr/local/cuda-12.6", "usr/local/cuda": "-> /etc/alternatives/cuda"}


def package(name: str, version: str = "", site: str = SITE) -> dict[str, str]:
    return {f"{site}/{name}.dist-info/METADATA": f"Name: x\nVersion: {version}\n\nVersion: 9\n" if version else ""}


RUNTIMES: dict[str, Case] = {
    "onnxruntime": (package("onnxruntime-1.2.3", "1.2.3+local"), {"runtime.onnxruntime": "1.2.3+local"}),
    "onnxruntime of the GPU": (package("onnxruntime_gpu-1.2"), {"runtime.onnxruntime_gpu": "1.2"}),
    "tensorrt for RTX": (package("tensorrt_rtx_cu12_libs-1.2"), {"runtime.tensorrt_rtx": "1.2"}),
    "cudnn": (package("nvidia_cudnn_cu12-1.2"), {"runtime.cudnn": "1.2"}),
    "bindings": (package("tensorrt_cu13_bindings-1.2"), {"runtime.tensorrt": "1.2"}),
    "no version in the header": (
        {f"{SITE}/tensorrt-10.3.0.dist-info/METADATA": "Name: tensorrt\n\nVersion: 9 of the text\n"},
        {"runtime.tensorrt": "10.3.0"},
    ),
    "egg-info": (
        {f"{SITE}/onnxruntime-1.23.2-py3.11.egg-info": "Name: onnxruntime\nVersion: 1.23.2\n"},
        {"runtime.onnxruntime": "1.23.2"},
    ),
    "the service's environment comes first": (
        package("openvino-2.0", site="opt/edged/lib/python3.11/site-packages")
        | package("openvino-1.0", site="usr/lib/python3/dist-packages"),
        {"runtime.openvino": "2.0"},
    ),
    "native libraries before the metapackage": (
        package("tensorrt-10.13.3") | package("tensorrt_cu12_libs-10.13.3.9"),
        {"runtime.tensorrt": "10.13.3.9", "tensorrt.version": "10.13.3.9"},
    ),
    "the system's library without a wheel's": (
        {RTLIB: ""} | package("tensorrt_cu12_bindings-10.16.1.11"),
        {"runtime.tensorrt": "10.16.1.11", "tensorrt.version": "10.3.0"},
    ),
    "a wheel's library before the system's": (
        {RTLIB: ""} | package("tensorrt_cu12_libs-10.16.1.11.post1"),
        {"runtime.tensorrt": "10.16.1.11.post1", "tensorrt.version": "10.16.1.11"},
    ),
    "mark in the system's library": ({RTLIB: MARKED}, {"tensorrt.version": "10.3.0.30"}),
    "mark in a wheel's library": (
        {WHEEL_LIB: MARKED} | package("tensorrt_cu12_libs-10.3.0"),
        {"runtime.tensorrt": "10.3.0", "tensorrt.version": "10.3.0.30"},
    ),
    "mark of three numbers": ({RTLIB: b"\0tensorrt_version_10_3_0\0"}, {"tensorrt.version": "10.3.0"}),
    "mark without ends": ({RTLIB: b"tensorrt_version_10_3_0_30"}, {"tensorrt.version": "10.3.0"}),
    "fourth number from the package": (
        {RTLIB: "", f"{LIB}/libnvinfer.so.10": "-> libnvinfer.so.10.3.0"} | dpkg(libnvinfer10="10.3.0.26-1+cuda12.5"),
        {"tensorrt.version": "10.3.0.26"},
    ),
    "package of another copy": (
        {f"{LIB}/libnvinfer.so.10.16.2": ""} | dpkg(libnvinfer10="10.3.0.26-1+cuda12.5"),
        {"tensorrt.version": "10.16.2"},
    ),
    "versions as numbers": (
        {f"{LIB}/libnvinfer.so.{version}": "" for version in ("8.6.1", "10.3.0", "9.1.0")},
        {"tensorrt.version": "10.3.0"},
    ),
    "newest of two CUDAs": (TWO_CUDAS, {"cuda.version": "13.0.1", "cuda.runtime": "13.0.9"}),
    "the CUDA of the link": (TWO_CUDAS | LINKED_CUDA, {"cuda.version": "12.6.1", "cuda.runtime": "12.6.9"}),
}
for number, text in enumerate(("", "{", "[]", '{"cuda": 3}', '{"cuda": {"version": 3}}', "[" * 200_000, "null")):
    RUNTIMES[f"damaged CUDA version {number}"] = ({"usr/local/cuda/version.json": text}, {})


@pytest.mark.parametrize(("files", "expected"), RUNTIMES.values(), ids=RUNTIMES)
def test_runtimes_probe_returns_the_facts_of_a_tree(tmp_path: Path, files: Files, expected: dict[str, str]) -> None:
    assert facts(runtimes.probe, tmp_path, files) == expected


def test_runtimes_metadata_that_is_outside_the_tree_or_a_fifo_is_not_read(tmp_path: Path) -> None:
    top = tmp_path / "root"
    tree(tmp_path, {"outside/METADATA": "Version: 6.6.6\n"})
    (top / SITE / "onnxruntime-1.0.dist-info").mkdir(parents=True)
    os.mkfifo(top / SITE / "onnxruntime-1.0.dist-info/METADATA")
    outside = {
        f"{SITE}/openvino-1.0.dist-info/METADATA": f"-> {tmp_path}/outside/METADATA",
        f"{SITE}/tensorrt-9.dist-info": f"-> {tmp_path}/outside",
    }
    found = facts(runtimes.probe, top, outside)
    assert found == {"runtime.openvino": "1.0", "runtime.onnxruntime": "1.0"}


def test_runtimes_live_are_the_packages_of_this_interpreter() -> None:
    found = runtimes.probe(Root())
    assert sys.path
    for name in ("onnxruntime", "openvino"):
        try:
            expected = metadata.version(name)
        except metadata.PackageNotFoundError:
            expected = None
        assert found.get(f"runtime.{name}") == expected


def test_registry_tensorrt_needs_python_and_library() -> None:
    assert registry.version("tensorrt", {"runtime.tensorrt": "10.16.1.11"}) is None
    assert registry.version("tensorrt", {"tensorrt.version": "10.3.0.30"}) is None
    both = {"runtime.tensorrt": "10.3.0", "tensorrt.version": "10.3.0.30"}
    assert registry.version("tensorrt", both) == "10.3.0.30"
    assert registry.version("tensorrt", both | {"runtime.tensorrt": registry.ABSENT}) is None
    assert registry.usable(both) == ()
    assert registry.installed(both) == ("tensorrt",)
    assert registry.usable(both | {"gpu.0.name": "a card"}) == ("tensorrt",)


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("2.36-9+deb12u9", "2.36"),
        ("2:1.3.29735-1~22.04", "1.3.29735"),
        ("1.0-rc-2-3", "1.0-rc-2"),
        ("7", "7"),
        ("", ""),
    ],
)
def test_upstream_drops_epoch_and_revision(version: str, upstream: str) -> None:
    assert libraries.upstream(version) == upstream


def test_package_versions_has_only_installed_packages(tmp_path: Path) -> None:
    status = (
        "Package: a\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        "Package: b\nStatus: install ok half-installed\nVersion: 2\n\n"
        "Package: c\nVersion: 3\n\n"
        "Package: d\nDescription: x\n Package: e\nStatus: install ok installed\nVersion: 4"
    )
    root = tree(tmp_path, {libraries.STATUS: status})
    assert libraries.package_versions(root, ["a", "b", "c", "d", "e", "f", "."]) == {"d": "4"}


# -- system ---------------------------------------------------------------------------------------------------------

CGROUP = "sys/fs/cgroup"
SYSTEM: dict[str, Case] = {
    "no limits": ({}, {}),
    "debian": ({"etc/os-release": 'ID=debian\nVERSION_ID="12"\n'}, {"os.name": "debian", "os.version": "12"}),
    "ubuntu": (
        {"etc/os-release": "NAME='x'\nID='ubuntu'\nVERSION_ID='22.04'\n"},
        {"os.name": "ubuntu", "os.version": "22.04"},
    ),
    "arch": ({"etc/os-release": "ID=arch\n"}, {"os.name": "arch"}),
    "damaged os-release": ({"etc/os-release": "=\n==\nID\n"}, {}),
    "cgroup v2, the tightest limit on the way up": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            f"{CGROUP}/a/b/memory.max": "max\n",
            f"{CGROUP}/a/memory.max": "1073741824\n",
            f"{CGROUP}/a/b/cpu.max": "max 100000\n",
            f"{CGROUP}/a/cpu.max": "50000 100000\n",
        },
        {"memory.limit_mb": "1024", "cpu.quota": "0.50"},
    ),
    "cgroup v1": (
        {
            "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n1:name=systemd:/\n0::/\n",
            f"{CGROUP}/memory/x/memory.limit_in_bytes": "536870912\n",
            f"{CGROUP}/memory/memory.limit_in_bytes": "9223372036854771712\n",
            f"{CGROUP}/cpu,cpuacct/x/cpu.cfs_quota_us": "150000\n",
            f"{CGROUP}/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            f"{CGROUP}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            f"{CGROUP}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        {"memory.limit_mb": "512", "cpu.quota": "1.50"},
    ),
    "limits above the box": (
        {
            "proc/self/cgroup": "0::/\n",
            f"{CGROUP}/memory.max": str(1 << 40),
            f"{CGROUP}/cpu.max": "400000 100000\n",
        },
        {},
    ),
    "the host's path in a container": (
        {
            "proc/self/cgroup": "0::/system.slice/docker-1.scope\n",
            f"{CGROUP}/memory.max": "1073741824\n",
            f"{CGROUP}/cpu.max": "100000 100000\n",
        },
        {"memory.limit_mb": "1024", "cpu.quota": "1.00"},
    ),
    "damaged cgroup": ({"proc/self/cgroup": "\n:\n::\n:::::\nmemory\n0::/../../../etc\n"}, {}),
    "quota without a period": (
        {"proc/self/cgroup": "0::/\n", f"{CGROUP}/cpu.max": "100000 0\n", f"{CGROUP}/memory.max": "\u0663"},
        {},
    ),
    "endless path": ({"proc/self/cgroup": "0::/" + "a/" * 3000}, {}),
    "v1 quota without a period": (
        {"proc/self/cgroup": "1:cpu:/\n", f"{CGROUP}/cpu/cpu.cfs_quota_us": "1", "proc/cpuinfo": ""},
        {},
    ),
    "python and libc": (
        {"usr/lib/python3.9/os.py": "", "usr/lib/python3.12/os.py": ""} | dpkg(libc6="2.39-0ubuntu8"),
        {"python.version": "3.12", "libc.version": "glibc 2.39"},
    ),
}


@pytest.mark.parametrize(("files", "expected"), SYSTEM.values(), ids=SYSTEM)
def test_system_probe_returns_the_facts_of_a_tree(tmp_path: Path, files: Files, expected: dict[str, str]) -> None:
    box = {
        "proc/meminfo": "MemTotal:  2097152 kB\nMemFree: 1 kB\n",
        "proc/cpuinfo": "processor: 0\n\nprocessor: 1\n",
    }
    assert facts(system.probe, tmp_path, {**box, **files}) == {"memory.total_mb": "2048"} | expected


def test_system_unknown_memory_is_no_fact(tmp_path: Path) -> None:
    assert facts(system.probe, tmp_path, {"proc/meminfo": "MemTotal: many kB\n"}) == {}


# -- Jetson ---------------------------------------------------------------------------------------------------------

COMPATIBLE = "proc/device-tree/compatible"
MODES = "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=3 NAME=MODE_30W >\nCPU_ONLINE CORE_0 1\n"
ORIN = {COMPATIBLE: "nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0"}
ORIN_MODULE = {"jetson.soc": "tegra234", "jetson.module": "p3701-0005"}


def gpu(soc: str, capability: str) -> dict[str, str]:
    found = {"gpu.0.name": f"{soc} integrated GPU", "gpu.0.integrated": "yes"}
    return found | {"gpu.0.compute_capability": capability} if capability else found


ORIN_FACTS = ORIN_MODULE | gpu("tegra234", "8.7")
JETSON: dict[str, Case] = {
    "nothing": ({}, {}),
    "another board": ({COMPATIBLE: "raspberrypi,5-model-b\0brcm,bcm2712\0"}, {}),
    "another maker's SoC": ({"sys/devices/soc0/family": "Snapdragon\n", "sys/devices/soc0/soc_id": "35\n"}, {}),
    "Xavier": (
        {COMPATIBLE: "nvidia,p2972-0000\0nvidia,p2888-0001\0nvidia,tegra194\0"},
        {"jetson.soc": "tegra194", "jetson.module": "p2972-0000"} | gpu("tegra194", "7.2"),
    ),
    "Orin": (ORIN, ORIN_FACTS),
    "Thor": (
        {COMPATIBLE: "nvidia,p4071-0000+p3834-0008\0nvidia,tegra264\0"},
        {"jetson.soc": "tegra264", "jetson.module": "p3834-0008"} | gpu("tegra264", "11.0"),
    ),
    "a future SoC": ({COMPATIBLE: "nvidia,tegra999\0"}, {"jetson.soc": "tegra999"} | gpu("tegra999", "")),
    "release file": (
        ORIN | {"etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic\n"},
        ORIN_FACTS | {"jetson.l4t": "36.4.3"},
    ),
    "release of the package": (
        ORIN | dpkg(nvidia_l4t_core="36.4.7-20250918154033"),
        ORIN_FACTS | {"jetson.l4t": "36.4.7"},
    ),
    "damaged release file": (ORIN | {"etc/nv_tegra_release": "R36\n"}, ORIN_FACTS),
}
for chip, soc, capability in (("35", "tegra234", "8.7"), ("38", "tegra264", "11.0")):
    # In a container the device tree is hidden.
    JETSON[f"{soc} in a container"] = (
        {
            "sys/devices/soc0/family": "Tegra\n",
            "sys/devices/soc0/soc_id": f"{chip}\n",
            "sys/devices/soc0/machine": "NVIDIA Jetson\n",
            "proc/meminfo": "MemTotal: 7802296 kB\n",
        },
        {"jetson.model": "NVIDIA Jetson", "jetson.soc": soc, "gpu.0.memory_mb": "8192"} | gpu(soc, capability),
    )
for model, is_card in (("NVIDIA RTX 6000 Ada Generation", True), ("NVIDIA Thor", False), ("Orin (nvgpu)", False)):
    listed = {"proc/driver/nvidia/gpus/0005:01:00.0/information": f"Model: \t {model}\n"}
    JETSON[f"with {model}"] = (ORIN | listed, ORIN_MODULE if is_card else ORIN_FACTS)
for status, conf, mode in (
    ("pmode:0003 fmode:fanNull\n", MODES, "MODE_30W"),
    ("pmode:0000", MODES, "MAXN"),
    ("pmode:0007", MODES, "mode 7"),
    ("pmode:0002", "", "mode 2"),
    ("", MODES, ""),
):
    stored = {"var/lib/nvpmodel/status": status, "etc/nvpmodel.conf": conf}
    JETSON[f"power mode {status.strip()} is {mode}"] = (
        ORIN | stored,
        ORIN_FACTS | ({"jetson.power_mode": mode} if mode else {}),
    )
# MemTotal is less than the installed memory, by an amount that differs between kernel releases.
for kib, fitted in ((7802296, 8192), (3900000, 4096), (31000000, 32768), (64500000, 65536), (128600000, 131072)):
    for taken in (0, 20_000):
        JETSON[f"{kib - taken} kB of {fitted} MiB"] = (
            ORIN | {"proc/meminfo": f"MemTotal: {kib - taken} kB\n"},
            ORIN_FACTS | {"gpu.0.memory_mb": str(fitted)},
        )


@pytest.mark.parametrize(("files", "expected"), JETSON.values(), ids=JETSON)
def test_jetson_probe_returns_the_facts_of_a_tree(tmp_path: Path, files: Files, expected: dict[str, str]) -> None:
    assert facts(jetson.probe, tmp_path, files) == expected


# -- NVIDIA ---------------------------------------------------------------------------------------------------------

MODULE = "proc/driver/nvidia/version"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC: 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (x@y)  Fri Aug 16\n"
TEGRA = "usr/lib/aarch64-linux-gnu"
COMPILER = f"{TEGRA}/nvidia/libnvidia-ptxjitcompiler.so"
TEGRA_CUDA = {f"{TEGRA}/libcuda.so.1.1": "", f"{TEGRA}/libcuda.so.1": "-> libcuda.so.1.1"}
LOADED = {"nvidia.kernel_module": "550.54.14"}
PENDING = {"nvidia.state": nvidia.REBOOT_PENDING}
ANSWERS = '{"driver": "550.54.14", "cuda": "12.4", "gpus": {"0000:0a:00.0": {"name": "RTX", "memory_mb": 12282}}}'


def card(address: str, model: str, more: str = "GPU Excluded:\t No\n") -> dict[str, str]:
    text = f"Model: \t\t {model}\nGPU UUID: \t GPU-1-2\nBus Location: \t {address}\n{more}"
    return {f"proc/driver/nvidia/gpus/{address}/information": text}


def library(version: str) -> dict[str, str]:
    """Return a driver's library, and an older one without a link to it."""
    names = {f"{LIB}/libcuda.so.{version}": "", f"{LIB}/libcuda.so.570.1": ""}
    return names | {f"{LIB}/libcuda.so.1": f"-> libcuda.so.{version}"}


NVIDIA: dict[str, Case] = {
    "no driver": ({}, {}),
    "closed module": ({MODULE: CLOSED}, LOADED),
    "open module": ({MODULE: OPEN}, {"nvidia.kernel_module": "560.35.03"}),
    "damaged version": ({MODULE: "nothing of note\n"}, {}),
    "cards by PCI address, without UUID, without those excluded": (
        card("0000:81:00.0", "L4") | card("0000:01:00.0", "T4") | card("0000:02:00.0", "A2", "GPU Excluded:\t Yes\n"),
        {"gpu.0.name": "T4", "gpu.0.pci": "0000:01:00.0", "gpu.1.name": "L4", "gpu.1.pci": "0000:81:00.0"},
    ),
    "library of the module": ({MODULE: CLOSED} | library("550.54.14"), LOADED | {"nvidia.driver": "550.54.14"}),
    "newer library": ({MODULE: CLOSED} | library("560.35.03"), LOADED | {"nvidia.driver": "560.35.03"} | PENDING),
    "Jetson's library has no version": (TEGRA_CUDA, {}),
    "Jetson's compiler has the version": (TEGRA_CUDA | {f"{COMPILER}.540.4.0": ""}, {"nvidia.driver": "540.4.0"}),
    "Jetson's linked compiler": (
        {f"{COMPILER}.540.{each}.0": "" for each in (4, 5)}
        | {f"{COMPILER}.1": "-> libnvidia-ptxjitcompiler.so.540.4.0"},
        {"nvidia.driver": "540.4.0"},
    ),
    "upgraded Jetson": (
        {MODULE: OPEN.replace("x86_64  560.35.03", "aarch64  540.3.0"), f"{COMPILER}.540.4.0": ""},
        {"nvidia.driver": "540.4.0", "nvidia.kernel_module": "540.3.0"} | PENDING,
    ),
    "recorded answers of NVML": (
        {MODULE: CLOSED, nvml.RECORDED: ANSWERS} | card("0000:0a:00.0", "RTX 4070"),
        LOADED
        | {"cuda.driver": "12.4", "nvidia.driver": "550.54.14"}
        | {"gpu.0.name": "RTX", "gpu.0.memory_mb": "12282", "gpu.0.pci": "0000:0a:00.0"},
    ),
    "NVML waits for a reboot": ({nvml.RECORDED: f'{{"state": "{nvidia.REBOOT_PENDING}"}}'}, PENDING),
    "NVML fails": ({nvml.RECORDED: '{"state": "NVML error 9"}'}, {"nvidia.state": "NVML error 9"}),
}
for number, text in enumerate(("", "{", "[]", '{"gpus": []}', '{"gpus": {"a": {"memory_mb": "x"}}}', "[" * 200_000)):
    NVIDIA[f"damaged recording {number}"] = ({nvml.RECORDED: text}, {})


@pytest.mark.parametrize(("files", "expected"), NVIDIA.values(), ids=NVIDIA)
def test_nvidia_probe_returns_the_facts_of_a_tree(tmp_path: Path, files: Files, expected: dict[str, str]) -> None:
    assert facts(nvidia.probe, tmp_path, files) == expected


# -- Intel ----------------------------------------------------------------------------------------------------------


def device(node: str, code: str, driver: str, slot: str, vendor: str = "0x8086") -> dict[str, str]:
    folder = f"sys/class/{node}/device"
    event = f"DRIVER={driver}\nPCI_SLOT_NAME={slot}\n"
    return {f"{folder}/vendor": f"{vendor}\n", f"{folder}/device": f"{code}\n", f"{folder}/uevent": event}


ARC = device("drm/card0", "0x46a6", "i915", "0000:00:02.0")
ARC_FACTS = {"intel.gpu.0.device": "0x46a6", "intel.gpu.0.driver": "i915", "intel.gpu.0.integrated": "yes"}
DRIVERS = dpkg(intel_opencl_icd="25.1-1", intel_level_zero_gpu="1.3-2", intel_driver_compiler_npu="1.8")
INTEL: dict[str, Case] = {
    "devices by slot, without other makers' and connectors": (
        device("drm/card0", "0xe20b", "xe", "0000:03:00.0")
        | device("drm/card1", "0x7d55", "i915", "0000:00:02.0")
        | device("drm/card1-HDMI-A-1", "0x7d55", "i915", "0000:00:02.0")
        | device("drm/card2", "0x2786", "nvidia", "0000:01:00.0", vendor="0x10de")
        | device("accel/accel0", "0x7d1d", "intel_vpu", "0000:00:0b.0")
        | {"sys/module/xe/version": "1.2.3\n"},
        {
            "intel.gpu.0.device": "0x7d55",
            "intel.gpu.0.driver": "i915",
            "intel.gpu.0.integrated": "yes",
            "intel.gpu.1.device": "0xe20b",
            "intel.gpu.1.driver": "xe",
            "intel.gpu.1.driver_version": "1.2.3",
            "intel.npu.0.device": "0x7d1d",
            "intel.npu.0.driver": "intel_vpu",
            "intel.npu.0.integrated": "yes",
        },
    ),
    "packages without a device": (DRIVERS, {}),
    "packages of a device": (
        DRIVERS | ARC,
        ARC_FACTS | {"intel.opencl": "25.1-1", "intel.level_zero_gpu": "1.3-2"},
    ),
    "library without dpkg": (
        ARC
        | {
            "usr/lib64/libze_intel_gpu.so.1.3.29735": "",
            "usr/lib64/libze_intel_gpu.so.1": "-> libze_intel_gpu.so.1.3.29735",
        },
        ARC_FACTS | {"intel.level_zero_gpu": "1.3.29735"},
    ),
    "device without a driver": ({"sys/class/drm/card0/device/vendor": "0x8086\n"}, {}),
}


@pytest.mark.parametrize(("files", "expected"), INTEL.values(), ids=INTEL)
def test_intel_probe_returns_the_facts_of_a_tree(tmp_path: Path, files: Files, expected: dict[str, str]) -> None:
    assert facts(intel.probe, tmp_path, files) == expected
