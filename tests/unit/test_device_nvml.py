"""NVML by way of its C interface: a stand-in for the logic, and a compiled library for the interface itself."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.device import nvml

REFUSED = 3  # NVML_ERROR_NOT_SUPPORTED
RTX = nvml.Gpu("NVIDIA GeForce RTX 4070", "8.9", memory_mb=12282, memory_bus_bits=192, cores=5888)


class Library:
    """One card that answers. `codes` are what functions return instead; None: the library lacks the function."""

    def __init__(self, **codes: int | None) -> None:
        self._codes = codes
        self.closed = 0

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return object.__getattribute__(self, name)
        code = self._codes.get(name, 0)
        if code is None:
            raise AttributeError(name)
        return object.__getattribute__(self, name) if code == 0 else lambda *_: code

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlShutdown(self) -> int:
        self.closed += 1
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:
        return self._write(text, size, b"550.54.14")

    def nvmlSystemGetCudaDriverVersion_v2(self, number: Any) -> int:
        return self._put(number, 12040)

    def nvmlDeviceGetCount_v2(self, number: Any) -> int:
        return self._put(number, 1)

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        return self._put(device, 7)

    def nvmlDeviceGetPciInfo_v3(self, device: Any, info: Any) -> int:
        assert device.value == 7
        info._obj.address = b"00000000:0A:00.0"
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:
        memory._obj.total = 12282 << 20
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, device: Any, major: Any, minor: Any) -> int:
        return self._put(major, 8) or self._put(minor, 9)

    def nvmlDeviceGetName(self, device: Any, text: Any, size: Any) -> int:
        return self._write(text, size, b"NVIDIA GeForce RTX 4070")

    def nvmlDeviceGetNumGpuCores(self, device: Any, number: Any) -> int:
        return self._put(number, 5888)

    def nvmlDeviceGetMemoryBusWidth(self, device: Any, number: Any) -> int:
        return self._put(number, 192)

    @staticmethod
    def _put(place: Any, value: int) -> int:
        place._obj.value = value
        return 0

    @staticmethod
    def _write(text: Any, size: Any, value: bytes) -> int:
        assert len(text) == size.value > len(value)
        text.value = value
        return 0


def test_ask_reads_driver_and_gpus() -> None:
    library = Library()
    assert nvml.ask(library) == nvml.Reading("550.54.14", "12.4", gpus={"0000:0a:00.0": RTX})
    assert library.closed == 1


def test_gpu_facts_are_the_known_fields() -> None:
    assert RTX.facts() == {
        "name": "NVIDIA GeForce RTX 4070",
        "compute_capability": "8.9",
        "memory_mb": "12282",
        "memory_bus_bits": "192",
        "cores": "5888",
    }
    assert nvml.Gpu("NVIDIA Thor").facts() == {"name": "NVIDIA Thor"}


@pytest.mark.parametrize("code", [REFUSED, None])
def test_ask_unsupported_functions_leave_fields_empty(code: int | None) -> None:
    reading = nvml.ask(
        Library(
            nvmlDeviceGetMemoryInfo=code,
            nvmlDeviceGetMemoryBusWidth=code,
            nvmlDeviceGetNumGpuCores=code,
            nvmlSystemGetDriverVersion=code,
            nvmlDeviceGetCudaComputeCapability=code,
        )
    )
    assert reading == nvml.Reading(cuda="12.4", gpus={"0000:0a:00.0": nvml.Gpu("NVIDIA GeForce RTX 4070")})


@pytest.mark.parametrize(
    "question", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3"]
)
def test_ask_gpu_without_an_answer_is_left_out(question: str) -> None:
    library = Library(**{question: REFUSED})
    assert nvml.ask(library) == nvml.Reading("550.54.14", "12.4")
    assert library.closed == 1


@pytest.mark.parametrize(
    ("code", "state"), [(18, nvml.REBOOT_PENDING), (9, "NVML error 9"), (None, "NVML error 13"), (12, "")]
)
def test_ask_failed_init_is_the_state(code: int | None, state: str) -> None:
    library = Library(nvmlInit_v2=code)
    assert nvml.ask(library) == nvml.Reading(state=state)
    assert library.closed == 0


def test_read_without_the_library_is_empty() -> None:
    assert nvml.read("libnothing-of-the-kind.so.1") == nvml.Reading()


# As nvml.h declares them.
SOURCE = r"""
#include <stdio.h>
#include <string.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_device, pci_subsystem; char address[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "550.54.14"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
static int cards[2];
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &cards[index]; return index > 1; }
int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
  memset(pci, 0xff, sizeof *pci);
  strcpy(pci->legacy, "wrong");
  snprintf(pci->address, sizeof pci->address, "0000%04X:C%d:00.0", 0xa, device == &cards[1]);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  memory->total = 81920ull << 20;
  return device == &cards[1];
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned size) { snprintf(name, size, "Card"); return 0; }
"""


@pytest.fixture
def build(tmp_path: Path) -> Any:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")

    def library(init: int) -> str:
        path = tmp_path / f"libnvidia-ml-{init}.so.1"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-w", f"-DINIT={init}", "-x", "c", "-", "-o", str(path)],
            input=SOURCE,
            text=True,
            check=True,
        )
        return str(path)

    return library


def test_read_calls_the_c_interface(build: Any) -> None:
    assert nvml.read(build(0)) == nvml.Reading(
        "550.54.14",
        "12.4",
        gpus={
            "000a:c0:00.0": nvml.Gpu("Card", "9.0", memory_mb=81920),
            "000a:c1:00.0": nvml.Gpu("Card", "9.0"),
        },
    )
    assert nvml.read(build(18)) == nvml.Reading(state=nvml.REBOOT_PENDING)


def test_read_after_an_update_uses_the_new_library(build: Any) -> None:
    library = build(0)
    assert nvml.read(library).driver == "550.54.14"
    assert Path(library).name not in Path("/proc/self/maps").read_text()
    shutil.move(build(18), library)
    assert nvml.read(library).state == nvml.REBOOT_PENDING


def test_main_prints_a_reading(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "edged.device.nvml"], capture_output=True, check=True, timeout=60)
    assert isinstance(msgspec.json.decode(done.stdout, type=nvml.Reading), nvml.Reading)


def test_structures_have_the_sizes_of_nvml_h() -> None:
    assert ctypes.sizeof(nvml._PciInfo) == 68
    assert ctypes.sizeof(nvml._Memory) == 24
