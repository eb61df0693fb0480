"""The daemon that is soaked, with folders, sockets and temporary files of its own."""

from __future__ import annotations

import os
from pathlib import Path

from edged.shapes import MODEL_PATH
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.soak.figures import Figures
from tests.waiting import is_running

STEADY, DETECTOR, COMING, DROPPED = "steady", "shapes", "coming", "dropped"
"""Models: one that is asked for the truth all the time, the embedded detector, two that come and go."""

_CALM_SECONDS = 60.0


class Box(Daemon):
    """Serves the detector and a model that multiplies by three; `configure` writes its configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = self.home / "tmp"
        self.temporary.mkdir()
        self._environment = {**os.environ, "TMPDIR": str(self.temporary)}
        self.config = self.home / "edged.toml"
        self.metrics = self.home / "metrics.sock"
        self._arguments = ("--config", str(self.config))
        self.configure()
        onnx_files.scale(self.models / f"{STEADY}.onnx", 3.0)
        (self.models / f"{DETECTOR}.onnx").write_bytes(MODEL_PATH.read_bytes())

    def lives(self) -> bool:
        return is_running(self.pid)

    def configure(self, *more: str) -> None:
        """At once, as editors do."""
        new = self.config.with_suffix(".new")
        new.write_text("\n".join((f'metrics.listen = "unix:{self.metrics}"', *more, "")))
        new.replace(self.config)

    def figures(self) -> Figures:
        """Once nothing of its family comes or goes."""

        def settled() -> Figures | None:
            try:
                return Figures.of(self.pid, self.state, self.cache, self.temporary)
            except OSError:  # a process ended while it was looked at
                return None

        found = wait_for("figures can be read", settled, _CALM_SECONDS)
        assert found is not None
        return found

    def calm(self) -> None:
        """Waits until every camera has gone, all is made that is to be made, and every model answers. Then the engines
        of models that have gone are evicted, which the daemon does by itself only for want of room."""
        with self.client() as client:

            def is_calm() -> bool:
                status = client.status()
                connected = sum(camera.connections for camera in client.cameras())
                return not (status.building or connected) and status.serving == status.models

            wait_for("the daemon is calm", is_calm, _CALM_SECONDS)
            client.evict(everything=True)

    def victims(self, kind: str) -> list[int]:
        """Processes of its own that may be killed: `host`, or `worker` for those that build."""
        module = {"host": "edged.host.main", "worker": "edged.jobs.main"}[kind]
        return [pid for pid, line in self.children().items() if module in line]

    def at(self, name: str) -> Path:
        """A file for clients, beside the daemon's own."""
        return self.home / name
