"""The tests as aarch64 programs on a machine of another kind, and whether every dependency has a wheel there.

`python -m tests.system.arm64 test` (`make test-arm64`) and `... resolve` (`make resolve-arm64`).
"""

from __future__ import annotations


class Unavailable(Exception):
    """This machine cannot do it; one line that says what to install or to set."""
