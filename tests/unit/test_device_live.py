"""Facts that only the running system has: nvpmodel, NVML, CUDA_VISIBLE_DEVICES. Recorded trees do not query them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from edged.device import jetson, nvidia, nvml
from edged.device.root import Root
from tests.unit.device_files import Live, tree
from tests.unit.test_device_probes import CLOSED, MODES, MODULE, ORIN, card, library

JETSON = ORIN | {"usr/sbin/nvpmodel": "", "var/lib/nvpmodel/status": "pmode:0000", "etc/nvpmodel.conf": MODES}
READING = nvml.Reading(
    driver="550.54.14",
    cuda="12.4",
    gpus={"0000:0a:00.0": nvml.Gpu("NVIDIA GeForce RTX 4070", "8.9", memory_mb=12282, cores=5888)},
)


@pytest.mark.parametrize(
    ("answer", "mode"),
    [
        (subprocess.CompletedProcess([], 0, b"NV Power Mode: 25W\n1\n"), "25W"),
        (subprocess.CompletedProcess([], 1, b"\xff error"), "MAXN"),
        (subprocess.TimeoutExpired("nvpmodel", 2), "MAXN"),
        (PermissionError("no"), "MAXN"),
    ],
)
def test_power_mode_live_prefers_the_answer_of_nvpmodel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: object, mode: str
) -> None:
    def run(*_: object, **__: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    tree(tmp_path, JETSON)
    monkeypatch.setattr(subprocess, "run", run)
    assert jetson.probe(Live(tmp_path))["jetson.power_mode"] == mode


def test_probe_of_a_recorded_tree_does_not_query_this_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("ran"))
    monkeypatch.setattr(nvml, "read", lambda: pytest.fail("asked"))
    root = tree(tmp_path, JETSON | {MODULE: CLOSED})
    jetson.probe(root)
    nvidia.probe(root)


def test_nvidia_live_without_a_driver_does_not_query_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, {nvml.RECORDED: '{"driver": "550.54.14"}'})
    monkeypatch.setattr(nvml, "read", lambda: pytest.fail("asked"))
    assert nvidia.probe(Live(tmp_path)) == {}


def test_nvidia_live_answers_complete_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = card("0000:0a:00.0", "RTX 4070") | card("0000:01:00.0", "T4")
    tree(tmp_path, {MODULE: CLOSED} | cards | library("560.35.03"))
    monkeypatch.setattr(nvml, "read", lambda: READING)
    assert nvidia.probe(Live(tmp_path)) == {
        "cuda.driver": "12.4",
        "gpu.0.name": "T4",
        "gpu.0.pci": "0000:01:00.0",
        "gpu.1.compute_capability": "8.9",
        "gpu.1.cores": "5888",
        "gpu.1.memory_mb": "12282",
        "gpu.1.name": "NVIDIA GeForce RTX 4070",
        "gpu.1.pci": "0000:0a:00.0",
        "nvidia.driver": "560.35.03",  # from the library on disk, not from the loaded module
        "nvidia.kernel_module": "550.54.14",
        "nvidia.state": nvidia.REBOOT_PENDING,
    }


def test_nvidia_live_card_that_only_nvml_has_is_numbered_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, {MODULE: CLOSED} | card("0000:81:00.0", "L4"))
    monkeypatch.setattr(nvml, "read", lambda: READING)
    found = nvidia.probe(Live(tmp_path))
    assert (found["gpu.0.pci"], found["gpu.1.pci"]) == ("0000:0a:00.0", "0000:81:00.0")


CARDS = {"0000:01:00.0": "GPU-12AB-1", "0000:02:00.0": "GPU-12cd-2", "0000:81:00.0": ""}


@pytest.mark.parametrize(
    ("value", "left"),
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
        ("GPU-12", []),  # two cards begin with it
        ("GPU-99,0", []),
        ("MIG-12ab", []),
        ("MIG-GPU-12ab/1/0", []),
        ("0,GPU-12cd-2", [0, 1]),
    ],
)
def test_visible_gpus_before_and_after_use_pci_order_are_equal(
    value: str | None, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {} if value is None else {"CUDA_VISIBLE_DEVICES": value})
    expected = {sorted(CARDS)[index] for index in left}
    assert nvidia.visible_gpus(CARDS) == expected
    for _ in range(2):
        nvidia.use_pci_order()
        assert nvidia.visible_gpus(CARDS) == expected
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert os.environ.get("CUDA_VISIBLE_DEVICES", "-1") == "-1"


def test_nvidia_hidden_cards_have_no_facts_and_the_others_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"0000:01:00.0": "T4", "0000:02:00.0": "L4", "0000:81:00.0": "A2"}
    for address, model in models.items():
        tree(tmp_path, card(address, model))
    monkeypatch.setattr(nvml, "read", nvml.Reading)
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": "2,1"})
    assert nvidia.addresses(Live(tmp_path)) == sorted(models)
    names = {"gpu.1.name": "L4", "gpu.2.name": "A2"}
    assert nvidia.probe(Live(tmp_path)) == names | {"gpu.1.pci": "0000:02:00.0", "gpu.2.pci": "0000:81:00.0"}
    assert "gpu.0.name" in nvidia.probe(Root(tmp_path))  # the variable does not apply to a recorded box


def test_nvidia_card_made_visible_by_its_uuid_has_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, card("0000:01:00.0", "T4"))
    monkeypatch.setattr(nvml, "read", lambda: READING)
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": "GPU-1-"})
    assert [name for name in nvidia.probe(Live(tmp_path)) if name.startswith("gpu.")] == ["gpu.0.name", "gpu.0.pci"]
