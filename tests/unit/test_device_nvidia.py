"""NVIDIA's driver files, and what becomes of NVML's answers."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from edged.device import nvidia, nvml
from edged.device.root import Root
from tests.unit.device_files import Live, write

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC: 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (x@y)  Fri Aug 16\n"


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


def test_jetson_s_library_has_no_driver_version_but_the_compiler_beside_it_has(tmp_path: Path) -> None:
    place = "usr/lib/aarch64-linux-gnu"
    write(tmp_path, f"{place}/libcuda.so.1.1")
    (tmp_path / place / "libcuda.so.1").symlink_to("libcuda.so.1.1")
    assert nvidia.probe(Root(tmp_path)) == {}
    write(tmp_path, f"{place}/nvidia/libnvidia-ptxjitcompiler.so.540.4.0")
    assert nvidia.probe(Root(tmp_path)) == {"nvidia.driver": "540.4.0"}
    write(tmp_path, f"{place}/nvidia/libnvidia-ptxjitcompiler.so.540.5.0")
    (tmp_path / place / "nvidia/libnvidia-ptxjitcompiler.so.1").symlink_to("libnvidia-ptxjitcompiler.so.540.4.0")
    assert nvidia.probe(Root(tmp_path)) == {"nvidia.driver": "540.4.0"}


def test_a_jetson_that_was_upgraded_waits_for_a_reboot_too(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia/version", OPEN.replace("x86_64  560.35.03", "aarch64  540.3.0"))
    write(tmp_path, "usr/lib/aarch64-linux-gnu/nvidia/libnvidia-ptxjitcompiler.so.540.4.0")
    assert nvidia.probe(Root(tmp_path)) == {
        "nvidia.driver": "540.4.0",
        "nvidia.kernel_module": "540.3.0",
        "nvidia.state": nvidia.REBOOT_PENDING,
    }


READING = nvml.Reading(
    driver="550.54.14",
    cuda="12.4",
    gpus={"0000:0a:00.0": nvml.Gpu("NVIDIA GeForce RTX 4070", "8.9", memory_mb=12282, cores=5888)},
)


def test_live_answers_complete_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    card(tmp_path, "0000:0a:00.0", "RTX 4070")
    card(tmp_path, "0000:01:00.0", "T4")
    monkeypatch.setattr(nvml, "read", lambda: READING)
    found = nvidia.probe(Live(tmp_path))
    assert found["gpu.0.name"] == "T4"
    assert found["gpu.1.name"] == "NVIDIA GeForce RTX 4070"
    assert found["gpu.1.compute_capability"] == "8.9"
    assert found["gpu.1.memory_mb"] == "12282"
    assert found["nvidia.driver"] == "550.54.14"
    assert found["cuda.driver"] == "12.4"
    assert "gpu.1.memory_bus_bits" not in found


def test_a_card_that_only_nvml_knows_takes_its_place_in_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    card(tmp_path, "0000:81:00.0", "L4")
    monkeypatch.setattr(nvml, "read", lambda: READING)
    found = nvidia.probe(Live(tmp_path))
    assert (found["gpu.0.pci"], found["gpu.1.pci"]) == ("0000:0a:00.0", "0000:81:00.0")


def test_a_recorded_tree_never_asks_this_box_s_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    monkeypatch.setattr(nvml, "read", lambda: pytest.fail("asked"))
    nvidia.probe(Root(tmp_path))


def test_a_box_without_a_driver_is_not_asked_and_has_no_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, nvml.RECORDED, msgspec.json.encode(READING).decode())
    monkeypatch.setattr(nvml, "read", lambda: pytest.fail("asked"))
    assert nvidia.probe(Live(tmp_path)) == {}


def test_a_recorded_tree_has_what_nvml_said_then(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    card(tmp_path, "0000:0a:00.0", "RTX 4070")
    write(tmp_path, nvml.RECORDED, msgspec.json.encode(READING).decode())
    assert nvidia.probe(Root(tmp_path)) == {
        "cuda.driver": "12.4",
        "gpu.0.compute_capability": "8.9",
        "gpu.0.cores": "5888",
        "gpu.0.memory_mb": "12282",
        "gpu.0.name": "NVIDIA GeForce RTX 4070",
        "gpu.0.pci": "0000:0a:00.0",
        "nvidia.driver": "550.54.14",
        "nvidia.kernel_module": "550.54.14",
    }


@pytest.mark.parametrize("state", [nvidia.REBOOT_PENDING, "NVML error 9"])
def test_why_nvml_could_not_be_asked_is_the_driver_s_state(tmp_path: Path, state: str) -> None:
    write(tmp_path, nvml.RECORDED, f'{{"state": "{state}"}}')
    assert nvidia.probe(Root(tmp_path)) == {"nvidia.state": state}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpus": []}', '{"gpus": {"a": {"memory_mb": "x"}}}', "[" * 200_000])
def test_a_damaged_recording_is_absent(tmp_path: Path, text: str) -> None:
    write(tmp_path, nvml.RECORDED, text)
    assert nvidia.probe(Root(tmp_path)) == {}


def test_the_library_on_disk_decides_over_the_one_already_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    write(tmp_path, "usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03")
    (tmp_path / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("libcuda.so.560.35.03")
    monkeypatch.setattr(nvml, "read", lambda: READING)
    found = nvidia.probe(Live(tmp_path))
    assert found["nvidia.driver"] == "560.35.03"
    assert found["nvidia.state"] == nvidia.REBOOT_PENDING


# -- CUDA_VISIBLE_DEVICES -------------------------------------------------------------------------------------------

CARDS = {"0000:01:00.0": "GPU-12AB-1", "0000:02:00.0": "GPU-12cd-2", "0000:81:00.0": ""}


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("0", [0]),
        ("2, 0", [0, 2]),
        ("1,-1,0", [1]),
        ("3,0", []),
        ("1,x", [1]),
        ("GPU-12ab-1", [0]),
        ("gpu-12c", [1]),
        ("GPU-12", []),  # two of them
        ("GPU-99,0", []),
        ("MIG-12ab", []),
        ("MIG-GPU-12ab/1/0", []),
        ("0,GPU-12cd-2", [0, 1]),
    ],
)
def test_what_the_environment_leaves(said: str | None, left: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {} if said is None else {"CUDA_VISIBLE_DEVICES": said})
    expected = {sorted(CARDS)[index] for index in left}
    assert nvidia.visible_gpus(CARDS) == expected
    nvidia.use_pci_order()
    assert nvidia.visible_gpus(CARDS) == expected
    nvidia.use_pci_order()
    assert nvidia.visible_gpus(CARDS) == expected
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert os.environ.get("CUDA_VISIBLE_DEVICES", "-1") == "-1"


def test_hidden_cards_are_no_facts_and_the_others_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, model in (("0000:01:00.0", "T4"), ("0000:02:00.0", "L4"), ("0000:81:00.0", "A2")):
        card(tmp_path, address, model)
    monkeypatch.setattr(nvml, "read", nvml.Reading)
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": "2,1"})
    assert nvidia.addresses(Live(tmp_path)) == ["0000:01:00.0", "0000:02:00.0", "0000:81:00.0"]
    assert nvidia.probe(Live(tmp_path)) == {
        "gpu.1.name": "L4",
        "gpu.1.pci": "0000:02:00.0",
        "gpu.2.name": "A2",
        "gpu.2.pci": "0000:81:00.0",
    }
    assert "gpu.0.name" in nvidia.probe(Root(tmp_path))  # a recorded box has nothing to do with this environment


def test_a_card_may_be_left_by_its_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card(tmp_path, "0000:01:00.0", "T4")
    monkeypatch.setattr(nvml, "read", lambda: READING)
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": "GPU-1-"})
    assert [name for name in nvidia.probe(Live(tmp_path)) if name.startswith("gpu.")] == ["gpu.0.name", "gpu.0.pci"]
