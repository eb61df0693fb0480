"""The resources of a daemon and its child processes."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from edged.shared_layout import FOLDER
from tests.fuzz import tally
from tests.integration.daemon import children

_SEGMENTS = "edged"  # prefix of shared memory of the daemon and its clients
_OF_HOST = 4  # descriptors that the daemon has for each host, of which there may be one more


class Figures(msgspec.Struct, frozen=True):
    """The resources at one moment: of the daemon, the highest of any engine host, the number of hosts, and the objects
    in shared memory and files in the daemon's folders. Memory is resident, in MiB."""

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
        """Read the present figures. FileNotFoundError or ProcessLookupError if a process has just ended."""
        own, hosts = tally.Figures.of(daemon), [tally.Figures.of(pid) for pid in descendants(daemon)]
        return cls(
            daemon_mb=own.resident,
            daemon_fds=own.descriptors - _OF_HOST * len(hosts),
            daemon_threads=own.threads,
            hosts=len(hosts),
            host_mb=max((each.resident for each in hosts), default=0),
            host_fds=max((each.descriptors for each in hosts), default=0),
            host_threads=max((each.threads for each in hosts), default=0),
            segments=sum(1 for entry in os.scandir(FOLDER) if entry.name.startswith(_SEGMENTS)),
            files=sum(len(files) for folder in folders for _, _, files in os.walk(folder)),
        )


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process."""
    found = list(children(pid))
    for child in tuple(found):
        found += descendants(child)
    return found
