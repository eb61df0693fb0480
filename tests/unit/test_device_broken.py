"""Probing empty, damaged or hostile trees: it does not raise, does not block, and stays inside the tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edged.device.fingerprint import Device, Fingerprint, devices, probe


def test_probe_empty_or_missing_root_has_only_a_cpu(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        assert probe(root) == Fingerprint({})
    assert devices(Fingerprint({})) == (Device("cpu", "cpu", "unknown CPU", None),)


NAMES = """
    proc/cpuinfo proc/meminfo proc/self/cgroup proc/sys/kernel/osrelease etc/os-release proc/driver/nvidia/version
    proc/driver/nvidia/gpus/0000:01:00.0/information etc/nv_tegra_release proc/device-tree/model
    proc/device-tree/compatible var/lib/nvpmodel/status etc/nvpmodel.conf var/lib/dpkg/status
    usr/local/cuda/version.json sys/fs/cgroup/memory.max sys/fs/cgroup/cpu.max sys/class/drm/card0/device/vendor
    sys/class/drm/card0/device/uevent sys/devices/soc0/family sys/devices/soc0/soc_id sys/devices/soc0/machine nvml.json
    usr/lib/python3/dist-packages/openvino-1.0.dist-info/METADATA
"""
SOURCES = NAMES.split()


def place(top: Path, name: str) -> Path:
    path = top / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_probe_sources_that_are_garbage_or_no_files_gives_no_facts(tmp_path: Path) -> None:
    for number, name in enumerate(SOURCES):
        os.mkfifo(place(tmp_path / "fifo", name))
        place(tmp_path / "directory", name).mkdir()
        place(tmp_path / "dangling", name).symlink_to("/no/such/file")
        place(tmp_path / "device", name).symlink_to("/dev/zero")
        place(tmp_path / "binary", name).write_bytes(bytes(range(256)) * (number + 1))
        place(tmp_path / "huge", name).write_bytes(b"processor: 1\n" * 800_000)
    for tree in ("fifo", "directory", "dangling", "device", "binary", "huge"):
        # The name of a package's directory is enough for a fact; the name of a GPU's directory is not.
        assert probe(tmp_path / tree).facts.keys() <= {"runtime.openvino"}, tree


def test_probe_links_out_of_the_tree_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in SOURCES:
        outside = place(tmp_path / "outside", name)
        outside.write_text("MemTotal: 1024 kB\nprocessor: 0\nflags: lm avx2\nvendor_id: X\nID=stolen\nVersion: 6.6\n")
        place(root, name).symlink_to(outside)
    assert probe(root).facts == {"runtime.openvino": "1.0"}


SNIPPETS = st.sampled_from(
    [
        *("processor\t: 0\n", "flags\t: lm avx2\n", "CPU implementer\t: 0x41\n", "CPU part : 0xd0b\n", "\n\n"),
        *("MemTotal: 1 kB\n", "0::/a\n", "4:memory:/\n", "9" * 30, "100000 1\n", "max", "-1", "ID=x\n"),
        *("Version: 1\n", "Kernel Module  1.2", "Model: x\n", "R36 REVISION: 4.3", "nvidia,tegra234\0", "pmode:"),
        *("0001", "0x8086\n", "< POWER_MODEL ID=1 NAME=x >\n", "Package: libc6\n", "Tegra\n", "35", "}"),
        *("Status: install ok installed\n", '{"cuda":', "{}", '{"gpus": {"\\n": {"name": "x"}}}', '{"state": "x"}'),
        *("PCI_SLOT_NAME=", "DRIVER=../../etc\n", "DRIVER=a\0b\n", "\0", "\u0663", "\u2028", "\x85"),
    ]
)
CONTENT = st.one_of(
    st.binary(max_size=60),
    st.lists(st.one_of(SNIPPETS, st.text(max_size=6)), max_size=12).map(lambda parts: "".join(parts).encode()),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.dictionaries(st.sampled_from(SOURCES), CONTENT, max_size=8))
def test_probe_any_tree_never_raises(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    top = tmp_path_factory.mktemp("tree")
    for name, content in files.items():
        place(top, name).write_bytes(content)
    found = probe(top)
    assert found == probe(top)
    assert all(value and value.isprintable() for value in found.facts.values())
    assert devices(found)
    assert len(found.digest) == 64
