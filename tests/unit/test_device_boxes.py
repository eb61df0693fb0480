"""Facts and devices of recorded boxes, through `edged device --root`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from edged.cli.app import app
from edged.device.fingerprint import Device, Fingerprint, devices

BOXES = Path(__file__).parents[1] / "fixtures" / "devices"


class Box(msgspec.Struct):
    """The output of `edged device --json`. Fields with their default value may be missing."""

    facts: dict[str, str]
    devices: tuple[Device, ...]


@pytest.mark.parametrize("name", sorted(path.name for path in BOXES.iterdir() if path.is_dir()))
def test_recorded_box_has_the_recorded_facts_and_devices(name: str) -> None:
    ran = CliRunner().invoke(app, ["device", "--root", str(BOXES / name), "--json"])
    assert ran.exit_code == 0
    found = msgspec.json.decode(ran.stdout, type=Box)
    assert found == msgspec.json.decode((BOXES / f"{name}.json").read_bytes(), type=Box)
    assert list(found.facts) == sorted(found.facts)
    everything = str(found.facts).lower()
    assert not any(word in everything for word in ("gpu-", "serial", "uuid", "mhz"))


CARD: dict[str, Any] = {"description": "NVIDIA L4, compute capability 8.9", "compute_capability": "8.9"}


def test_devices_two_cards_and_a_discrete_intel_gpu() -> None:
    facts = {
        "memory.total_mb": "64000",
        **{f"gpu.{number}.name": "NVIDIA L4" for number in (0, 1)},
        **{f"gpu.{number}.compute_capability": "8.9" for number in (0, 1)},
        "gpu.1.memory_mb": "23034",
        "intel.gpu.0.device": "0xe20b",
        "intel.gpu.0.driver": "xe",
    }
    assert devices(Fingerprint(facts)) == (
        Device("cpu", "cpu", "unknown CPU", 64000),
        Device("cuda:0", "cuda", **CARD),
        Device("cuda:1", "cuda", memory_mb=23034, index=1, **CARD),
        Device("intel-gpu:0", "intel-gpu", "Intel GPU 0xe20b (xe)"),
    )
