"""Confines its own process for a framework, and then runs the user's Python in this process (exec).

`python -m edged.export.launcher PARENT_PID MEMORY_MB DISK_MB REACH COMMAND...`: if the kernel has Landlock and seccomp,
the process can use only the files of REACH and open no socket. So code in a checkpoint cannot reach the network, and
cannot write outside the scratch folder.
"""

from __future__ import annotations

import os
import sys

from edged import process
from edged.confinement import confine
from edged.confinement.rules import Reach


def main() -> None:
    """Run the command; the process keeps its id and its open files."""
    parent, memory_mb, disk_mb = map(int, sys.argv[1:4])
    if not process.die_with_parent(parent):
        sys.exit(1)
    process.restrain(memory_mb, disk_mb)
    reach = Reach.parsed(sys.argv[4])
    confine.confine_files(reach)
    confine.refuse_sockets(reach)
    os.execv(sys.argv[5], sys.argv[5:])  # noqa: S606 - the user's own Python


if __name__ == "__main__":
    main()
