"""CUDA_VISIBLE_DEVICES: which NVIDIA GPUs an operator leaves to edged, and how `cuda:N` is the facts' N all the same.

/proc and NVML know nothing of the variable, and CUDA numbers what it leaves anew, from 0. So it takes GPUs out of the
facts, where the others keep their numbers; and a process that will use CUDA calls `number_all` before CUDA reads it.

As with CUDA, the first entry that means no GPU (such as -1) ends the list. Numbers count by PCI address, as everything
here does and `nvidia-smi` too; UUIDs may be shortened. A MIG device means no GPU here: there is no telling its facts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_KEPT = "EDGED_CUDA_VISIBLE_DEVICES"  # what it said, for facts that are read later, here and in children
_MEANS_GPU = re.compile(r"[0-9]+|(?i:GPU-[0-9a-f-]+)")


def number_all() -> None:
    """Before CUDA is initialised: it shall count all GPUs by PCI address, or see none where none is left to edged."""
    # CUDA's own order begins with the fastest device.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    said = os.environ.pop(_VARIABLE, None)
    if said is None:
        return
    os.environ[_KEPT] = said
    if not _entries(said):
        os.environ[_VARIABLE] = "-1"


def left(uuids: Mapping[str, str]) -> frozenset[str]:
    """Of PCI addresses with their UUIDs, empty where unknown, those of the GPUs that edged may use."""
    said = os.environ.get(_VARIABLE, os.environ.get(_KEPT))
    if said is None:
        return frozenset(uuids)
    addresses, found = sorted(uuids), set[str]()
    for entry in _entries(said):
        if entry.isdecimal():
            meant = addresses[int(entry) : int(entry) + 1]
        else:
            meant = [address for address, uuid in uuids.items() if uuid.lower().startswith(entry.lower())]
        if len(meant) != 1:
            break
        found.add(meant[0])
    return frozenset(found)


def _entries(said: str) -> list[str]:
    """Those before the first that cannot mean a GPU."""
    found = []
    for entry in map(str.strip, said.split(",")):
        if not _MEANS_GPU.fullmatch(entry):
            break
        found.append(entry)
    return found
