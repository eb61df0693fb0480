"""Whether the driver's parts fit each other, and what is built on them.

Pure but for the list of PCI devices (the kernel's `ABI/testing/sysfs-bus-pci`)."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from edged.backends import registry
from edged.device.libraries import as_numbers
from edged.device.nvidia import REBOOT_PENDING
from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong

_NVIDIA_PCI, _DISPLAY = "0x10de", "0x03"
_DRIVER = "install the NVIDIA driver of the box's distribution and restart"


def cards(root: Root) -> dict[str, str]:
    """NVIDIA's graphics cards by PCI address, with the kernel driver that has them; empty where none has."""
    found = {}
    for path in root.glob("sys/bus/pci/devices/*/vendor"):
        folder = path.removesuffix("/vendor")
        is_display = (root.read(f"{folder}/class") or "").startswith(_DISPLAY)
        if (root.read(path) or "").strip() == _NVIDIA_PCI and is_display:
            found[folder.rpartition("/")[2]] = root.real_name(f"{folder}/driver") or ""
    return found


def judge_driver(facts: Mapping[str, str], found: Mapping[str, str]) -> Iterator[Check]:
    """Judges the NVIDIA driver, CUDA and TensorRT, by the box's facts and its cards."""
    module, driver, state = (facts.get(f"nvidia.{name}", "") for name in ("kernel_module", "driver", "state"))
    is_jetson = bool(facts.get("jetson.l4t") or facts.get("jetson.soc"))
    for address, kernel_driver in found.items():
        if kernel_driver != "nvidia":
            has = f"the kernel driver {kernel_driver}" if kernel_driver else "no kernel driver"
            yield wrong(Name.DRIVER, f"the NVIDIA card has {has}, so nothing can compute on it", _DRIVER, address)
    if state == REBOOT_PENDING:
        said = f"libraries are {driver or 'new'} and the loaded kernel module is {module or 'old'}"
        yield wrong(Name.DRIVER, f"{said}; nothing is built until they agree", "restart the box", "nvidia")
    elif state:
        yield wrong(Name.DRIVER, f"the driver does not answer: {state}", "see: nvidia-smi and journalctl -k", "nvidia")
    elif driver and not module and not is_jetson:
        yield wrong(
            Name.DRIVER,
            f"libraries of driver {driver} are installed and its kernel module is not loaded",
            "modprobe nvidia; where that fails, see: journalctl -k and dkms status",
            "nvidia",
        )
    elif module or driver:
        yield ok(Name.DRIVER, f"driver and kernel module are {driver or module}", "nvidia")
    elif is_jetson:
        yield ok(Name.DRIVER, f"Jetson Linux {facts.get('jetson.l4t', 'of an unknown release')} brings it", "nvidia")
    elif not found:
        yield unknown(Name.DRIVER, "not applicable: no NVIDIA device here", "nvidia")
    yield from _cuda(facts)
    yield from _tensorrt(facts)


def _cuda(facts: Mapping[str, str]) -> Iterator[Check]:
    able = facts.get("cuda.driver", "")
    runtime = facts.get("runtime.cuda") or facts.get("cuda.runtime") or ""
    if not able or not runtime:
        return
    if as_numbers(runtime)[:1] > as_numbers(able)[:1]:
        said = f"CUDA {runtime} is installed and the driver runs CUDA {able} at most"
        yield wrong(Name.DRIVER, said, f"update the driver, or install CUDA {as_numbers(able)[0]}", "cuda")
    else:
        yield ok(Name.DRIVER, f"the driver runs CUDA up to {able}, {runtime} is installed", "cuda")


def _tensorrt(facts: Mapping[str, str]) -> Iterator[Check]:
    library, package = facts.get("tensorrt.version", ""), facts.get("runtime.tensorrt", "")
    if not library and not package:
        return
    if not package:
        remedy = "apt install python3-libnvinfer, or make edged's environment with --system-site-packages"
        yield warning(Name.DRIVER, f"libnvinfer {library} is there without its Python module", remedy, "tensorrt")
    elif not library:
        remedy = "install the libraries of that version, or remove the package"
        yield warning(Name.DRIVER, f"the Python package {package} is there without libnvinfer", remedy, "tensorrt")
    elif not registry.agree(library, _plain(package)):
        said = f"libnvinfer is {library} and its Python module {package}"
        yield wrong(Name.DRIVER, said, "install both of one version", "tensorrt")
    else:
        yield ok(Name.DRIVER, f"libnvinfer and its Python module are {library}", "tensorrt")


def _plain(version: str) -> str:
    """Without what a repackaging adds: 10.3.0.post1 -> 10.3.0."""
    return ".".join(part for part in version.split(".") if part.isdecimal())


# Patterns of nodes that computing needs, and of those that frames come from.
_COMPUTING = (
    *("dev/nvidia[0-9]*", "dev/nvidiactl", "dev/nvidia-uvm"),
    *("dev/nvhost*", "dev/nvmap", "dev/nvgpu/igpu[0-9]*/*"),
    *("dev/dri/renderD*", "dev/accel/accel[0-9]*"),
)
_CAMERAS = ("dev/video[0-9]*",)


class User(msgspec.Struct, frozen=True):
    """Who runs edged: its ids, and its name for people."""

    uid: int
    gids: frozenset[int]
    name: str

    @classmethod
    def current(cls) -> User:
        uid = os.geteuid()
        return cls(uid, frozenset((os.getegid(), *os.getgroups())), _user(uid))

    @classmethod
    def of_process(cls, root: Root, pid: int) -> User | None:
        """Who a process runs as; None where that cannot be seen."""
        fields = dict(line.partition(":")[::2] for line in (root.read(f"proc/{pid}/status") or "").splitlines())
        uids, gids = fields.get("Uid", "").split(), fields.get("Gid", "").split()
        if len(uids) < 2 or len(gids) < 2:
            return None
        return cls(int(uids[1]), frozenset(map(int, (gids[1], *fields.get("Groups", "").split()))), _user(int(uids[1])))


class Node(msgspec.Struct, frozen=True):
    """A device node: who owns it and what its mode allows.
    `is_open` where the kernel lets this user open it whatever the mode says (an ACL)."""

    path: str
    mode: int
    uid: int
    gid: int
    group: str
    is_camera: bool = False
    is_open: bool = False


def nodes(root: Root, user: User) -> tuple[Node, ...]:
    """Every node there is; whether this very user may open it is asked of the kernel where that is who runs edged."""
    found = []
    asks = root.is_live and user.uid == os.geteuid()
    for pattern in (*_COMPUTING, *_CAMERAS):
        for path in root.glob(pattern):
            status = root.status(path)
            if status is None or stat.S_ISDIR(status.st_mode):
                continue
            may = asks and os.access(f"/{path}", os.R_OK | os.W_OK)
            owner, group = status.st_uid, status.st_gid
            found.append(Node(path, status.st_mode, owner, group, _group(group), pattern in _CAMERAS, may))
    return tuple(found)


def judge_nodes(found: Iterable[Node], user: User, facts: Mapping[str, str]) -> Iterator[Check]:
    """Judges who may open what: a line for each that this user may not, one for all the others."""
    found = tuple(found)
    closed = [node for node in found if not may_use(node, user)]
    for node in closed:
        where = f"/{node.path}"
        said = f"{user.name} may not read and write {where}, which is for group {node.group}"
        remedy = (
            f"usermod -aG {node.group} {user.name}, or SupplementaryGroups={node.group} in the unit; then restart it"
        )
        yield (warning if node.is_camera else wrong)(Name.DEVICE_NODES, said, remedy, where)
    if "gpu.0.pci" in facts and not any(node.path.startswith("dev/nvidia") for node in found):
        yield wrong(
            Name.DEVICE_NODES,
            "there is an NVIDIA card and no /dev/nvidia* to reach it by",
            "nvidia-modprobe -c 0 -u, or give the container its GPU: --gpus all",
            "/dev/nvidia0",
        )
    if found and not closed:
        yield ok(Name.DEVICE_NODES, f"{user.name} may use all {len(found)} nodes of accelerators and cameras")
    if not found:
        yield unknown(Name.DEVICE_NODES, "not applicable: there are no nodes of accelerators or cameras")


def may_use(node: Node, user: User) -> bool:
    """Whether a user may read and write a node, as the kernel decides it (path_resolution(7))."""
    if node.is_open or user.uid == 0:
        return True
    shift = 6 if user.uid == node.uid else 3 if node.gid in user.gids else 0
    return node.mode >> shift & 0o6 == 0o6


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
