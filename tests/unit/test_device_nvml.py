"""NVML through its C interface, with a compiled fake of the driver's library."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from edged.device import nvml

# Functions as nvml.h declares them, for two cards; the second does not report memory. CODES has pairs of a function's
# name and the error code that it returns.
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_device, pci_subsystem; char address[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
#define REFUSE do { const char *at = strstr(CODES, __func__); if (at) return atoi(at + strlen(__func__)); } while (0)
int shutdowns;
static int cards[2];
int nvmlInit_v2(void) { REFUSE; return 0; }
int nvmlShutdown(void) { shutdowns++; return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { REFUSE; snprintf(text, size, "550.54.14"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { REFUSE; *version = 12040; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { REFUSE; *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { REFUSE; *device = &cards[index]; return index > 1; }
int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
  REFUSE;
  memset(pci, 0xff, sizeof *pci);
  strcpy(pci->legacy, "wrong");
  snprintf(pci->address, sizeof pci->address, "0000%04X:C%d:00.0", 0xa, device == &cards[1]);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  REFUSE;
  memory->total = 81920ull << 20;
  return device == &cards[1];
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  REFUSE;
  *major = 9, *minor = 0;
  return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned size) { REFUSE; snprintf(name, size, "Card"); return 0; }
int nvmlDeviceGetNumGpuCores(void *device, unsigned *number) { REFUSE; *number = 5888; return 0; }
int nvmlDeviceGetMemoryBusWidth(void *device, unsigned *number) { REFUSE; *number = 192; return 0; }
"""
NAMED, FIRST, SECOND = nvml.Gpu("Card"), "000a:c0:00.0", "000a:c1:00.0"
CARDS = {
    FIRST: nvml.Gpu("Card", "9.0", memory_mb=81920, memory_bus_bits=192, cores=5888),
    SECOND: nvml.Gpu("Card", "9.0", memory_bus_bits=192, cores=5888),
}
NOT_SUPPORTED = 3
Build: TypeAlias = Callable[..., str]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Compile a library whose functions return these error codes; for None the function is missing."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")

    def library(**codes: int | None) -> str:
        path = tmp_path / f"libnvidia-ml-{len(list(tmp_path.iterdir()))}.so.1"
        refused = " ".join(f"{name} {code}" for name, code in codes.items() if code is not None)
        hidden = [f"-D{name}=hidden_{name}" for name, code in codes.items() if code is None]
        command = ["cc", "-shared", "-fPIC", "-w", f'-DCODES="{refused}"', *hidden, "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=SOURCE, text=True, check=True)
        return str(path)

    return library


def asked(path: str) -> tuple[nvml.Reading, int]:
    """Return the reading of a library, and how often nvmlShutdown was called."""
    library = ctypes.CDLL(path)
    return nvml.ask(library), ctypes.c_int.in_dll(library, "shutdowns").value


def test_ask_reads_driver_and_gpus(build: Build) -> None:
    assert asked(build()) == (nvml.Reading("550.54.14", "12.4", gpus=CARDS), 1)


def test_gpu_facts_are_the_known_fields() -> None:
    assert CARDS[FIRST].facts() == {
        "name": "Card",
        "compute_capability": "9.0",
        "memory_mb": "81920",
        "memory_bus_bits": "192",
        "cores": "5888",
    }
    assert NAMED.facts() == {"name": "Card"}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, None])
def test_ask_unsupported_functions_leave_fields_empty(build: Build, code: int | None) -> None:
    names = ("MemoryInfo", "MemoryBusWidth", "NumGpuCores", "CudaComputeCapability")
    codes = {f"nvmlDeviceGet{name}": code for name in names} | {"nvmlSystemGetDriverVersion": code}
    assert asked(build(**codes)) == (nvml.Reading(cuda="12.4", gpus=dict.fromkeys(CARDS, NAMED)), 1)


@pytest.mark.parametrize("question", ["Count_v2", "HandleByIndex_v2", "PciInfo_v3"])
def test_ask_gpu_without_an_answer_is_left_out(build: Build, question: str) -> None:
    codes = {f"nvmlDeviceGet{question}": NOT_SUPPORTED}
    assert asked(build(**codes)) == (nvml.Reading("550.54.14", "12.4"), 1)


@pytest.mark.parametrize(
    ("code", "state"), [(18, nvml.REBOOT_PENDING), (9, "NVML error 9"), (None, "NVML error 13"), (12, "")]
)
def test_ask_failed_init_is_the_state(build: Build, code: int | None, state: str) -> None:
    assert asked(build(nvmlInit_v2=code)) == (nvml.Reading(state=state), 0)


def test_read_without_the_library_is_empty() -> None:
    assert nvml.read("libnothing-of-the-kind.so.1") == nvml.Reading()


def test_read_after_an_update_uses_the_new_library(build: Build) -> None:
    library = build()
    assert nvml.read(library).driver == "550.54.14"
    assert library not in Path("/proc/self/maps").read_text()
    shutil.move(build(nvmlInit_v2=18), library)
    assert nvml.read(library).state == nvml.REBOOT_PENDING


def test_main_prints_a_reading() -> None:
    done = subprocess.run([sys.executable, "-m", "edged.device.nvml"], capture_output=True, check=True, timeout=60)
    assert isinstance(msgspec.json.decode(done.stdout, type=nvml.Reading), nvml.Reading)
