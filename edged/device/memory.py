"""How much memory the box has, and how much of it can be had (format: proc_meminfo(5))."""

from __future__ import annotations

import re

import msgspec

from edged.device.root import Root

_LINE = re.compile(r"^(MemTotal|MemAvailable):\s*([0-9]{1,15}) kB$", re.MULTILINE)


class Memory(msgspec.Struct, frozen=True):
    """Bytes; 0 where the box does not tell. `free` is what can be had without swapping."""

    total: int = 0
    free: int = 0


def read(root: Root) -> Memory:
    """As it is now."""
    found = {name: int(number) << 10 for name, number in _LINE.findall(root.read("proc/meminfo") or "")}
    return Memory(found.get("MemTotal", 0), found.get("MemAvailable", 0))
