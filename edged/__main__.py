"""`python -m edged` and the `edged` command."""

from __future__ import annotations

import os

# The daemon starts children by exec, never by a bare fork: gRPC's fork handlers would only complain about it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# edged reports errors in its own words; gRPC would print its messages as well.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# Threads of NumPy's OpenBLAS spin after they were created and after each product, by default for 2**26 cycles: 40 ms of
# a processor in each host and child. 2**4 is the least; it changes no result.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

from edged.cli.app import app


def main() -> None:
    """Runs the command line; its exit status is the process's."""
    app()


if __name__ == "__main__":
    main()
