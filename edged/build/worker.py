"""The one-shot child: reads one job from standard input, does it, writes the answer to standard output, ends.

Runtimes print what they like; so the real standard output is kept aside for the answer alone, and file descriptor 1
is pointed at standard error before any runtime is imported.
"""

from __future__ import annotations

import os
import sys

import msgspec

from edged import errors, process
from edged.build import jobs
from edged.build.tasks import do


def main() -> int:
    """`python -m edged.build.worker PARENT_PID MEMORY_MB`, the job on standard input.

    Exit status 0 with an answer on standard output, 3 with a Failure there; anything else is a crash."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    parent, memory_mb = (int(word) for word in sys.argv[1:])
    if not process.die_with_parent(parent):
        return 1
    process.restrain(memory_mb)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=jobs.Job)
    try:
        result, status = do(job, lambda progress: None), 0
    except errors.EdgedError as error:
        result, status = jobs.Failure(type(error).__name__, str(error)), 3
    except MemoryError:
        result, status = jobs.Failure("BuildFailed", "the child ran out of its memory limit; raise build.memory_mb"), 3
    answer.write(msgspec.json.encode(result))
    answer.flush()
    return status


if __name__ == "__main__":
    # Runtimes may crash or hang while their libraries unload; the answer is out, so nothing is lost by leaving now.
    status = main()
    sys.stderr.flush()
    os._exit(status)
