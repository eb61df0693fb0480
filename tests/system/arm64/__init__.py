"""The tests as aarch64 programs on a machine of another kind, and a check that every dependency has an aarch64 wheel.

`python -m tests.system.arm64 test` (`make test-arm64`) and `... resolve` (`make resolve-arm64`).
"""

from __future__ import annotations


class Unavailable(Exception):
    """This machine cannot run it; the message is one line that says what to install or to set."""
