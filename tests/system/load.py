"""Constant load on a daemon: several cameras, and tritonclient in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.integration.daemon import Daemon
from tests.integration.test_engine_life import Cameras

_PEER = Path(__file__).with_name("triton_load.py")


class Load:
    """Runs while the `with` lasts; afterwards `failures` has every request without an answer."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.cameras = Cameras(daemon, 3)
        self.failures: list[object] = []
        self.asked = 0  # requests by tritonclient

    def __enter__(self) -> Load:
        command = [sys.executable, str(_PEER), self._daemon.tcp, "shapes"]
        self._peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._peer.stdout is not None
        assert self._peer.stdout.readline() == "asking\n"
        self.cameras.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.cameras.__exit__()
        out, _ = self._peer.communicate(input="", timeout=60)
        reported = json.loads(out)
        self.asked = reported["answered"]
        self.failures = [*self.cameras.errors, *reported["errors"]]
        unaccounted = [
            sent - answered - skipped
            for sent, answered, skipped in zip(
                self.cameras.sent, self.cameras.answered, self.cameras.skipped, strict=True
            )
        ]
        self.failures += [f"camera {i}: {n} frames without an answer" for i, n in enumerate(unaccounted) if n]
