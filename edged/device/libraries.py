"""Versions of installed libraries, from file names (`libnvinfer.so.10.3.0`, or the target of `libcuda.so.1`) and from
Debian packages (`/var/lib/dpkg/status`, format: deb-control(5))."""

from __future__ import annotations

import re
from collections.abc import Iterable

from edged.device.root import Root

# Directories of the loader on Debian and Ubuntu, Fedora, in containers with a mounted driver, and on WSL.
# i386-linux-gnu is not among them, because this process does not load 32-bit libraries.
DIRECTORIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/local/nvidia/lib64",
    "usr/lib/wsl/lib",
)
_MARK = re.compile(rb"\0tensorrt_version_(\d{1,4})_(\d{1,4})_(\d{1,4})_(\d{1,4})\0")
_SYMBOLS = 8 << 20  # bytes
_SO_VERSION = re.compile(r"\.so\.([0-9]{1,9}(?:\.[0-9]{1,9}){1,4})$")


def system_version(root: Root, name: str) -> str | None:
    """Return the version of a library in the system's directories; `name` is a pattern such as `libcuda.so.1`."""
    return newest(root, (f"{directory}/{name}" for directory in DIRECTORIES))


def newest(root: Root, patterns: Iterable[str]) -> str | None:
    """Return the highest version in the names of files. Patterns are tried in order; the first pattern whose files have
    a version is used. If a file is a link, the name of its target counts."""
    for pattern in patterns:
        names = (root.real_name(path) or "" for path in root.glob(pattern))
        versions = [match[1] for match in map(_SO_VERSION.search, names) if match]
        if versions:
            return max(versions, key=as_numbers)
    return None


def marked_version(root: Root, path: str) -> str | None:
    """Return the four-part version from the symbol `tensorrt_version_10_3_0_30` of a TensorRT library; None if it has
    no such symbol."""
    # Symbol names are near the start of a library; the rest is hundreds of megabytes of kernels.
    match = _MARK.search(root.head(path, _SYMBOLS))
    return ".".join(number.decode() for number in match.groups()) if match else None


def as_numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers, so that 10 sorts after 9: `(10, 3, 0)` for `"10.3.0"`."""
    return tuple(int(part) for part in re.findall(r"[0-9]{1,9}", version))


STATUS = "var/lib/dpkg/status"
_STATUS_LIMIT = 32 << 20  # bytes; the file of a desktop has a few MB


def package_versions(root: Root, names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages among `names`, by package, as dpkg writes them:
    `10.3.0.30-1+cuda12.5`."""
    text = root.read(STATUS, _STATUS_LIMIT) or ""
    found = {}
    for name in names:
        # Searching for the name is faster than parsing thousands of paragraphs about other packages.
        for match in re.finditer(rf"^Package: {re.escape(name)}$", text, re.MULTILINE):
            end = text.find("\n\n", match.end())
            version = _installed_version(text[match.end() : end if end >= 0 else len(text)])
            if version:
                found[name] = version
    return found


def upstream(version: str) -> str:
    """Return a version without Debian's epoch and revision: `1.3.29735` for `2:1.3.29735-1~22.04`."""
    without_epoch = version.partition(":")[2] or version
    return without_epoch.rpartition("-")[0] or without_epoch


def _installed_version(paragraph: str) -> str | None:
    fields = dict(re.findall(r"^(Status|Version): (\S.*)$", paragraph, re.MULTILINE))
    # A package that was removed but not purged keeps its paragraph.
    return fields.get("Version") if fields.get("Status", "").endswith(" installed") else None
