"""Memory, versions and cgroup limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edged.device import system
from edged.device.root import Root

Facts = Callable[[dict[str, str]], dict[str, str]]
BOX = {
    "proc/meminfo": "MemTotal:  2097152 kB\nMemFree: 1 kB\n",
    "proc/cpuinfo": "processor: 0\n\nprocessor: 1\n",
}


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    def build(files: dict[str, str]) -> dict[str, str]:
        for name, text in (BOX | files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return {name: value for name, value in system.probe(Root(tmp_path)).items() if value}

    return build


def test_a_box_without_limits(facts: Facts) -> None:
    assert facts({}) == {"memory.total_mb": "2048"}


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ('ID=debian\nVERSION_ID="12"\n', "debian", "12"),
        ("NAME='x'\nID='ubuntu'\nVERSION_ID='22.04'\n", "ubuntu", "22.04"),
        ("ID=arch\n", "arch", None),
        ("=\n==\nID\n", None, None),
    ],
)
def test_os_release(facts: Facts, text: str, name: str | None, version: str | None) -> None:
    found = facts({"etc/os-release": text})
    assert (found.get("os.name"), found.get("os.version")) == (name, version)


def test_version_2_takes_the_tightest_limit_on_the_way_up(facts: Facts) -> None:
    found = facts(
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/memory.max": "1073741824\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
        }
    )
    assert found["memory.limit_mb"] == "1024"
    assert found["cpu.quota"] == "0.50"


def test_version_1(facts: Facts) -> None:
    found = facts(
        {
            "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n1:name=systemd:/\n0::/\n",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "536870912\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        }
    )
    assert found["memory.limit_mb"] == "512"
    assert found["cpu.quota"] == "1.50"


def test_limits_above_the_box_are_no_limits(facts: Facts) -> None:
    found = facts(
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(1 << 40),
            "sys/fs/cgroup/cpu.max": "400000 100000\n",
        }
    )
    assert found == {"memory.total_mb": "2048"}


def test_in_a_container_the_path_of_the_host_does_not_exist(facts: Facts) -> None:
    found = facts(
        {
            "proc/self/cgroup": "0::/system.slice/docker-1.scope\n",
            "sys/fs/cgroup/memory.max": "1073741824\n",
            "sys/fs/cgroup/cpu.max": "100000 100000\n",
        }
    )
    assert (found["memory.limit_mb"], found["cpu.quota"]) == ("1024", "1.00")


@pytest.mark.parametrize(
    "files",
    [
        {"proc/meminfo": "MemTotal: many kB\n"},
        {"proc/self/cgroup": "\n:\n::\n:::::\nmemory\n0::/../../../etc\n"},
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "100000 0\n",
            "sys/fs/cgroup/memory.max": "\u0663",
        },
        {"proc/self/cgroup": "0::/" + "a/" * 3000},
        {"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "1", "proc/cpuinfo": ""},
    ],
)
def test_nonsense_is_no_limit(facts: Facts, files: dict[str, str]) -> None:
    assert facts(files).keys() <= {"memory.total_mb"}


def test_python_and_libc_of_a_recorded_tree(facts: Facts) -> None:
    found = facts(
        {
            "usr/lib/python3.9/os.py": "",
            "usr/lib/python3.12/os.py": "",
            "var/lib/dpkg/status": "Package: libc6\nStatus: install ok installed\nVersion: 2.39-0ubuntu8\n",
        }
    )
    assert found["python.version"] == "3.12"
    assert found["libc.version"] == "glibc 2.39"
