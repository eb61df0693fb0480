"""Runs a process for each enabled camera, starts the process again if it ends, and keeps its last report."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from edged.cameras.camera_run import CameraRun, RunLimits
from edged.cameras.definitions import Definition, Definitions
from edged.config.camera_settings import camera_of
from edged.config.cameras import Camera
from edged.engines.alarms import Alarm, AlarmKind
from edged.errors import InvalidInput, NotReady
from edged.events import EventLog
from edged.ipc.capture_messages import Picture, Report, State
from edged.tasks import despite_cancelling

# Keys that name files or addresses of the box: they can be set only in the configuration, by the box's owner.
_OWNERS = ("events.folder", "sinks.lines", "sinks.mqtt_password_file", "sinks.zmq", "sinks.preview")


# Opens an address for the cameras' processes and returns it.
Listen: TypeAlias = Callable[[], Awaitable[str]]


class CameraStatus(NamedTuple):
    """A camera with its process's last report."""

    definition: Definition
    report: Report


class CameraSupervisor:
    """Starts and stops the cameras' processes. Use it from one event loop."""

    def __init__(
        self, definitions: Definitions, events: EventLog, folder: Path, limits: RunLimits | None = None
    ) -> None:
        """`folder` is for the snapshots and clips of the cameras that have no folder in their settings."""
        self._definitions, self._events, self._folder = definitions, events, folder
        self._limits = limits or RunLimits()
        self._runs: dict[str, CameraRun] = {}
        self._listen: Listen | None = None
        self._target = ""  # the daemon's address for the processes
        self._changing = asyncio.Lock()

    async def start(self, listen: Listen) -> None:
        """Start the processes. Before the first process starts, `listen` opens the daemon's address for the
        processes."""
        self._listen = listen
        await self._change()

    async def stop(self) -> None:
        """End all processes. Clips are completed if this takes at most a few seconds."""
        self._listen = None
        await self._change()

    async def reconfigure(self, configured: Mapping[str, Camera]) -> None:
        """Replace the cameras of the configuration; unchanged cameras continue."""
        await self._change(lambda: self._definitions.configure(configured))

    async def add(self, name: str, settings: Mapping[str, str]) -> None:
        """Add a camera. Raises AlreadyExists or InvalidInput. Raises OutOfSpace or a similar error if the camera cannot
        be stored."""
        camera = _camera_of(name, settings)
        await self._change(lambda: self._definitions.add(name, camera))

    async def change(self, name: str, settings: Mapping[str, str]) -> None:
        """Change settings of an added camera; its process starts again. Raises NotFound or InvalidInput. Raises
        OutOfSpace or a similar error if the camera cannot be stored."""

        def replace() -> None:
            self._definitions.replace(name, _camera_of(name, settings, self._definitions.find(name).camera))

        await self._change(replace)

    async def remove(self, name: str) -> None:
        """Remove an added camera. Raises NotFound, InvalidInput or Refused."""
        await self._change(lambda: self._definitions.remove(name))

    def status(self) -> dict[str, CameraStatus]:
        """Return a mapping from the name of each camera to its status."""
        return {
            name: CameraStatus(definition, self._report(name, definition))
            for name, definition in self._definitions.all().items()
        }

    def find(self, name: str) -> CameraStatus:
        """Return one camera. Raises NotFound."""
        definition = self._definitions.find(name)
        return CameraStatus(definition, self._report(name, definition))

    async def pictures(self, name: str, fps: float, width: int) -> AsyncGenerator[Picture, None]:
        """Yield the newest annotated pictures. Request up to `fps` pictures a second, each up to `width` pixels wide
        (0: the full width). All viewers of a camera get the highest rate and the largest width that any viewer
        requests, so a viewer may get more than it requested.

        Ends if the camera is changed or removed. Raises NotFound, or NotReady if the camera does not run.
        """
        self._definitions.find(name)
        run = self._runs.get(name)
        if run is None:
            raise NotReady(f"camera {name!r} is not enabled; run: edged cameras enable {name}")
        async with contextlib.aclosing(run.pictures(fps, width)) as pictures:
            async for picture in pictures:
                yield picture

    def describe(self, name: str, rule: str, text: str) -> None:
        """Send a description of what a camera sees to the outputs of this camera. Do nothing if the daemon does not run
        the camera."""
        if (run := self._runs.get(name)) is not None:
            run.describe(rule, text)

    def alarms(self) -> Iterator[Alarm]:
        """Yield the current alarms of all cameras."""
        for name, run in self._runs.items():
            yield from camera_alarms(name, run.camera, run.report)

    def _report(self, name: str, definition: Definition) -> Report:
        run = self._runs.get(name)
        if run is not None:
            return run.report
        return Report(State.STARTING if definition.camera.enabled and self._listen else State.OFF)

    async def _change(self, edit: Callable[[], None] | None = None) -> None:
        """Edit the definitions in a thread, then start and stop processes. If the client disconnects meanwhile, this
        task is cancelled, but the change still completes. An incomplete change could leave a camera without a
        process."""

        async def work() -> None:
            async with self._changing:
                if edit is not None:
                    await asyncio.to_thread(edit)
                await self._apply()

        await despite_cancelling(work())

    async def _apply(self) -> None:
        """Start and stop processes so that they match the definitions."""
        known = self._definitions.all()
        wanted = {name: each.camera for name, each in known.items() if each.camera.enabled}
        wanted = wanted if self._listen else {}
        if wanted and not self._target and self._listen:
            self._target = await self._listen()
        ended = [name for name, run in self._runs.items() if wanted.get(name) != run.camera]
        await asyncio.gather(*(self._runs.pop(name).stop(is_removed=name not in known) for name in ended))
        for name, camera in wanted.items():
            if name not in self._runs:
                self._runs[name] = CameraRun(
                    name, camera, self._target, self._folder / name, self._events, self._limits
                )


def camera_alarms(name: str, camera: Camera, report: Report) -> Iterator[Alarm]:
    """Yield the current alarms of one camera. Pure."""
    why = f": {report.error}" if report.error else ""
    if report.state in (State.LOST, State.FAILED):
        message = f"camera {name} gives no frames{why}; see: edged cameras show {name}"
        yield Alarm(AlarmKind.CAMERA_LOST, message, camera.model, camera=name)
        return
    if camera.dark_seconds and report.dark_s >= camera.dark_seconds:
        message = f"the picture of camera {name} has been black for {report.dark_s:.0f} s; is its lens covered?"
        yield Alarm(AlarmKind.CAMERA_DARK, message, camera.model, camera=name)
    elif camera.frozen_seconds and report.frozen_s >= camera.frozen_seconds:
        message = f"the picture of camera {name} has not changed for {report.frozen_s:.0f} s; restart the camera"
        yield Alarm(AlarmKind.CAMERA_FROZEN, message, camera.model, camera=name)


def _camera_of(name: str, settings: Mapping[str, str], base: Camera | None = None) -> Camera:
    """Return a camera with the settings of a command. Raises InvalidInput for an invalid setting, and for one that can
    be set only in the daemon's configuration, by the owner of the box."""
    for key, text in settings.items():
        if text and key in _OWNERS:
            raise InvalidInput(
                f"{key!r} names a folder, file or address of the box, so only the daemon's configuration can set it"
            )
    camera = camera_of(name, settings, base)
    if "source" in settings and camera.source.startswith("gst:"):  # the text of the setting may have quotes
        raise InvalidInput("a gst: pipeline can run any program, so only the daemon's configuration can set it")
    return camera
