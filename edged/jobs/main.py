"""The one-shot child process, which reads a job from standard input, runs the job, reports to the daemon, and ends.
The job server (`edged.jobs.server`) forks this process.

Runtimes print to standard output. So the channel to the daemon is a duplicate of standard output, and file descriptor 1
is redirected to standard error before a runtime is imported.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from edged import process
from edged.confinement import confine
from edged.confinement.rules import Reach

if TYPE_CHECKING:
    from edged.ipc import job_messages as jobs


_ANSWERED, _FAILED = 0, 3
_LINGER_SECONDS = 10.0  # after the last message; a daemon that still runs kills this process much earlier


def main(arguments: Sequence[str]) -> int:
    """Run the job on standard input. The arguments are SERVER_PID MEMORY_MB DISK_MB NICENESS REACH.

    Returns 0 after an answer on the channel, 3 after a failure message. Any other exit status counts as a crash."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.enable()  # a crash leaves a traceback in the daemon's log
    *numbers, reach = arguments
    server, memory_mb, disk_mb, niceness = map(int, numbers)
    if not process.die_with_parent(server):
        return 1
    process.restrain(memory_mb, disk_mb, niceness)
    confine.everything(Reach.parsed(reach))
    return _work(channel, disk_mb)


def run(arguments: Sequence[str]) -> NoReturn:
    """Run `main` with these arguments, then exit. After an answer or a failure message, wait 10 s before the exit, so
    that the daemon kills this process. The daemon finds the children of this process only while this process lives.

    Libraries are not unloaded, because runtimes may crash or hang while they are unloaded.
    """
    status = 1
    try:
        status = main(arguments)
        if status in (_ANSWERED, _FAILED):
            time.sleep(_LINGER_SECONDS)
    except BaseException:
        traceback.print_exc()  # the daemon reports the last line of this
    finally:
        sys.stderr.flush()
        os._exit(status)


def _work(pipe: BinaryIO, disk_mb: int) -> int:
    # The job server has imported these modules, which start no threads. Libraries that start threads at import must be
    # imported after the limits are set, because a thread keeps the limits with which it started.
    import msgspec

    from edged import family_packages
    from edged.decoding import ready
    from edged.errors import EdgedError
    from edged.ipc import job_messages as jobs
    from edged.ipc.job_channel import JobReporter
    from edged.jobs import tasks

    family_packages.permit()
    reporter = JobReporter(pipe)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=ready(jobs.Job))
    try:
        answer = tasks.do(job, reporter)
        if _was_cut_off(job, disk_mb):
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if getattr(answer, "finding", None) is not None:
            tasks.require_disk(job)
        reporter.answer(answer)
        return _ANSWERED
    except MemoryError:
        reporter.fail(MemoryError.__name__, "")
    except Exception as error:
        if _is_too_large(error) or _was_cut_off(job, disk_mb):
            reporter.fail("BuildFailed", _explain_limit(job, disk_mb))
        elif (fault := tasks.find_disk_fault(job, error)) is not None:
            reporter.fail(type(fault).__name__, str(fault))
        elif isinstance(error, EdgedError):
            reporter.fail(type(error).__name__, str(error), getattr(error, "finding", None))
        else:
            raise
    return _FAILED


def _explain_limit(job: jobs.Job, disk_mb: int) -> str:
    """Return the message for a file that exceeds the limit. It names the settings of the limit, if there are any."""
    from edged.ipc import job_messages as jobs

    reason = f"the child process wrote a file larger than its limit of {disk_mb} MiB"
    if isinstance(job, jobs.Build):
        return f"{reason}; if build.disk_mb is {disk_mb}, raise it; otherwise free space or raise engines.budget_mb"
    if isinstance(job, jobs.MakeGolden | jobs.Verify):
        return f"{reason}; raise build.disk_mb"
    return reason


def _is_too_large(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is EFBIG, the kernel's error for a file that would exceed the limit."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return True
        error = error.__cause__ or error.__context__
    return False


def _was_cut_off(job: jobs.Job, disk_mb: int) -> bool:
    """Whether an output file has the largest allowed size. If a file reaches this size, some runtimes report an error
    other than EFBIG, or no error."""
    folder = Path(getattr(job, "out", ""))
    if not disk_mb or not folder.is_dir():
        return False
    return any(path.stat().st_size >= disk_mb << 20 for path in folder.rglob("*") if path.is_file())
