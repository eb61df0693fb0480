"""Doctor: checks of a box, with recorded and generated files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Ran

from edged.cli.app import app
from edged.config import Engines
from edged.device.root import Root
from edged.doctor import folders, hardware, system
from edged.doctor.check import Check, Name, Result
from edged.doctor.folders import Folder
from edged.doctor.hardware import Node, User
from edged.doctor.system import Descriptors, SharedMemory

BOXES = Path(__file__).parents[1] / "fixtures" / "devices"
DAY = 86400.0
NOW = 1_790_000_000.0  # 2026
CAMERA_USER = User(1000, frozenset((1000, 44)), "edge")


def box(tmp_path: Path, files: dict[str, str | int]) -> Root:
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return Root(tmp_path)


def lines(checks: Iterable[Check]) -> str:
    """Return the checks, separated by bars. Every warning and problem must have a remedy."""
    found = list(checks)
    for check in found:
        assert check.remedy or check.result in (Result.OK, Result.UNKNOWN), f"{check} has no remedy"
    return " | ".join(f"{check.result.value} {check.subject}: {check.message}" for check in found)


# -- recorded boxes, through the command ------------------------------------------------------------------------------


def doctor(*line: str | Path) -> Ran:
    return CliRunner().invoke(app, ["doctor", *map(str, line)])


@pytest.mark.parametrize("name", sorted(path.name for path in BOXES.iterdir() if path.is_dir()))
def test_doctor_recorded_box_is_checked_without_checks_of_this_box(name: str) -> None:
    ran = doctor("--root", BOXES / name, "--json")
    found = json.loads(ran.stdout)
    assert list(found) == ["ok", "checks", "left_out"]
    assert {frozenset(check) for check in found["checks"]} == {
        frozenset(("name", "subject", "result", "message", "remedy"))
    }
    names = {check["name"] for check in found["checks"]}
    assert {"driver", "memory", "clock_sync"} <= names <= {name.value for name in Name}
    assert not names & {"daemon", "state_folder", "descriptors", "model"}
    assert {check["subject"] for check in found["checks"] if check["name"] == "runtime"} <= {"packages"}
    assert len(found["left_out"]) == 1
    assert not any("failed" in check["message"] for check in found["checks"])
    is_pending = name == "desktop-reboot-pending"
    assert (found["ok"], ran.exit_code) == (not is_pending, int(is_pending))


def test_doctor_shows_problems_with_their_remedies_then_a_tally() -> None:
    shown = doctor("--root", BOXES / "desktop-reboot-pending").stdout.splitlines()
    assert shown[0].split()[:2] == ["wrong", "driver"]
    assert shown[1].strip() == "→ restart the box"
    assert any(line.startswith("left out") for line in shown)
    assert not any(line.split()[0] == "ok" for line in shown)
    assert shown[-1].split(", ")[2].startswith("1 wrong")


def test_doctor_verbose_lists_every_check_after_the_tally() -> None:
    shown = doctor("--root", BOXES / "desktop-reboot-pending", "-v").stdout.splitlines()
    heading = next(index for index, line in enumerate(shown) if line.startswith("result"))
    assert "1 wrong" in shown[heading - 2]
    good = {line.split()[1] for line in shown[heading:] if line.startswith("ok ")}
    assert good - {"confinement"} == {"memory", "memory_limit"}  # confinement is that of the kernel of the tests
    assert sum(line.startswith("wrong") for line in shown[heading:]) == 1


@pytest.mark.parametrize(
    "line",
    [("--root", "/nowhere"), ("a-model", "--root", "/"), ("--seconds", "0"), ("one", "two"), ("--config", "/nowhere")],
)
def test_doctor_impossible_options_are_usage_errors(line: tuple[str, ...]) -> None:
    ran = doctor(*line)
    assert ran.exit_code == 2
    assert ran.stdout == ""


# -- hardware -------------------------------------------------------------------------------------------------------

BOTH = {"nvidia.driver": "550.54", "nvidia.kernel_module": "550.54"}
TENSORRT = {"tensorrt.version": "10.3.0.30"}


@pytest.mark.parametrize(
    ("facts", "cards", "expected"),
    [
        ({}, {}, "unknown nvidia: "),
        (BOTH, {}, "ok nvidia: driver and kernel module are 5"),
        ({"nvidia.driver": "550.54"}, {}, "wrong nvidia: libraries of NVIDIA driver 550.54 are installed"),
        ({"nvidia.state": "NVML error 999"}, {}, "wrong nvidia: the driver does not answer: NVML error 999"),
        ({}, {"0000:01:00.0": ""}, "wrong 0000:01:00.0: the NVIDIA card has no kernel driver"),
        ({}, {"0000:01:00.0": "nouveau"}, "wrong 0000:01:00.0: the NVIDIA card has the kernel driver nouveau"),
        ({"jetson.l4t": "36.4.3", "nvidia.driver": "540.4.0"}, {}, "ok nvidia: driver and kernel module are 540.4.0"),
        ({"cuda.driver": "12.2", "runtime.cuda": "13.0.96"}, {}, "wrong cuda: CUDA 13.0.96 is installed"),
        ({"cuda.driver": "12.2", "runtime.cuda": "12.9.1"}, {}, "ok cuda: "),
        (TENSORRT, {}, "warning tensorrt: libnvinfer 10.3.0.30 is installed without its Python"),
        (TENSORRT | {"runtime.tensorrt": "10.3.0"}, {}, "ok tensorrt: "),
        (TENSORRT | {"runtime.tensorrt": "10.3.0.post1"}, {}, "ok tensorrt: "),
        (TENSORRT | {"runtime.tensorrt": "10.4.0"}, {}, "wrong tensorrt: libnvinfer has version 10.3.0.30"),
        ({"runtime.tensorrt": "10.4.0"}, {}, "warning tensorrt: Python package tensorrt 10.4.0 is installed without"),
    ],
)
def test_driver_check_of_versions_and_cards_has_its_result(
    facts: dict[str, str], cards: dict[str, str], expected: str
) -> None:
    assert expected in lines(hardware.driver(facts, cards))


def test_cards_have_their_kernel_driver(tmp_path: Path) -> None:
    device = "sys/bus/pci/devices/0000:01:00.0"
    root = box(tmp_path, {f"{device}/vendor": "0x10de", f"{device}/class": "0x030000"})
    assert hardware.cards(root) == {"0000:01:00.0": ""}
    (tmp_path / "sys/bus/pci/drivers/nouveau").mkdir(parents=True)
    (tmp_path / device / "driver").symlink_to("../../../../bus/pci/drivers/nouveau")
    assert hardware.cards(root) == {"0000:01:00.0": "nouveau"}
    box(tmp_path, {f"{device}/class": "0x0c0330"})  # the card's USB controller
    assert hardware.cards(root) == {}


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "user", "may"),
    [
        (0o660, 0, 44, CAMERA_USER, True),
        (0o660, 0, 104, CAMERA_USER, False),
        (0o640, 0, 44, CAMERA_USER, False),
        (0o440, 0, 44, CAMERA_USER, False),
        (0o666, 0, 0, CAMERA_USER, True),
        (0o060, 1000, 44, CAMERA_USER, False),  # for the owner, only the owner's bits count
        (0o000, 5, 5, User(0, frozenset((0,)), "root"), True),
    ],
)
def test_node_may_use_follows_owner_group_and_mode(mode: int, uid: int, gid: int, user: User, may: bool) -> None:
    assert Node("dev/nvhost-gpu", 0o20000 | mode, uid, gid, "video").may_use(user) is may


@pytest.mark.parametrize(("mode", "may"), [(0o440, True), (0o660, True), (0o400, False)])
def test_node_of_jetson_memory_needs_only_reading(mode: int, may: bool) -> None:
    assert Node("dev/nvmap", 0o20000 | mode, 0, 44, "video").may_use(CAMERA_USER) is may


def test_device_nodes_without_permission_names_the_group() -> None:
    gpu = Node("dev/dri/renderD128", 0o20660, 0, 104, "render")
    camera = Node("dev/video0", 0o20660, 0, 105, "video", is_camera=True)
    closed, other = hardware.device_nodes((gpu, camera), CAMERA_USER, {})
    assert (closed.result, closed.subject, other.result) == (Result.WRONG, "/dev/dri/renderD128", Result.WARNING)
    assert closed.remedy.startswith("usermod -aG render edge")


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "group", "advised"),
    [
        (0o600, 0, 44, "video", "video"),  # the group has no access
        (0o660, 0, 0, "root", "render"),
        (0o600, 0, 0, "root", "render"),
        (0o060, 1000, 104, "render", "render"),  # for the owner, only the owner's bits count
    ],
)
def test_device_nodes_that_no_group_opens_need_a_udev_rule(
    mode: int, uid: int, gid: int, group: str, advised: str
) -> None:
    node = Node("dev/dri/renderD128", 0o20000 | mode, uid, gid, group)
    (closed,) = hardware.device_nodes((node,), CAMERA_USER, {})
    assert f'GROUP="{advised}" and MODE="0660"' in closed.remedy
    assert f"usermod -aG {advised} edge" in closed.remedy


def test_device_nodes_of_the_nvidia_module_need_its_options() -> None:
    (closed,) = hardware.device_nodes((Node("dev/nvidia0", 0o20660, 0, 0, "root"),), CAMERA_USER, {})
    assert "NVreg_DeviceFileMode=0660" in closed.remedy
    assert "usermod -aG video edge" in closed.remedy


def test_nodes_are_found_below_a_root(tmp_path: Path) -> None:
    root = box(tmp_path, {"dev/nvhost-ctrl-gpu": "", "dev/video0": "", "dev/null": "", "dev/dri/renderD128": ""})
    (tmp_path / "dev/nvhost-ctrl-gpu").chmod(0o600)
    found = hardware.nodes(root, CAMERA_USER)
    assert {node.path: node.is_camera for node in found} == {
        "dev/nvhost-ctrl-gpu": False,
        "dev/dri/renderD128": False,
        "dev/video0": True,
    }
    assert "wrong /dev/nvhost-ctrl-gpu: " in lines(hardware.device_nodes(found, CAMERA_USER, {}))


def test_device_nodes_card_without_node_is_wrong() -> None:
    missing, none = hardware.device_nodes((), CAMERA_USER, {"gpu.0.pci": "0000:01:00.0"})
    assert (missing.result, none.result) == (Result.WRONG, Result.UNKNOWN)
    assert "--gpus all" in missing.remedy


CPU = "sys/devices/system/cpu/cpu0"
SLOW = {f"{CPU}/cpufreq/scaling_governor": "powersave", f"{CPU}/cpufreq/scaling_driver": "cpufreq-dt"}
CAPPED = {f"{CPU}/cpufreq/scaling_max_freq": 600000, f"{CPU}/cpufreq/cpuinfo_max_freq": 2400000}
PSTATE = SLOW | {f"{CPU}/cpufreq/scaling_driver": "intel_pstate"}


@pytest.mark.parametrize(
    ("files", "facts", "expected"),
    [
        (SLOW, {}, "warning cpufreq: the governor powersave of cpufreq-dt"),
        (PSTATE, {}, "ok cpufreq: governor powersave of intel_pstate"),
        (PSTATE | CAPPED, {}, "warning cpufreq: the clock of the processors is capped at 600 of 2400 MHz"),
        ({}, {}, "unknown"),
        ({}, {"jetson.power_mode": "15W"}, "ok nvpmodel: power mode 15W; "),
        ({}, {"jetson.l4t": "36.4"}, "unknown nvpmodel"),
    ],
)
def test_power_mode_check_of_governor_and_nvpmodel_has_its_result(
    tmp_path: Path, files: dict[str, str | int], facts: dict[str, str], expected: str
) -> None:
    assert lines(hardware.power_mode(box(tmp_path, files), facts)).startswith(expected)


PI = "sys/devices/platform/soc/soc:firmware/get_throttled"
HWMON = "sys/class/hwmon/hwmon"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "unknown"),
        ({PI: "0"}, "ok"),
        ({PI: "50005"}, "wrong : the box reports now: too little voltage"),
        ({PI: "50000"}, "warning : the box reported since its start: too little voltage"),
        ({PI: "error"}, "ok"),
        ({f"{HWMON}1/name": "rpi_volt", f"{HWMON}1/in0_lcrit_alarm": 1}, "wrong : the box reports now: too little"),
        (
            {f"{HWMON}3/oc1_event_cnt": 2, f"{HWMON}3/oc3_event_cnt": 3},
            "warning : the box reported since its start: throttled 5 times",
        ),
        (
            {f"{CPU}/thermal_throttle/core_throttle_count": 7},
            "warning : the box reported since its start: a processor core was throttled 7 times",
        ),
    ],
)
def test_throttling_check_of_now_and_since_the_start_has_its_result(
    tmp_path: Path, files: dict[str, str | int], expected: str
) -> None:
    assert lines(hardware.throttling(box(tmp_path, files))).startswith(expected)


@pytest.mark.parametrize(
    ("now", "trips", "expected"),
    [
        (45000, {}, "ok"),
        (86000, {}, "warning"),
        (97000, {}, "wrong"),
        (70000, {"passive": 65000}, "warning"),
        (70000, {"critical": 72000}, "wrong"),
        (90000, {"passive": 95000, "critical": 105000}, "ok"),
        (-256000, {}, "unknown"),
        ("nonsense", {}, "unknown"),
    ],
)
def test_temperature_check_against_trip_points_has_its_result(
    tmp_path: Path, now: int | str, trips: dict[str, int], expected: str
) -> None:
    zone = "sys/class/thermal/thermal_zone0"
    files: dict[str, str | int] = {f"{zone}/temp": now, f"{zone}/type": "cpu-thermal"}
    for number, (kind, at) in enumerate(trips.items()):
        files |= {f"{zone}/trip_point_{number}_type": kind, f"{zone}/trip_point_{number}_temp": at}
    assert lines(hardware.temperature(box(tmp_path, files))).startswith(f"{expected} ")


# -- system ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (system.memory({"MemTotal": 8192, "MemAvailable": 4000}), "ok"),
        (system.memory({"MemTotal": 8192, "MemAvailable": 400}), "warning"),
        (system.memory({"MemTotal": 8192, "MemAvailable": 100}), "wrong"),
        (system.memory({"MemTotal": 8192}), "unknown"),
        (system.descriptors(Descriptors(65536, "this process")), "ok"),
        (system.descriptors(Descriptors(512, "this process")), "warning"),
        (system.descriptors(Descriptors(64, "this process")), "wrong"),
        (system.descriptors(Descriptors(65536, "the daemon", 65000)), "wrong"),
        (system.descriptors(Descriptors(65536, "the daemon", 40)), "ok"),
        (system.shared_memory(SharedMemory(8000, 8000, True)), "ok"),
        (system.shared_memory(SharedMemory(1, 1, True)), "wrong"),
        (system.shared_memory(SharedMemory(64, 1, True)), "warning"),
        (system.shared_memory(SharedMemory(8000, 8000, False)), "warning"),
        (system.shared_memory(None), "warning"),
        (system.clock(NOW - DAY, NOW - DAY, NOW), "ok"),
        (system.clock(NOW + 60, NOW + 60, NOW), "ok"),  # small differences between two clocks are normal
        (system.clock(NOW, 0.0, 100.0), "wrong : the clock is at 1970-01-01 00:01:40 UTC, which is before edged was"),
        (system.clock(NOW - DAY, NOW + DAY, NOW), "wrong"),
        (system.clock(0.0, 1e30, NOW), "wrong"),
        (system.clock(NOW, NOW, 5e9), "wrong"),
        (system.clock(NOW, NOW, 1e30), "wrong"),
        (system.clock(NOW, NOW, float("inf")), "wrong"),
        (system.clock_sync(True, has_battery=False), "ok : NTP synchronises the clock"),
        (system.clock_sync(False, has_battery=False), "warning : the clock is not synchronised; the box has"),
        (system.clock_sync(None, has_battery=True), "unknown"),
    ],
)
def test_system_check_of_known_figures_has_its_result(found: Check, expected: str) -> None:
    assert lines([found]).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SwapTotal: 1048576 kB\nSwapFree: 102400 kB", "warning : 924 of 1024 MiB of swap are in use"),
        ("SwapTotal: 0 kB\nSwapFree: 0 kB", "ok"),
        ("", "unknown"),
    ],
)
def test_swap_check_has_its_result(tmp_path: Path, text: str, expected: str) -> None:
    assert lines([system.swap(system.meminfo(box(tmp_path, {"proc/meminfo": text})))]).startswith(expected)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "ok : no cgroup limits"),
        ({"memory.max": 512 << 20}, "warning : the cgroup allows 512 MiB"),
        ({"memory.max": 2 << 30, "memory.current": 2047 << 20}, "wrong : 2047 of the 2048 MiB"),
        # The kernel frees inactive file memory at once.
        ({"memory.max": 2 << 30, "memory.current": 2047 << 20, "memory.stat": f"inactive_file {1024 << 20}"}, "ok"),
        ({"memory.events": "oom 3\noom_kill 2"}, "warning : the kernel has killed 2 processes"),
        ({"memory.events": "oom 3\noom_kill 0"}, "ok"),
        ({"memory.events": "oom_kill 2", "memory.max": 2 << 30, "memory.current": 2047 << 20}, "wrong : 2047 of"),
        ({"memory.events": "oom_kill 2", "memory.max": 2 << 30, "memory.current": 1 << 30}, "warning : the kernel has"),
    ],
)
def test_memory_limit_check_of_the_cgroup_has_its_result(
    tmp_path: Path, files: dict[str, str | int], expected: str
) -> None:
    named = {f"sys/fs/cgroup/unit/{name}": text for name, text in files.items()}
    root = box(tmp_path, {"proc/self/cgroup": "0::/unit", "proc/meminfo": "MemTotal: 8388608 kB", **named})
    assert lines([system.memory_limit(root)]).startswith(expected)


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("vm/overcommit_memory", 2, "warning vm.overcommit_memory: "),
        ("vm/overcommit_memory", 1, "ok"),
        ("vm/panic_on_oom", 1, "warning vm.panic_on_oom: "),
        ("vm/max_map_count", 1000, "warning vm.max_map_count: "),
        ("fs/inotify/max_user_instances", 8, "warning fs.inotify.max_user_instances: "),
        ("kernel/other", 1, "unknown"),
    ],
)
def test_kernel_check_of_settings_has_its_result(tmp_path: Path, setting: str, value: int, expected: str) -> None:
    assert lines(system.kernel(box(tmp_path, {f"proc/sys/{setting}": value}))).startswith(expected)


def test_arena_check_in_a_sandbox_without_memfd_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    assert lines([system.arena(64)]).startswith("ok")
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert lines([system.arena(64)]).startswith("wrong between daemon and hosts: ")


def test_installed_returns_a_time() -> None:
    assert system.installed() > 1e9


def test_clock_sync_on_a_box_with_battery_does_not_mention_it() -> None:
    found = system.clock_sync(False, has_battery=True)
    assert (found.result, "battery" in found.message) == (Result.WARNING, False)


def test_is_synchronized_follows_the_mark_of_systemd(tmp_path: Path) -> None:
    assert system.is_synchronized(box(tmp_path, {})) is None
    assert system.is_synchronized(box(tmp_path, {"run/systemd/timesync/synchronized": ""})) is True
    assert system.is_synchronized(Root()) in (True, False, None)


# -- folders --------------------------------------------------------------------------------------------------------

GIB = 1 << 30


def ownership(folder: Folder, daemon_uid: int | None = None) -> Check:
    (found,) = folders.ownership(Name.STATE_FOLDER, folder, daemon_uid)
    return found


def space(free: int | None, files: int | None = 1000, taken: int = 0, **settings: int) -> Check:
    return folders.space(Folder("/s", True, free_bytes=free, free_files=files), taken, Engines(**settings))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ownership(Folder("/s", True, uid=7, free_bytes=GIB)), "ok"),
        (ownership(Folder("/s", True, uid=7, free_bytes=GIB), 7), "ok"),
        (ownership(Folder("/s", True, uid=0, free_bytes=GIB), 7), "wrong"),
        (ownership(Folder("/s", True, uid=7, free_bytes=GIB), 0), "ok"),  # root may write anywhere
        (ownership(Folder("/s", True, uid=7, others=3)), "warning"),
        (ownership(Folder("/s", True, "Read-only file system")), "wrong"),
        (ownership(Folder("/s", False)), "ok"),
        (ownership(Folder("/s", False, "Permission denied")), "wrong"),
        (space(GIB), "ok"),
        (space(100 << 20), "wrong"),
        (space(100 << 20, keep_free_mb=0), "ok"),
        (space(0, keep_free_mb=0), "wrong"),
        (space(GIB, files=0), "wrong"),
        (space(GIB, files=None), "ok"),
        (space(GIB, taken=3 << 20, budget_mb=2), "warning"),
        (space(None, files=None), "unknown"),
    ],
)
def test_folder_check_of_owner_and_space_has_its_result(found: Check, expected: str) -> None:
    assert lines([found]).startswith(f"{expected} /s: ")


def test_look_at_folder_leaves_no_file(tmp_path: Path) -> None:
    found = folders.look(tmp_path)
    assert (found.exists, found.refusal, found.others, list(tmp_path.iterdir())) == (True, "", 0, [])
    assert folders.look(tmp_path / "not" / "there").exists is False
    file = tmp_path / "file"
    file.touch()
    assert "is not a directory" in folders.look(file / "below").refusal


def test_look_at_full_disk_is_refused(small_disk: Path, fill: Callable[[Path], Path]) -> None:
    fill(small_disk)
    found = folders.look(small_disk)
    assert "No space left" in found.refusal
    assert folders.space(found, 0, Engines()).result is Result.WRONG
