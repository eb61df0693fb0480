"""Jetson's release, module, SoC and power mode."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edged.device import jetson
from edged.device.root import Root
from tests.unit.device_files import Live, write

Facts = Callable[[dict[str, str]], dict[str, str]]
ORIN = {"proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0"}
MODES = "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=3 NAME=MODE_30W >\nCPU_ONLINE CORE_0 1\n"


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    def build(files: dict[str, str]) -> dict[str, str]:
        for name, text in files.items():
            write(tmp_path, name, text)
        return {name: value for name, value in jetson.probe(Root(tmp_path)).items() if value}

    return build


def test_another_box_has_no_jetson_facts(facts: Facts) -> None:
    assert facts({}) == {}
    assert facts({"proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0"}) == {}


@pytest.mark.parametrize(
    ("compatible", "soc", "module", "capability"),
    [
        ("nvidia,p2972-0000\0nvidia,p2888-0001\0nvidia,tegra194\0", "tegra194", "p2972-0000", "7.2"),
        (
            "nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0",
            "tegra234",
            "p3701-0005",
            "8.7",
        ),
        ("nvidia,p4071-0000+p3834-0008\0nvidia,tegra264\0", "tegra264", "p3834-0008", "11.0"),
        ("nvidia,tegra999\0", "tegra999", None, None),
    ],
)
def test_soc_and_module(facts: Facts, compatible: str, soc: str, module: str | None, capability: str | None) -> None:
    found = facts({"proc/device-tree/compatible": compatible})
    assert found["jetson.soc"] == soc
    assert found.get("jetson.module") == module
    assert found.get("gpu.0.compute_capability") == capability
    assert found["gpu.0.integrated"] == "yes"


@pytest.mark.parametrize(("chip", "soc", "capability"), [("35", "tegra234", "8.7"), ("38", "tegra264", "11.0")])
def test_in_a_container_the_device_tree_is_hidden_and_sysfs_tells_the_soc(
    facts: Facts, chip: str, soc: str, capability: str
) -> None:
    sysfs = "sys/devices/soc0"
    found = facts(
        {
            f"{sysfs}/family": "Tegra\n",
            f"{sysfs}/soc_id": f"{chip}\n",
            f"{sysfs}/machine": "NVIDIA Jetson Orin Nano Developer Kit\n",
            "proc/meminfo": "MemTotal: 7802296 kB\n",
        }
    )
    assert found == {
        "jetson.model": "NVIDIA Jetson Orin Nano Developer Kit",
        "jetson.soc": soc,
        "gpu.0.name": f"{soc} integrated GPU",
        "gpu.0.integrated": "yes",
        "gpu.0.compute_capability": capability,
        "gpu.0.memory_mb": "8192",
    }


def test_the_soc_of_another_maker_is_no_jetson(facts: Facts) -> None:
    assert facts({"sys/devices/soc0/family": "Snapdragon\n", "sys/devices/soc0/soc_id": "35\n"}) == {}


@pytest.mark.parametrize(
    ("model", "integrated"), [("NVIDIA RTX 6000 Ada Generation", None), ("NVIDIA Thor", "yes"), ("Orin (nvgpu)", "yes")]
)
def test_a_card_in_the_box_is_not_taken_for_the_soc_s_gpu(facts: Facts, model: str, integrated: str | None) -> None:
    found = facts(ORIN | {"proc/driver/nvidia/gpus/0005:01:00.0/information": f"Model: \t {model}\n"})
    assert found["jetson.soc"] == "tegra234"
    assert found.get("gpu.0.integrated") == integrated
    assert found.get("gpu.0.compute_capability") == ("8.7" if integrated else None)


@pytest.mark.parametrize(
    ("files", "l4t"),
    [
        ({"etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic\n"}, "36.4.3"),
        ({"etc/nv_tegra_release": "# R38 (release), REVISION: 2.0, GCID: 1\n"}, "38.2.0"),
        (
            {
                "var/lib/dpkg/status": "Package: nvidia-l4t-core\nStatus: install ok installed\n"
                "Version: 36.4.7-20250918154033\n"
            },
            "36.4.7",
        ),
        ({"etc/nv_tegra_release": "R36\n"}, None),
    ],
)
def test_l4t(facts: Facts, files: dict[str, str], l4t: str | None) -> None:
    assert facts(ORIN | files).get("jetson.l4t") == l4t


@pytest.mark.parametrize(
    ("status", "conf", "mode"),
    [
        ("pmode:0003 fmode:fanNull\n", MODES, "MODE_30W"),
        ("pmode:0000", MODES, "MAXN"),
        ("pmode:0007", MODES, "mode 7"),
        ("pmode:0002", "", "mode 2"),
        ("", MODES, None),
    ],
)
def test_power_mode_from_files(facts: Facts, status: str, conf: str, mode: str | None) -> None:
    found = facts(ORIN | {"var/lib/nvpmodel/status": status, "etc/nvpmodel.conf": conf})
    assert found.get("jetson.power_mode") == mode


@pytest.mark.parametrize(
    ("kib", "fitted"),
    [(7802296, "8192"), (3900000, "4096"), (31000000, "32768"), (64500000, "65536"), (128600000, "131072")],
)
def test_fitted_memory_does_not_move_with_the_kernel_s_share(facts: Facts, kib: int, fitted: str) -> None:
    for taken in (0, 20_000):
        found = facts(ORIN | {"proc/meminfo": f"MemTotal: {kib - taken} kB\n"})
        assert found["gpu.0.memory_mb"] == fitted


@pytest.mark.parametrize(
    ("answer", "mode"),
    [
        (subprocess.CompletedProcess([], 0, b"NV Power Mode: 25W\n1\n"), "25W"),
        (subprocess.CompletedProcess([], 1, b"\xff error"), "MAXN"),
        (subprocess.TimeoutExpired("nvpmodel", 2), "MAXN"),
        (PermissionError("no"), "MAXN"),
    ],
)
def test_on_the_box_nvpmodel_is_asked_first(
    facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: object, mode: str
) -> None:
    def run(*_: object, **__: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    facts(ORIN | {"usr/sbin/nvpmodel": "", "var/lib/nvpmodel/status": "pmode:0000", "etc/nvpmodel.conf": MODES})
    monkeypatch.setattr(subprocess, "run", run)
    assert jetson.probe(Live(tmp_path))["jetson.power_mode"] == mode


def test_a_recorded_tree_runs_nothing(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("ran"))
    facts(ORIN | {"usr/sbin/nvpmodel": "#!/bin/false\n"})
