"""The daemon under the soak test, with its own folders, sockets and temporary files."""

from __future__ import annotations

import os
from pathlib import Path

from edged.shapes import MODEL_PATH
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.soak.figures import Figures
from tests.waiting import is_running

STEADY, DETECTOR, COMING, DROPPED = "steady", "shapes", "coming", "dropped"
"""Models: one whose answers are checked all the time, the embedded detector, and two that are added and removed."""

_CALM_SECONDS = 60.0


class Box(Daemon):
    """A daemon with the detector and a model that multiplies by three. `configure` writes its configuration."""

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
        """Replace the configuration file atomically, as editors do."""
        new = self.config.with_suffix(".new")
        new.write_text("\n".join((f'metrics.listen = "unix:{self.metrics}"', *more, "")))
        new.replace(self.config)

    def figures(self) -> Figures:
        """Read the figures, again if a process ends meanwhile."""

        def settled() -> Figures | None:
            try:
                return Figures.of(self.pid, self.state, self.cache, self.temporary)
            except OSError:  # a process ended while its figures were read
                return None

        found = wait_for("figures can be read", settled, _CALM_SECONDS)
        assert found is not None
        return found

    def calm(self) -> None:
        """Wait until no camera is connected, no build runs, and every model is served. Then evict the engines of
        removed models, which the daemon itself does only if it needs the space."""
        with self.client() as client:

            def is_calm() -> bool:
                status = client.status()
                connected = sum(camera.connections for camera in client.cameras())
                return not (status.building or connected) and status.serving == status.models

            wait_for("the daemon is calm", is_calm, _CALM_SECONDS)
            client.evict(everything=True)

    def victims(self, kind: str) -> list[int]:
        """Return the child processes that may be killed: of kind `host`, or `worker` for builds."""
        module = {"host": "edged.host.main", "worker": "edged.jobs.server"}[kind]
        return [pid for pid, line in self.children().items() if module in line]

    def at(self, name: str) -> Path:
        """Return the path of a client's file, next to the daemon's own files."""
        return self.home / name
