"""`python -m edged` and the `edged` command."""

from __future__ import annotations

import os
import sys

# Children start in "/", and Python may have been found through a relative folder in PATH.
if sys.executable:
    sys.executable = os.path.abspath(sys.executable)

# This process starts others by exec, so gRPC's fork handlers are not needed; they would only log warnings.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# edged reports errors itself; without this gRPC would print its own messages too.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# A thread of NumPy's OpenBLAS spins after its creation and after each matrix product, by default for 2**26 cycles. This
# costs each host and child process 40 ms of processor time. "4" means 2**4, the minimum; results do not change.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

from edged.cli.app import app


def main() -> None:
    """Run the command line; its exit status becomes the process's."""
    app()


if __name__ == "__main__":
    main()
