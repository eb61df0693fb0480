"""What a daemon and its family take of the box."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from edged.shared_layout import FOLDER
from tests.fuzz import tally
from tests.integration.daemon import children

_SEGMENTS = "edged"  # how names of shared memory begin, the daemon's and those of its clients


class Figures(msgspec.Struct, frozen=True):
    """At one moment: of the daemon, of whichever of the engine hosts takes most, how many hosts there are, and what
    lies in shared memory and in the daemon's own folders. Memory is resident, in MiB."""

    daemon_mb: int
    daemon_fds: int
    daemon_threads: int
    hosts: int
    host_mb: int
    host_fds: int
    host_threads: int
    segments: int
    files: int

    @classmethod
    def of(cls, daemon: int, *folders: Path) -> Figures:
        """Now. FileNotFoundError or ProcessLookupError where one of the processes has just ended."""
        own, hosts = tally.Figures.of(daemon), [tally.Figures.of(pid) for pid in descendants(daemon)]
        return cls(
            daemon_mb=own.resident,
            daemon_fds=own.descriptors,
            daemon_threads=own.threads,
            hosts=len(hosts),
            host_mb=max((each.resident for each in hosts), default=0),
            host_fds=max((each.descriptors for each in hosts), default=0),
            host_threads=max((each.threads for each in hosts), default=0),
            segments=sum(1 for entry in os.scandir(FOLDER) if entry.name.startswith(_SEGMENTS)),
            files=sum(len(files) for folder in folders for _, _, files in os.walk(folder)),
        )


def descendants(pid: int) -> list[int]:
    """Every process below one."""
    found = list(children(pid))
    for child in tuple(found):
        found += descendants(child)
    return found
