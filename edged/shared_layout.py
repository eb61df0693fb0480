"""The ring in shared memory that a client fills and the daemon reads; the two share nothing but this page.

A segment is a regular file /dev/shm/edged-PID-RANDOM: only files of that prefix are ever read, so that nobody has the
daemon look into a program's memory that was never meant for it. It holds slots, one after the other:

    offset + 0    uint64 in native order: the stamp of the picture in the slot, 0 while it is written
    offset + 64   the picture's bytes

The client sets the stamp to 0, writes the picture, and then its stamp, which it never uses for another one. The daemon
reads the stamp, the picture, and the stamp again: where both are the announced one the bytes between are the picture.
The daemon never writes, so that a client that dies leaves nothing to be given back.

Both ends use pwrite(2) and pread(2), not memory that is mapped: a segment cut off meanwhile is then a short read rather
than a fatal signal, and the order of the writes holds on ARM too. Each pwrite takes and releases the file's lock, which
keeps them in order; each pread counts references of the page by operations that are full barriers.
"""

from __future__ import annotations

import struct
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - where shm_open(3) puts segments
PREFIX = "edged-"
HEADER = 64  # bytes before the picture: a cache line
STAMP = struct.Struct("=Q")
ALIGNED = 4096  # slots begin at a page


def slot_size(picture: int) -> int:
    """Bytes from one slot to the next for pictures of so many bytes."""
    return -(-(HEADER + picture) // ALIGNED) * ALIGNED
