"""Whether the nodes of accelerators and cameras may be opened by whoever runs edged."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong

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


def judge(found: Iterable[Node], user: User, facts: Mapping[str, str]) -> Iterator[Check]:
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
