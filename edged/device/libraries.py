"""Versions in the file names of shared libraries: `libnvinfer.so.10.3.0`, or what `libcuda.so.1` leads to."""

from __future__ import annotations

import re
from collections.abc import Iterable

from edged.device.root import Root

# Where the loader looks on the systems this runs on: Debian and Ubuntu, Fedora, containers with a mounted
# driver, WSL. i386-linux-gnu is left out on purpose: a game's old libraries say nothing about this process.
DIRECTORIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/local/nvidia/lib64",
    "usr/lib/wsl/lib",
)
_MARK = re.compile(rb"\0tensorrt_version_(\d{1,4})_(\d{1,4})_(\d{1,4})_(\d{1,4})\0")
_SYMBOLS = 8 << 20  # bytes
_VERSION = re.compile(r"\.so\.([0-9]{1,9}(?:\.[0-9]{1,9}){1,4})$")


def system_version(root: Root, name: str) -> str | None:
    """The version of a library in the system's directories; `name` is a pattern such as `libcuda.so.1`."""
    return newest(root, (f"{directory}/{name}" for directory in DIRECTORIES))


def newest(root: Root, patterns: Iterable[str]) -> str | None:
    """The highest version among the matches of the first pattern that has any, links followed."""
    for pattern in patterns:
        names = (root.real_name(path) or "" for path in root.glob(pattern))
        versions = [match[1] for match in map(_VERSION.search, names) if match]
        if versions:
            return max(versions, key=as_numbers)
    return None


def marked_version(root: Root, path: str) -> str | None:
    """The four-part version that TensorRT's libraries carry as a symbol, `tensorrt_version_10_3_0_30`; None without."""
    # Names of symbols are among the first things in a library; the rest of it is hundreds of megabytes of kernels.
    match = _MARK.search(root.head(path, _SYMBOLS))
    return ".".join(number.decode() for number in match.groups()) if match else None


def as_numbers(version: str) -> tuple[int, ...]:
    """`"10.3.0"` -> `(10, 3, 0)`, so that 10 comes after 9."""
    return tuple(int(part) for part in re.findall(r"[0-9]{1,9}", version))
