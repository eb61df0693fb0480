"""Checks of devices: drivers, CUDA and TensorRT, permissions of device nodes, power mode, throttling and temperatures.

Sources: the kernel's `ABI/testing/sysfs-bus-pci`, `admin-guide/pm/cpufreq`, `ABI/testing/sysfs-devices-system-cpu`,
`driver-api/thermal/sysfs-api` and `hwmon/sysfs-interface`; the Raspberry Pi firmware's get_throttled; the Jetson Linux
guide on over-current events.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from edged.backends import registry
from edged.device.libraries import as_numbers
from edged.device.nvidia import REBOOT_PENDING
from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong
from edged.formatting import many

_NVIDIA_PCI, _DISPLAY = "0x10de", "0x03"
_INSTALL_DRIVER = "install the NVIDIA driver of the box's distribution and restart"
# Patterns of device nodes: of accelerators, and of cameras.
_COMPUTING = (
    *("dev/nvidia[0-9]*", "dev/nvidiactl", "dev/nvidia-uvm"),
    *("dev/nvhost*", "dev/nvmap", "dev/nvgpu/igpu[0-9]*/*"),
    *("dev/dri/renderD*", "dev/accel/accel[0-9]*"),
)
_CAMERAS = ("dev/video[0-9]*",)
_READ_ONLY = ("dev/nvmap",)  # some releases of JetPack give it the mode 0440


def cards(root: Root) -> dict[str, str]:
    """Return a mapping from PCI address to kernel driver, for NVIDIA's graphics cards; "" for a card without driver."""
    found = {}
    for path in root.glob("sys/bus/pci/devices/*/vendor"):
        folder = path.removesuffix("/vendor")
        if _text(root, path) == _NVIDIA_PCI and _text(root, f"{folder}/class").startswith(_DISPLAY):
            found[folder.rpartition("/")[2]] = root.real_name(f"{folder}/driver") or ""
    return found


def driver(facts: Mapping[str, str], found: Mapping[str, str]) -> Iterator[Check]:
    """Check the NVIDIA driver, CUDA and TensorRT, using the box's facts and cards."""
    module, version, state = (facts.get(f"nvidia.{name}", "") for name in ("kernel_module", "driver", "state"))
    is_jetson = bool(facts.get("jetson.l4t") or facts.get("jetson.soc"))
    for address, kernel_driver in found.items():
        if kernel_driver != "nvidia":
            has = f"the kernel driver {kernel_driver}" if kernel_driver else "no kernel driver"
            yield wrong(
                Name.DRIVER, f"the NVIDIA card has {has}, so engines cannot run on it", _INSTALL_DRIVER, address
            )
    if state == REBOOT_PENDING:
        message = f"the driver's libraries are {version or 'new'}, but the loaded kernel module is {module or 'old'}"
        yield wrong(Name.DRIVER, f"{message}; no engine is built until both match", "restart the box", "nvidia")
    elif state:
        yield wrong(Name.DRIVER, f"the driver does not answer: {state}", "see: nvidia-smi and journalctl -k", "nvidia")
    elif version and not module and not is_jetson:
        yield wrong(
            Name.DRIVER,
            f"libraries of NVIDIA driver {version} are installed, but the driver's kernel module is not loaded",
            "modprobe nvidia; if that fails, see: journalctl -k and dkms status",
            "nvidia",
        )
    elif module or version:
        yield ok(Name.DRIVER, f"driver and kernel module are {version or module}", "nvidia")
    elif is_jetson:
        yield ok(
            Name.DRIVER, f"the driver is part of Jetson Linux {facts.get('jetson.l4t', '(unknown release)')}", "nvidia"
        )
    elif not found:
        yield unknown(Name.DRIVER, "not applicable: this box has no NVIDIA device", "nvidia")
    yield from _cuda(facts)
    yield from _tensorrt(facts)


def _cuda(facts: Mapping[str, str]) -> Iterator[Check]:
    able = facts.get("cuda.driver", "")
    runtime = facts.get("runtime.cuda") or facts.get("cuda.runtime") or ""
    if not able or not runtime:
        return
    if as_numbers(runtime)[:1] > as_numbers(able)[:1]:
        message = f"CUDA {runtime} is installed, but the driver supports CUDA {able} at most"
        yield wrong(Name.DRIVER, message, f"update the driver, or install CUDA {as_numbers(able)[0]}", "cuda")
    else:
        yield ok(Name.DRIVER, f"the driver supports CUDA up to {able}; CUDA {runtime} is installed", "cuda")


def _tensorrt(facts: Mapping[str, str]) -> Iterator[Check]:
    library, package = facts.get("tensorrt.version", ""), facts.get("runtime.tensorrt", "")
    if not library and not package:
        return
    # Without the suffix of a repackaged release: 10.3.0.post1 -> 10.3.0.
    plain = ".".join(part for part in package.split(".") if part.isdecimal())
    if not package:
        remedy = "apt install python3-libnvinfer, or make edged's environment with --system-site-packages"
        yield warning(Name.DRIVER, f"libnvinfer {library} is installed without its Python module", remedy, "tensorrt")
    elif not library:
        remedy = "install libnvinfer of the same version, or remove the Python package"
        yield warning(
            Name.DRIVER, f"Python package tensorrt {package} is installed without libnvinfer", remedy, "tensorrt"
        )
    elif not registry.agree(library, plain):
        message = f"libnvinfer has version {library}, but its Python module has version {package}"
        yield wrong(Name.DRIVER, message, "install both with the same version", "tensorrt")
    else:
        yield ok(Name.DRIVER, f"libnvinfer and its Python module have version {library}", "tensorrt")


class User(msgspec.Struct, frozen=True):
    """A user with the effective user id and all group ids of a process that runs edged."""

    uid: int
    gids: frozenset[int]
    name: str

    @classmethod
    def current(cls) -> User:
        uid = os.geteuid()
        return cls(uid, frozenset((os.getegid(), *os.getgroups())), user_name(uid))

    @classmethod
    def of_process(cls, root: Root, pid: int) -> User | None:
        """Return the user of a process; None if the user cannot be read."""
        fields = dict(line.partition(":")[::2] for line in (root.read(f"proc/{pid}/status") or "").splitlines())
        uids, gids = fields.get("Uid", "").split(), fields.get("Gid", "").split()
        if len(uids) < 2 or len(gids) < 2:
            return None
        groups = frozenset(map(int, (gids[1], *fields.get("Groups", "").split())))
        return cls(int(uids[1]), groups, user_name(int(uids[1])))


_OWNER, _GROUP, _OTHERS = 6, 3, 0  # positions of their bits in a mode


class Node(msgspec.Struct, frozen=True):
    """A device node with its owner and mode. `is_open` is set if the kernel allows this user to open it, for example by
    an ACL that the mode does not show."""

    path: str
    mode: int
    uid: int
    gid: int
    group: str
    is_camera: bool = False
    is_open: bool = False

    def may_use(self, user: User) -> bool:
        """Whether the kernel's rules (path_resolution(7)) give a user the access that edged needs."""
        if self.is_open or user.uid == 0:
            return True
        return self._allows(_OWNER if user.uid == self.uid else _GROUP if self.gid in user.gids else _OTHERS)

    def remedy(self, user: User) -> str:
        """Return how to give the access that edged needs to a user who lacks it. This is never membership in the group
        root, which also gives access to other files."""
        group = self.group
        if self.gid == 0:
            group = "render" if self.path.startswith(("dev/dri/", "dev/accel/")) else "video"
        join = f"usermod -aG {group} {user.name}, or SupplementaryGroups={group} in the unit; then restart edged"
        if self.gid != 0 and self.uid != user.uid and self._allows(_GROUP):
            return join
        if self.path.startswith("dev/nvidia"):  # nvidia-modprobe creates these nodes, without udev
            options = f"NVreg_DeviceFileMode=0660 and NVreg_DeviceFileGID, the id of group {group}"
            return f"set these options of the kernel module nvidia, and restart the box: {options}; then {join}"
        return f'let a udev rule of the host set GROUP="{group}" and MODE="0660" for the node; then {join}'

    def _allows(self, shift: int) -> bool:
        needed = _needed(self.path)
        return self.mode >> shift & needed == needed


def _needed(path: str) -> int:
    """Return the access that edged needs to a node, as a mode of os.access: read, and for most nodes also write."""
    return os.R_OK if path in _READ_ONLY else os.R_OK | os.W_OK


def nodes(root: Root, user: User) -> tuple[Node, ...]:
    """Return the device nodes. If `user` is this process's user, also ask the kernel whether this process may open each
    node."""
    found = []
    asks = root.is_live and user.uid == os.geteuid()
    for pattern in (*_COMPUTING, *_CAMERAS):
        for path in root.glob(pattern):
            status = root.status(path)
            if status is None or stat.S_ISDIR(status.st_mode):
                continue
            may = asks and os.access(f"/{path}", _needed(path))
            owner, group = status.st_uid, status.st_gid
            found.append(Node(path, status.st_mode, owner, group, _group_name(group), pattern in _CAMERAS, may))
    return tuple(found)


def device_nodes(found: tuple[Node, ...], user: User, facts: Mapping[str, str]) -> Iterator[Check]:
    """Check the permissions of device nodes. Yield a line for each node that `user` may not open, or one line if `user`
    may open all."""
    closed = [node for node in found if not node.may_use(user)]
    for node in closed:
        owned = f"belongs to group {node.group} and has mode {stat.S_IMODE(node.mode):04o}"
        message = f"user {user.name} has no permission to use /{node.path}, which {owned}"
        yield (warning if node.is_camera else wrong)(Name.DEVICE_NODES, message, node.remedy(user), f"/{node.path}")
    if "gpu.0.pci" in facts and not any(node.path.startswith("dev/nvidia") for node in found):
        yield wrong(
            Name.DEVICE_NODES,
            "the box has an NVIDIA card but no /dev/nvidia* nodes",
            "nvidia-modprobe -c 0 -u, or give the container its GPU: --gpus all",
            "/dev/nvidia0",
        )
    if found and not closed:
        yield ok(Name.DEVICE_NODES, f"user {user.name} can use all {len(found)} nodes of accelerators and cameras")
    if not found:
        yield unknown(Name.DEVICE_NODES, "not applicable: the box has no device nodes of accelerators or cameras")


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


_CPUS = "sys/devices/system/cpu/cpu[0-9]*"
_PI = ("sys/devices/platform/soc/soc:firmware/get_throttled", "sys/devices/platform/soc@*/soc*:firmware/get_throttled")
# Bits of the Raspberry Pi's throttling word for the present state; the bits 16 places higher are for the time since the
# start.
_PI_NOW = {0: "too little voltage", 1: "clock capped", 2: "throttled", 3: "at its temperature limit"}
_OVERCURRENT = "sys/class/hwmon/hwmon*/oc[0-9]*_event_cnt"
_ITSELF = ("intel_pstate", "amd-pstate", "amd-pstate-epp")  # "powersave" of these drivers allows full speed under load
_SANE = (-40.0, 150.0)  # degrees; a sensor that is off reports -256
_HOT, _TOO_HOT = 85.0, 95.0  # degrees, if the box has no trip points
_NEAR_CRITICAL = 3.0  # degrees


def power_mode(root: Root, facts: Mapping[str, str]) -> Iterator[Check]:
    """Check the power mode, and the governor of the processors' clocks."""
    jetson = facts.get("jetson.power_mode", "")
    if jetson:
        slower = "; engines are built and timed for this mode; /etc/nvpmodel.conf lists the other modes"
        yield ok(Name.POWER_MODE, f"power mode {jetson}{'' if jetson.startswith('MAXN') else slower}", "nvpmodel")
    elif facts.get("jetson.l4t"):
        yield unknown(Name.POWER_MODE, "nvpmodel does not report the power mode", "nvpmodel")
    governed = {check for folder in root.glob(f"{_CPUS}/cpufreq") if (check := _clock(root, folder)) is not None}
    yield from sorted(governed, key=str)
    if not governed and not facts.get("jetson.l4t"):
        yield unknown(Name.POWER_MODE, "the kernel does not report a governor of the processors' clocks")


def _clock(root: Root, folder: str) -> Check | None:
    """Check the governor of one processor's clock; return None if the kernel reports none."""
    governor, controller = (_text(root, f"{folder}/scaling_{name}") for name in ("governor", "driver"))
    capped, able = _number(root, f"{folder}/scaling_max_freq") or 0, _number(root, f"{folder}/cpuinfo_max_freq") or 0
    if not governor and not controller:
        return None
    if governor == "powersave" and controller not in _ITSELF:
        message = f"the governor powersave of {controller or 'cpufreq'} keeps processors at their lowest clock"
        remedy = "echo schedutil | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
        return warning(Name.POWER_MODE, message, remedy, "cpufreq")
    if 0 < capped < able:
        message = f"the clock of the processors is capped at {capped // 1000} of {able // 1000} MHz"
        remedy = "raise scaling_max_freq in /sys/devices/system/cpu/cpu*/cpufreq, or leave it if this is intended"
        return warning(Name.POWER_MODE, message, remedy, "cpufreq")
    return ok(Name.POWER_MODE, f"governor {governor or 'unknown'} of {controller or 'cpufreq'}", "cpufreq")


def throttling(root: Root) -> Iterator[Check]:
    """Check whether the box is throttled now or was throttled since its start."""
    remedy = "use a better power supply or better cooling; then time the engines again: edged engines verify --all"
    volt = [path for path in root.glob("sys/class/hwmon/hwmon*/name") if _text(root, path) == "rpi_volt"]
    firmware = [path for pattern in _PI for path in root.glob(pattern)]
    now, before = list(_pi(root, firmware)), [*_overcurrent(root), *_cores(root)]
    # The voltage sensor is needed only without the firmware's word, which also reports low voltage.
    if not firmware and any(_number(root, f"{path.rpartition('/')[0]}/in0_lcrit_alarm") for path in volt):
        now.append((True, _PI_NOW[0]))
    for is_now, event in [*now, *before]:
        message = f"the box reports now: {event}" if is_now else f"the box reported since its start: {event}"
        yield (wrong if is_now else warning)(Name.THROTTLING, message, remedy)
    if now or before:
        return
    reports = firmware or volt or root.glob(_OVERCURRENT) or root.glob(f"{_CPUS}/thermal_throttle/core_throttle_count")
    yield (
        ok(Name.THROTTLING, "the box has not been throttled since its start")
        if reports
        else unknown(Name.THROTTLING, "the box does not report throttling")
    )


def _pi(root: Root, paths: Iterable[str]) -> Iterator[tuple[bool, str]]:
    for path in paths:
        text = _text(root, path)
        word = int(text, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]{1,8}", text) else 0
        for bit, event in _PI_NOW.items():
            if word >> bit & 1 or word >> bit + 16 & 1:
                yield bool(word >> bit & 1), event


def _overcurrent(root: Root) -> Iterator[tuple[bool, str]]:
    count = sum(_number(root, path) or 0 for path in root.glob(_OVERCURRENT))
    if count:
        yield False, f"throttled {many(count, 'time')} because it drew too much current"


def _cores(root: Root) -> Iterator[tuple[bool, str]]:
    """Yield the throttling of cores and packages. Every core reports the count of its package, so counts are not added:
    the largest is used."""
    for kind in ("core", "package"):
        counts = [_number(root, path) or 0 for path in root.glob(f"{_CPUS}/thermal_throttle/{kind}_throttle_count")]
        if max(counts, default=0):
            yield False, f"a processor {kind} was throttled {many(max(counts), 'time')} because of its temperature"


def temperature(root: Root) -> Iterator[Check]:
    """Yield a check for each temperature that is too high. If all are low enough, yield one check of the highest."""
    remedy = "improve the cooling, use a lower power mode, or send fewer frames a second"
    found, bad = [], []
    for folder in root.glob("sys/class/thermal/thermal_zone[0-9]*"):
        now, name = _degrees(root, f"{folder}/temp"), _text(root, f"{folder}/type") or folder.rpartition("/")[2]
        if now is None:
            continue
        found.append((now, name))
        trips = _trips(root, folder)
        critical, slow = trips.get("critical", _TOO_HOT + _NEAR_CRITICAL), trips.get("passive", _HOT)
        if now >= critical - _NEAR_CRITICAL:
            bad.append(wrong(Name.TEMPERATURE, f"{now:.0f} °C; the box shuts down at {critical:.0f} °C", remedy, name))
        elif now >= slow:
            bad.append(warning(Name.TEMPERATURE, f"{now:.0f} °C; the box slows down from {slow:.0f} °C", remedy, name))
    yield from bad
    if not found:
        yield unknown(Name.TEMPERATURE, "no temperature sensor can be read")
    elif not bad:
        now, name = max(found)
        yield ok(Name.TEMPERATURE, f"{now:.0f} °C at {name}, the hottest of {len(found)} sensors")


def _trips(root: Root, folder: str) -> dict[str, float]:
    """Return a zone's lowest temperature for each kind of trip point: the box slows down at "passive" and shuts down at
    "critical"."""
    found: dict[str, float] = {}
    for path in root.glob(f"{folder}/trip_point_*_type"):
        kind, at = _text(root, path), _degrees(root, path.removesuffix("_type") + "_temp")
        if at is not None and at > 0:
            found[kind] = min(at, found.get(kind, at))
    return found


def _degrees(root: Root, path: str) -> float | None:
    thousandths = _number(root, path)
    if thousandths is None or not _SANE[0] <= thousandths / 1000 <= _SANE[1]:
        return None
    return thousandths / 1000


def _number(root: Root, path: str) -> int | None:
    text = _text(root, path)
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None


def _text(root: Root, path: str) -> str:
    return (root.read(path) or "").strip()
