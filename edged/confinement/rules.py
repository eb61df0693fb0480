"""Lists the files that a confined process may use: the files of its job, the interpreter, libraries, system
information, devices.

Call `use` once, before this process starts its first child, to set the mode.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from edged.confinement import landlock
from edged.confinement.landlock import READ, USE, WRITE

# "on": use the restrictions that the kernel has; "enforce": fail if one is missing; "off": use none.
Mode: TypeAlias = Literal["on", "enforce", "off"]

_LIBRARIES = ("/usr", "/lib", "/lib64", "/lib32", "/opt/intel", "/opt/nvidia", "/opt/cuda", "/opt/rocm", "/nix/store")
_DESCRIPTIONS = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload"),
    *("/etc/localtime", "/etc/timezone", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/os-release"),
    *("/etc/alternatives", "/etc/OpenCL", "/etc/vulkan", "/etc/glvnd", "/etc/nv_tegra_release", "/etc/tegra"),
    *("/etc/nvidia", "/etc/debian_version", "/etc/mime.types"),
    *("/sys", "/proc/self", "/proc/sys", "/proc/driver", "/proc/device-tree"),
    *(f"/proc/{name}" for name in ("cpuinfo", "meminfo", "stat", "loadavg", "vmstat", "version", "filesystems")),
    *(f"/proc/{name}" for name in ("devices", "modules", "interrupts", "cmdline", "uptime", "zoneinfo")),
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
# Devices of NVIDIA GPUs (PCs and Jetsons), Intel and AMD GPUs, and NPUs; patterns below /dev.
_ACCELERATORS = (
    *("nvidia*", "nvhost*", "nvgpu*", "nvmap", "nvsciipc", "nvsciipc*", "tegra*", "host1x*"),
    *("dri", "accel", "dma_heap", "kfd"),
)
# Files for resolving host names and checking servers' certificates.
_NETWORK = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/run/systemd/resolve", "/run/resolvconf"),
)
CAMERAS = ("video*", "media*", "v4l*", "i2c-*")  # devices of cameras, below /dev
# Environment variables that name folders of libraries or of CUDA, and files that processes load or read.
_FOLDERS_BY_VARIABLE = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TENSORRT_LIBRARY_PATH", "OCL_ICD_VENDORS")
_FILES_BY_VARIABLE = ("LD_PRELOAD", "SSL_CERT_FILE")


class Reach(NamedTuple):
    """The files that a process may use for its job. `reads` and `writes` are files or folders; they need not exist."""

    mode: Mode = "on"
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    scratch: str = ""  # the folder for temporary files; it is also in `writes`
    network: bool = False  # whether it may use TCP, and read the files for host names and certificates
    devices: tuple[str, ...] = ()  # devices of cameras, below /dev

    def argument(self) -> str:
        """Encode the reach as one argument of a command."""
        return json.dumps(self)

    @classmethod
    def parsed(cls, argument: str) -> Reach:
        mode, reads, writes, scratch, network, devices = json.loads(argument)
        return cls(mode, tuple(reads), tuple(writes), scratch, network, tuple(devices))


def allowed(reach: Reach) -> Iterator[tuple[str, int]]:
    """Yield every path that the process may use, and the Landlock rights on it. The list includes the folders of
    this interpreter, and the paths that environment variables name."""
    for path in (*_LIBRARIES, *_DESCRIPTIONS, *_interpreter(), *_by_environment()):
        yield path, READ
    for name in _DEVICES:
        yield f"/dev/{name}", USE
    for pattern in _ACCELERATORS:
        for path in glob.glob(f"/dev/{pattern}"):
            yield path, USE
    yield from _for_job(reach)


def inodes(reach: Reach) -> frozenset[tuple[int, int]]:
    """Return (st_dev, st_ino) of each file, folder and device of the job, if it exists now. A confined process cannot
    use a path of its job that is created or replaced later, since Landlock's rules are for inodes. Return an empty set
    if Landlock is off or missing."""
    found = set[tuple[int, int]]()
    if reach.mode == "off" or not landlock.version():
        return frozenset()
    for path, _ in _for_job(reach):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def _for_job(reach: Reach) -> Iterator[tuple[str, int]]:
    """Yield the paths that the process may use only because of its job, and the Landlock rights on each path."""
    for path in (*reach.reads, *(_NETWORK if reach.network else ())):
        yield path, READ
    for pattern in reach.devices:
        for path in glob.glob(f"/dev/{pattern}"):
            yield path, USE
    for path in reach.writes:
        yield path, WRITE


def _interpreter() -> Iterator[str]:
    """Yield the folders of this interpreter and of the modules that it imports."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sys.path}
    paths.add(os.path.dirname(os.path.realpath(sys.executable)))
    paths.add(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    for path in paths:
        # A child starts in "/", which Python puts first on the path; no modules are there.
        if path and os.path.isabs(path) and os.path.normpath(path) != "/":
            yield path


def _by_environment() -> Iterator[str]:
    for name in _FOLDERS_BY_VARIABLE:
        yield from _absolute(os.environ.get(name, "").split(":"))
    for name in _FILES_BY_VARIABLE:
        yield from _absolute(os.environ.get(name, "").replace(":", " ").split())
    for file in ("/etc/ld.so.conf", *sorted(glob.glob("/etc/ld.so.conf.d/*.conf"))):
        try:
            with open(file, encoding="utf-8", errors="replace") as lines:
                yield from _absolute([line.strip() for line in lines])
        except OSError:
            continue


def _absolute(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if os.path.isabs(path) and os.path.normpath(path) != "/":
            yield path


_MOST_FILES = 4096
_mode: Mode = "on"
_private: tuple[str, ...] = ()


def use(mode: Mode, private: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Set the mode. `private` are folders and files, such as secrets, that no child may use even if a model is in the
    same folder."""
    global _mode, _private
    _mode, _private = mode, tuple(os.path.realpath(path) for path in private)


def mode() -> Mode:
    return _mode


def reach(
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    scratch: str = "",
    *,
    network: bool = False,
    devices: Iterable[str] = (),
) -> Reach:
    """Return the reach of a job that uses these files and folders, in the current mode. `scratch` is the folder for
    temporary files."""
    written = (*writes, scratch) if scratch else writes
    return Reach(_mode, tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(written)), scratch, network, tuple(devices))


def around(model: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the folder of a model's file, which also contains its external data. If the file is a link, also return
    the folder of the link's target.

    For a folder that contains more than models, such as a home, return only its files that are not hidden.
    """
    found: dict[str, None] = {}
    for path in {os.path.abspath(model), os.path.realpath(model)}:
        folder = os.path.dirname(path)
        if is_private(folder):
            found |= dict.fromkeys((path, *_files(folder)))
        else:
            found[folder] = None
    return tuple(found)


def is_private(folder: str) -> bool:
    """Whether a child must not use a whole folder, because the folder is a home, or is or contains one of the folders
    in `homes` or a private file."""
    inside = os.path.join(os.path.realpath(folder), "")
    if os.path.dirname(inside.rstrip("/")) == "/home":
        return True
    homes = (os.path.expanduser("~"), "/tmp", "/root", "/home", "/etc", "/var", "/dev/shm")  # noqa: S108 - kept out
    return any(os.path.join(path, "").startswith(inside) for path in (*_private, *homes))


def _files(folder: str) -> list[str]:
    found: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                    found.append(entry.path)
                if len(found) == _MOST_FILES:
                    break
    except OSError:
        return []
    return [path for path in found if not any(Path(path).is_relative_to(each) for each in _private)]
