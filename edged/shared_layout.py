"""The layout of the ring in shared memory that a client writes and the daemon reads.

A segment is a regular file /dev/shm/edged-PID-RANDOM. The daemon reads only files with this prefix, so that a client
cannot make it read other programs' shared memory. A segment has slots, one after the other:

    offset + 0    uint64 in native order: the stamp of the picture in the slot, 0 while it is written
    offset + 64   the picture's bytes

The client sets the stamp to 0, writes the picture, and then writes the picture's stamp. No stamp is used twice. The
client sends the stamp to the daemon in the message about the picture. The daemon reads the stamp, the picture, and the
stamp again. The picture is complete if both reads return the stamp from the message. The daemon never writes, so a
client that dies leaves no state to release.

Both ends use pwrite(2) and pread(2), not mapped memory. If a segment is truncated meanwhile, a read then returns fewer
bytes instead of causing a fatal signal. The order of writes also holds on ARM: each pwrite takes and releases the
file's lock, and each pread counts references of the page with operations that are full barriers.
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
    """Return the number of bytes from the start of one slot to the start of the next, for pictures of up to `picture`
    bytes."""
    return -(-(HEADER + picture) // ALIGNED) * ALIGNED
