"""NVIDIA's driver files, and NVML's answers through a stand-in for pynvml."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edged.device import nvidia, nvml
from edged.device.root import Root

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC: 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (x@y)  Fri Aug 16\n"


def write(top: Path, name: str, text: str = "") -> None:
    path = top / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def card(top: Path, address: str, model: str, more: str = "GPU Excluded:\t No\n") -> None:
    text = f"Model: \t\t {model}\nGPU UUID: \t GPU-1-2\nBus Location: \t {address}\n{more}"
    write(top, f"proc/driver/nvidia/gpus/{address}/information", text)


@pytest.mark.parametrize(("text", "version"), [(CLOSED, "550.54.14"), (OPEN, "560.35.03")])
def test_the_loaded_module(tmp_path: Path, text: str, version: str) -> None:
    write(tmp_path, "proc/driver/nvidia/version", text)
    assert nvidia.probe(Root(tmp_path)) == {"nvidia.kernel_module": version}


def test_no_driver_no_facts(tmp_path: Path) -> None:
    assert nvidia.probe(Root(tmp_path)) == {}
    write(tmp_path, "proc/driver/nvidia/version", "nothing of note\n")
    assert nvidia.probe(Root(tmp_path)) == {}


def test_cards_are_numbered_by_pci_address_and_anonymous(tmp_path: Path) -> None:
    card(tmp_path, "0000:81:00.0", "NVIDIA L4")
    card(tmp_path, "0000:01:00.0", "NVIDIA T4")
    card(tmp_path, "0000:02:00.0", "NVIDIA A2", "GPU Excluded:\t Yes\n")
    assert nvidia.probe(Root(tmp_path)) == {
        "gpu.0.name": "NVIDIA T4",
        "gpu.0.pci": "0000:01:00.0",
        "gpu.1.name": "NVIDIA L4",
        "gpu.1.pci": "0000:81:00.0",
    }


@pytest.mark.parametrize(("library", "pending"), [("550.54.14", False), ("560.35.03", True)])
def test_a_new_library_over_the_old_module_waits_for_a_reboot(tmp_path: Path, library: str, pending: bool) -> None:
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    write(tmp_path, f"usr/lib/x86_64-linux-gnu/libcuda.so.{library}")
    write(tmp_path, "usr/lib/x86_64-linux-gnu/libcuda.so.570.1")  # left over: nothing leads to it
    (tmp_path / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to(f"libcuda.so.{library}")
    found = nvidia.probe(Root(tmp_path))
    assert found["nvidia.driver"] == library
    assert (found.get("nvidia.state") == nvidia.REBOOT_PENDING) is pending


def test_jetson_s_library_has_no_driver_version(tmp_path: Path) -> None:
    write(tmp_path, "usr/lib/aarch64-linux-gnu/libcuda.so.1.1")
    (tmp_path / "usr/lib/aarch64-linux-gnu/libcuda.so.1").symlink_to("libcuda.so.1.1")
    assert nvidia.probe(Root(tmp_path)) == {}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class LibraryNotFound(NVMLError):
    pass


def refuse(*_: object) -> Any:
    raise NVMLError(3)


def pynvml(**changes: Any) -> SimpleNamespace:
    """A module with one card that answers; `changes` replace functions."""
    functions = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"550.54.14",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12040,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId="00000000:0A:00.0"),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=12 << 30),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (8, 9),
        "nvmlDeviceGetName": lambda handle: "NVIDIA GeForce RTX 4070",
        "nvmlDeviceGetNumGpuCores": lambda handle: 5888,
        "nvmlDeviceGetMemoryBusWidth": lambda handle: 192,
    }
    return SimpleNamespace(NVMLError=NVMLError, NVMLError_LibraryNotFound=LibraryNotFound, **(functions | changes))


def test_nvml_tells_what_the_files_do_not() -> None:
    assert nvml.ask(pynvml()) == nvml.Reading(
        {"nvidia.driver": "550.54.14", "cuda.driver": "12.4"},
        {
            "0000:0a:00.0": {
                "name": "NVIDIA GeForce RTX 4070",
                "memory_mb": "12288",
                "compute_capability": "8.9",
                "cores": "5888",
                "memory_bus_bits": "192",
            }
        },
    )


def test_unsupported_questions_are_absent_facts() -> None:
    library = pynvml(
        nvmlDeviceGetMemoryInfo=refuse, nvmlDeviceGetMemoryBusWidth=refuse, nvmlSystemGetDriverVersion=refuse
    )
    del library.nvmlDeviceGetNumGpuCores
    reading = nvml.ask(library)
    assert reading.facts == {"cuda.driver": "12.4"}
    assert reading.gpus["0000:0a:00.0"].keys() == {"name", "compute_capability"}


@pytest.mark.parametrize("question", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo"])
def test_a_card_that_does_not_answer_is_left_out(question: str) -> None:
    assert nvml.ask(pynvml(**{question: refuse})).gpus == {}


def test_nvml_is_closed_again() -> None:
    closed = []
    nvml.ask(pynvml(nvmlShutdown=lambda: closed.append(True)))
    assert closed == [True]


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (NVMLError(18), {"nvidia.state": "reboot pending"}),
        (NVMLError(9), {"nvidia.state": "NVML error 9"}),
        (LibraryNotFound(12), {}),
    ],
)
def test_why_nvml_does_not_open(error: NVMLError, facts: dict[str, str]) -> None:
    def fail() -> None:
        raise error

    assert nvml.ask(pynvml(nvmlInit=fail)) == nvml.Reading(facts)


def test_without_nvidia_ml_py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert nvml.read() == nvml.Reading()


class Live(Root):
    """A recorded tree that passes for the running system."""

    @property
    def is_live(self) -> bool:
        return True

    def _locate(self, rel: str) -> str:
        return f"{self._top}/{rel}"


def test_live_answers_complete_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    card(tmp_path, "0000:0a:00.0", "RTX 4070")
    card(tmp_path, "0000:01:00.0", "T4")
    monkeypatch.setattr(nvml, "read", lambda: nvml.ask(pynvml()))
    found = nvidia.probe(Live(tmp_path))
    assert found["gpu.0.name"] == "T4"
    assert found["gpu.1.name"] == "NVIDIA GeForce RTX 4070"
    assert found["gpu.1.compute_capability"] == "8.9"
    assert found["nvidia.driver"] == "550.54.14"


def test_a_card_that_only_nvml_knows_takes_its_place_in_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    card(tmp_path, "0000:81:00.0", "L4")
    monkeypatch.setattr(nvml, "read", lambda: nvml.ask(pynvml()))
    found = nvidia.probe(Live(tmp_path))
    assert (found["gpu.0.pci"], found["gpu.1.pci"]) == ("0000:0a:00.0", "0000:81:00.0")


def test_a_recorded_tree_never_asks_this_box_s_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    monkeypatch.setattr(nvml, "read", lambda: pytest.fail("asked"))
    nvidia.probe(Root(tmp_path))


def test_the_library_on_disk_decides_over_the_one_already_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    write(tmp_path, "usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03")
    (tmp_path / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("libcuda.so.560.35.03")
    monkeypatch.setattr(nvml, "read", lambda: nvml.ask(pynvml()))
    found = nvidia.probe(Live(tmp_path))
    assert found["nvidia.driver"] == "560.35.03"
    assert found["nvidia.state"] == nvidia.REBOOT_PENDING
