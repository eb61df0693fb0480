"""Doctor: what is found about a box, from the files of recorded and made-up ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Ran

from edged.cli.app import app
from edged.config import Engines
from edged.device.root import Root
from edged.doctor import clock, devices, folders, power, system
from edged.doctor.check import Check, Name, Result
from edged.doctor.clock import Moment
from edged.doctor.devices import Node, User
from edged.doctor.folders import Folder
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


def results(checks: Iterable[Check]) -> list[str]:
    found = list(checks)
    for check in found:
        assert bool(check.remedy) or check.result in (Result.OK, Result.UNKNOWN), f"{check} says not what to do"
    return [check.result.value for check in found]


def said(checks: Iterable[Check]) -> str:
    return " | ".join(f"{check.result.value} {check.subject}: {check.message}" for check in checks)


# -- recorded boxes, through the command ------------------------------------------------------------------------------


def doctor(*line: str | Path) -> Ran:
    return CliRunner().invoke(app, ["doctor", *map(str, line)])


@pytest.mark.parametrize("name", sorted(path.name for path in BOXES.iterdir() if path.is_dir()))
def test_a_recorded_box_is_looked_at_without_touching_this_one(name: str) -> None:
    ran = doctor("--root", BOXES / name, "--json")
    found = json.loads(ran.stdout)
    assert list(found) == ["ok", "checks", "left_out"]
    assert {frozenset(check) for check in found["checks"]} == {
        frozenset(("name", "subject", "result", "message", "remedy"))
    }
    names = {check["name"] for check in found["checks"]}
    assert {"driver", "memory", "clock_sync"} <= names <= {name.value for name in Name}
    assert not names & {"runtime", "daemon", "state_folder", "descriptors", "model"}
    assert "asked of the box itself" in found["left_out"][0]
    assert not any("failed" in check["message"] for check in found["checks"])
    is_pending = name == "desktop-reboot-pending"
    assert (found["ok"], ran.exit_code) == (not is_pending, int(is_pending))


def test_a_driver_that_waits_for_a_reboot() -> None:
    found = json.loads(doctor("--root", BOXES / "desktop-reboot-pending", "--json").stdout)["checks"]
    (bad,) = [check for check in found if check["result"] == "wrong"]
    assert (bad["name"], bad["remedy"]) == ("driver", "restart the box")
    assert "nothing is built until they agree" in bad["message"]


def test_a_table_shows_every_check_with_its_remedy() -> None:
    ran = doctor("--root", BOXES / "desktop-reboot-pending")
    lines = ran.stdout.splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith("wrong"))
    assert lines[place + 1].strip() == "→ restart the box"
    assert "left out: " in ran.stdout
    assert lines[-1].split(", ")[2] == "1 wrong"


@pytest.mark.parametrize(
    "line",
    [("--root", "/nowhere"), ("a-model", "--root", "/"), ("--seconds", "0"), ("one", "two"), ("--config", "/nowhere")],
)
def test_what_makes_no_sense_is_usage(line: tuple[str, ...]) -> None:
    ran = doctor(*line)
    assert ran.exit_code == 2
    assert ran.stdout == ""


# -- driver ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "cards", "expected"),
    [
        ({}, {}, "unknown nvidia: not applicable"),
        (
            {"nvidia.driver": "550.54", "nvidia.kernel_module": "550.54"},
            {},
            "ok nvidia: driver and kernel module are 5",
        ),
        (
            {"nvidia.driver": "550.54"},
            {},
            "wrong nvidia: libraries of driver 550.54 are installed and its kernel module",
        ),
        ({"nvidia.state": "NVML error 999"}, {}, "wrong nvidia: the driver does not answer: NVML error 999"),
        ({}, {"0000:01:00.0": ""}, "wrong 0000:01:00.0: the NVIDIA card has no kernel driver"),
        ({}, {"0000:01:00.0": "nouveau"}, "wrong 0000:01:00.0: the NVIDIA card has the kernel driver nouveau"),
        ({"jetson.l4t": "36.4.3", "nvidia.driver": "540.4.0"}, {}, "ok nvidia: driver and kernel module are 540.4.0"),
        (
            {"cuda.driver": "12.2", "runtime.cuda": "13.0.96"},
            {},
            "wrong cuda: CUDA 13.0.96 is installed and the driver",
        ),
        ({"cuda.driver": "12.2", "runtime.cuda": "12.9.1"}, {}, "ok cuda: "),
        ({"tensorrt.version": "10.3.0.30"}, {}, "warning tensorrt: libnvinfer 10.3.0.30 is there without its Python"),
        ({"tensorrt.version": "10.3.0.30", "runtime.tensorrt": "10.3.0"}, {}, "ok tensorrt: "),
        ({"tensorrt.version": "10.3.0.30", "runtime.tensorrt": "10.3.0.post1"}, {}, "ok tensorrt: "),
        (
            {"tensorrt.version": "10.3.0.30", "runtime.tensorrt": "10.4.0"},
            {},
            "wrong tensorrt: libnvinfer is 10.3.0.30",
        ),
        ({"runtime.tensorrt": "10.4.0"}, {}, "warning tensorrt: the Python package 10.4.0 is there without libnvinfer"),
    ],
)
def test_driver(facts: dict[str, str], cards: dict[str, str], expected: str) -> None:
    found = list(devices.judge_driver(facts, cards))
    assert results(found)
    assert expected in said(found)


def test_cards_are_found_with_who_has_them(tmp_path: Path) -> None:
    device = "sys/bus/pci/devices/0000:01:00.0"
    root = box(tmp_path, {f"{device}/vendor": "0x10de", f"{device}/class": "0x030000"})
    assert devices.cards(root) == {"0000:01:00.0": ""}
    (tmp_path / "sys/bus/pci/drivers/nouveau").mkdir(parents=True)
    (tmp_path / device / "driver").symlink_to("../../../../bus/pci/drivers/nouveau")
    assert devices.cards(root) == {"0000:01:00.0": "nouveau"}
    box(tmp_path, {f"{device}/class": "0x0c0330"})  # the USB controller on the card
    assert devices.cards(root) == {}


# -- nodes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "user", "may"),
    [
        (0o660, 0, 44, CAMERA_USER, True),
        (0o660, 0, 104, CAMERA_USER, False),
        (0o640, 0, 44, CAMERA_USER, False),
        (0o666, 0, 0, CAMERA_USER, True),
        (0o060, 1000, 44, CAMERA_USER, False),  # the owner's own bits count first
        (0o000, 5, 5, User(0, frozenset((0,)), "root"), True),
    ],
)
def test_who_may_use_a_node(mode: int, uid: int, gid: int, user: User, may: bool) -> None:
    assert devices.may_use(Node("dev/nvmap", 0o20000 | mode, uid, gid, "video"), user) is may


def test_a_node_that_may_not_be_opened_says_which_group() -> None:
    gpu = Node("dev/dri/renderD128", 0o20660, 0, 104, "render")
    camera = Node("dev/video0", 0o20660, 0, 105, "video", is_camera=True)
    found = list(devices.judge_nodes([gpu, camera], CAMERA_USER, {}))
    assert results(found) == ["wrong", "warning"]
    assert found[0].subject == "/dev/dri/renderD128"
    assert "usermod -aG render edge" in found[0].remedy


def test_nodes_are_found_below_a_root(tmp_path: Path) -> None:
    root = box(tmp_path, {"dev/nvhost-ctrl-gpu": "", "dev/video0": "", "dev/null": "", "dev/dri/renderD128": ""})
    (tmp_path / "dev/nvhost-ctrl-gpu").chmod(0o600)
    found = devices.nodes(root, CAMERA_USER)
    assert {(node.path, node.is_camera) for node in found} == {
        ("dev/nvhost-ctrl-gpu", False),
        ("dev/dri/renderD128", False),
        ("dev/video0", True),
    }
    assert "wrong /dev/nvhost-ctrl-gpu: edge may not read and write" in said(
        devices.judge_nodes(found, CAMERA_USER, {})
    )


def test_a_card_without_its_node_is_a_container_without_its_card() -> None:
    found = list(devices.judge_nodes([], CAMERA_USER, {"gpu.0.pci": "0000:01:00.0"}))
    assert results(found) == ["wrong", "unknown"]
    assert "--gpus all" in found[0].remedy


# -- power ----------------------------------------------------------------------------------------------------------

CPU = "sys/devices/system/cpu/cpu0/cpufreq"


def governed(root: Root, facts: dict[str, str] | None = None) -> str:
    return said(power.mode(facts or {}, power.frequencies(root)))


def test_governors(tmp_path: Path) -> None:
    root = box(tmp_path, {f"{CPU}/scaling_governor": "powersave", f"{CPU}/scaling_driver": "cpufreq-dt"})
    assert "warning cpufreq: the governor powersave of cpufreq-dt" in governed(root)
    box(tmp_path, {f"{CPU}/scaling_driver": "intel_pstate"})
    assert "ok cpufreq: governor powersave of intel_pstate" in governed(root)
    box(tmp_path, {f"{CPU}/scaling_max_freq": 600000, f"{CPU}/cpuinfo_max_freq": 2400000})
    assert "warning cpufreq: processors are capped at 600 of 2400 MHz" in governed(root)
    assert governed(Root(tmp_path / "empty")).startswith("unknown")


def test_a_jetson_says_its_mode(tmp_path: Path) -> None:
    assert "ok nvpmodel: nvpmodel says 15W; engines are timed" in governed(
        box(tmp_path, {}), {"jetson.power_mode": "15W"}
    )
    assert governed(box(tmp_path, {}), {"jetson.l4t": "36.4"}).startswith("unknown nvpmodel")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "unknown"),
        ({"sys/devices/platform/soc/soc:firmware/get_throttled": "0"}, "ok"),
        ({"sys/devices/platform/soc/soc:firmware/get_throttled": "50005"}, "wrong : now: too little voltage"),
        (
            {"sys/devices/platform/soc/soc:firmware/get_throttled": "50000"},
            "warning : too little voltage, since the start",
        ),
        ({"sys/devices/platform/soc/soc:firmware/get_throttled": "error"}, "ok"),
        (
            {"sys/class/hwmon/hwmon1/name": "rpi_volt", "sys/class/hwmon/hwmon1/in0_lcrit_alarm": 1},
            "wrong : now: too little",
        ),
        (
            {"sys/class/hwmon/hwmon3/oc1_event_cnt": 2, "sys/class/hwmon/hwmon3/oc3_event_cnt": 3},
            "warning : throttled 5 times",
        ),
        ({f"{CPU}/../thermal_throttle/core_throttle_count": 7}, "warning : a processor core was throttled 7 times"),
    ],
)
def test_throttling(tmp_path: Path, files: dict[str, str | int], expected: str) -> None:
    root = box(tmp_path, {str(Path(name)).replace("cpufreq/../", ""): text for name, text in files.items()})
    found = list(power.throttling(power.throttled(root), power.knows_throttling(root)))
    assert results(found)
    assert said(found).startswith(expected)


@pytest.mark.parametrize(
    ("now", "trips", "expected"),
    [
        (45000, {}, ["ok"]),
        (86000, {}, ["warning"]),
        (97000, {}, ["wrong"]),
        (70000, {"passive": 65000}, ["warning"]),
        (70000, {"critical": 72000}, ["wrong"]),
        (90000, {"passive": 95000, "critical": 105000}, ["ok"]),
        (-256000, {}, ["unknown"]),
        ("nonsense", {}, ["unknown"]),
    ],
)
def test_temperatures(tmp_path: Path, now: int | str, trips: dict[str, int], expected: list[str]) -> None:
    zone = "sys/class/thermal/thermal_zone0"
    files: dict[str, str | int] = {f"{zone}/temp": now, f"{zone}/type": "cpu-thermal"}
    for number, (kind, at) in enumerate(trips.items()):
        files |= {f"{zone}/trip_point_{number}_type": kind, f"{zone}/trip_point_{number}_temp": at}
    assert results(power.temperature(power.zones(box(tmp_path, files)))) == expected


# -- memory, limits, kernel -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("available", "expected"), [(4000, Result.OK), (400, Result.WARNING), (100, Result.WRONG), (None, Result.UNKNOWN)]
)
def test_memory(tmp_path: Path, available: int | None, expected: Result) -> None:
    lines = "MemTotal: 8388608 kB\n" + ("" if available is None else f"MemAvailable: {available << 10} kB\n")
    assert system.memory(system.meminfo(box(tmp_path, {"proc/meminfo": lines}))).result is expected


def test_swap(tmp_path: Path) -> None:
    root = box(tmp_path, {"proc/meminfo": "SwapTotal: 1048576 kB\nSwapFree: 102400 kB\n"})
    found = system.swap(system.meminfo(root))
    assert (found.result, found.message.split(";")[0]) == (Result.WARNING, "924 of 1024 MiB of swap are in use")
    box(tmp_path, {"proc/meminfo": "SwapTotal: 0 kB\nSwapFree: 0 kB\n"})
    assert system.swap(system.meminfo(root)).result is Result.OK


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "ok : no cgroup limits"),
        ({"memory.max": 512 << 20}, "warning : the cgroup allows 512 MiB"),
        ({"memory.max": 2 << 30, "memory.current": 2047 << 20}, "wrong : 2047 of the 2048 MiB"),
        # What files take gives way at once.
        ({"memory.max": 2 << 30, "memory.current": 2047 << 20, "memory.stat": f"inactive_file {1024 << 20}"}, "ok"),
        ({"memory.events": "oom 3\noom_kill 2"}, "warning : the kernel has killed 2 processes"),
    ],
)
def test_the_cgroup(tmp_path: Path, files: dict[str, str | int], expected: str) -> None:
    named = {f"sys/fs/cgroup/unit/{name}": text for name, text in files.items()}
    root = box(tmp_path, {"proc/self/cgroup": "0::/unit", "proc/meminfo": "MemTotal: 8388608 kB", **named})
    found = [system.memory_limit(system.limit(root))]
    assert results(found)
    assert said(found).startswith(expected)


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
def test_kernel_settings(tmp_path: Path, setting: str, value: int, expected: str) -> None:
    found = list(system.kernel(system.settings(box(tmp_path, {f"proc/sys/{setting}": value}))))
    assert results(found)
    assert said(found).startswith(expected)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (Descriptors(65536, "this process"), Result.OK),
        (Descriptors(512, "this process"), Result.WARNING),
        (Descriptors(64, "this process"), Result.WRONG),
        (Descriptors(65536, "the daemon", 65000), Result.WRONG),
        (Descriptors(65536, "the daemon", 40), Result.OK),
    ],
)
def test_descriptors(known: Descriptors, expected: Result) -> None:
    assert system.judge_descriptors(known).result is expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (SharedMemory(8000, 8000, True), ["ok", "ok"]),
        (SharedMemory(1, 1, True), ["ok", "wrong"]),
        (SharedMemory(64, 1, True), ["ok", "warning"]),
        (SharedMemory(8000, 8000, False), ["ok", "warning"]),
        (SharedMemory(None), ["ok", "warning"]),
        (SharedMemory(8000, 8000, True, "Operation not permitted"), ["wrong", "ok"]),
    ],
)
def test_shared_memory(known: SharedMemory, expected: list[str]) -> None:
    assert results(system.shared_memory(known, 512)) == expected


# -- clock ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (Moment(NOW, NOW - DAY, NOW - DAY), Result.OK),
        (Moment(NOW, NOW + 60, NOW + 60), Result.OK),  # two clocks are never quite alike
        (Moment(0.0, NOW, 0.0), Result.WRONG),
        (Moment(NOW, NOW - DAY, NOW + DAY), Result.WRONG),
        (Moment(NOW, 0.0, 1e30), Result.WRONG),
        (Moment(5e9, NOW, NOW), Result.WRONG),
        (Moment(1e30, NOW, NOW), Result.WRONG),
        (Moment(float("inf"), NOW, NOW), Result.WRONG),
    ],
)
def test_the_clock_against_what_is_known_to_be_past(moment: Moment, expected: Result) -> None:
    assert clock.judge(moment).result is expected


def test_a_clock_of_1970_says_so() -> None:
    found = clock.judge(Moment(100.0, NOW))
    assert "the clock says 1970-01-01 00:01:40 UTC, which is before edged was installed (2026-" in found.message


def test_edged_was_installed_before_now() -> None:
    assert clock.installed() > 1e9


def test_who_keeps_the_clock(tmp_path: Path) -> None:
    assert clock.is_synchronized(box(tmp_path, {})) is None
    assert clock.is_synchronized(box(tmp_path, {"run/systemd/timesync/synchronized": ""})) is True
    assert clock.is_synchronized(Root()) in (True, False, None)
    kept, lost = clock.judge_sync(True, False), clock.judge_sync(False, False)
    assert (kept.result, lost.result, clock.judge_sync(None, True).result.value) == (
        Result.OK,
        Result.WARNING,
        "unknown",
    )
    assert "no battery clock" in lost.message
    assert "no battery clock" not in clock.judge_sync(False, True).message


# -- folders --------------------------------------------------------------------------------------------------------

GIB = 1 << 30


@pytest.mark.parametrize(
    ("folder", "daemon", "expected"),
    [
        (Folder("/s", True, uid=7, free_bytes=GIB), None, Result.OK),
        (Folder("/s", True, uid=7, free_bytes=GIB), 7, Result.OK),
        (Folder("/s", True, uid=0, free_bytes=GIB), 7, Result.WRONG),
        (Folder("/s", True, uid=7, free_bytes=GIB), 0, Result.OK),  # root may write anywhere
        (Folder("/s", True, uid=7, others=3), None, Result.WARNING),
        (Folder("/s", True, "Read-only file system"), None, Result.WRONG),
        (Folder("/s", False), None, Result.OK),
        (Folder("/s", False, "Permission denied"), None, Result.WRONG),
    ],
)
def test_folders(folder: Folder, daemon: int | None, expected: Result) -> None:
    (found,) = folders.judge(Name.STATE_FOLDER, folder, daemon)
    assert (found.result, found.subject) == (expected, "/s")


@pytest.mark.parametrize(
    ("free", "files", "taken", "settings", "expected"),
    [
        (GIB, 1000, 0, Engines(), Result.OK),
        (100 << 20, 1000, 0, Engines(), Result.WRONG),
        (100 << 20, 1000, 0, Engines(keep_free_mb=0), Result.OK),
        (0, 1000, 0, Engines(keep_free_mb=0), Result.WRONG),
        (GIB, 0, 0, Engines(), Result.WRONG),
        (GIB, None, 0, Engines(), Result.OK),
        (GIB, 1000, 3 << 20, Engines(budget_mb=2), Result.WARNING),
    ],
)
def test_room_for_engines(free: int, files: int | None, taken: int, settings: Engines, expected: Result) -> None:
    folder = Folder("/c", True, free_bytes=free, free_files=files)
    assert folders.space(folder, taken, settings).result is expected


def test_looking_at_a_folder_leaves_nothing(tmp_path: Path) -> None:
    found = folders.look(tmp_path)
    assert (found.exists, found.refusal, found.others, list(tmp_path.iterdir())) == (True, "", 0, [])
    assert folders.look(tmp_path / "not" / "there").exists is False
    file = tmp_path / "file"
    file.touch()
    assert "is not a directory" in folders.look(file / "below").refusal


def test_a_full_disk_is_told(small_disk: Path, fill: Callable[[Path], Path]) -> None:
    fill(small_disk)
    found = folders.look(small_disk)
    assert "No space left" in found.refusal
    assert folders.space(found, 0, Engines()).result is Result.WRONG
