"""Runs the process of one enabled camera. Restarts the process after a pause if it ends, and keeps its last report."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Set
from contextlib import aclosing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from edged import tasks
from edged.backoff import Backoff
from edged.config.cameras import Camera
from edged.confinement import rules
from edged.decoding import ready
from edged.errors import redact
from edged.events import CameraMoved, EventLog, ZoneChanged
from edged.ipc import capture_messages as m
from edged.ipc.piped_process import PipedProcess, ProtocolError

_LOG = logging.getLogger("edged.cameras")
_SETTLED = (m.State.STREAMING, m.State.LOST, m.State.FAILED)
_IN_TROUBLE = (m.State.CONNECTING, m.State.LOST, m.State.FAILED)


class RunLimits(msgspec.Struct, frozen=True):
    """Time limits of a camera's process in seconds, and the command that starts it. Tests use shorter limits."""

    start: float = 60.0  # longest time from the start to the first message
    silent: float = 30.0  # the longest time without a message
    stop: float = 5.0  # longest time to exit after the daemon asks it to stop
    proven: float = 60.0  # a process that ran for this time before it failed is started again after the first pause
    pauses: tuple[float, ...] = (1.0, 5.0, 10.0, 60.0)  # before each further start; the last one repeats
    command: tuple[str, ...] = (sys.executable, "-m", "edged.capture.main")


class CameraRun:
    """Runs a camera until the camera is changed, disabled or removed. `report` is the last report of its process."""

    def __init__(
        self, name: str, camera: Camera, target: str, folder: Path, events: EventLog, limits: RunLimits
    ) -> None:
        self.name, self.camera = name, camera
        self.report = m.Report(m.State.STARTING)
        self._begin = m.Begin(name, camera, target, camera.events.folder or str(folder))
        self._events, self._limits = events, limits
        self._process: PipedProcess[m.FromCapture] | None = None
        self._heard: float | None = None  # time of the last message; None before the first
        self._newest: m.Picture | None = None
        self._news = asyncio.Condition()
        self._watchers: list[m.Watch] = []
        self._ending = asyncio.Event()
        self._is_asked = False  # whether the process was asked to stop
        self._is_renewed = False  # whether `_renew` ended the last process, and the camera has given no frame since
        self._task = tasks.keep(f"camera {name}", self._run)

    async def stop(self, *, is_removed: bool = False) -> None:
        """Ask the process to stop, and kill it if it does not stop in time. A process that hangs in a driver cannot be
        killed, and continues to run. `is_removed`: the camera was removed."""
        self._ending.set()
        if self._process is not None:
            self._is_asked = True
            if is_removed:
                self._process.send(m.Removed())
            self._process.ask_to_stop()
            await asyncio.wait({self._task}, timeout=self._limits.stop)
        if self._process is not None:
            self._process.end()
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=self._limits.stop)
        async with self._news:
            self._news.notify_all()

    async def pictures(self, fps: float, width: int) -> AsyncGenerator[m.Picture, None]:
        """Yield the newest picture now and whenever a newer one arrives, until `stop` is called. Request up to `fps`
        pictures a second, each up to `width` pixels wide (0: the full width). The process uses the highest rate and the
        largest width that any viewer requests, so a viewer may get more than it requested."""
        watcher = m.Watch(fps, width)
        self._watchers.append(watcher)
        self._tell()
        try:
            async with self._news:
                picture = self._newest
            while not self._ending.is_set():
                if picture is not None:
                    yield picture
                picture = await self._after(picture)
        finally:
            self._watchers.remove(watcher)
            if not self._watchers:
                self._newest = None
            self._tell()

    async def _after(self, shown: m.Picture | None) -> m.Picture | None:
        """Wait until there is a newer picture than `shown`, or until `stop` is called. Return the newest picture; None
        if there is no picture."""
        async with self._news:
            await self._news.wait_for(lambda: self._newest is not shown or self._ending.is_set())
            return self._newest

    def describe(self, rule: str, text: str) -> None:
        """Send the process a description of the camera's picture. The description is lost if no process runs."""
        if self._process is not None:
            self._process.send(m.Description(rule, text, time.time()))

    def _tell(self) -> None:
        """Send the process the highest rate and width that viewers want."""
        if self._process is None:
            return
        fps = max((each.fps for each in self._watchers), default=0.0)
        widths = [each.width for each in self._watchers]
        width = 0 if 0 in widths else max(widths, default=0)  # 0: the picture's own width
        self._process.send(m.Watch(fps, width))

    async def _run(self) -> None:
        """Run one process after the other, until `stop`."""
        backoff = Backoff(self._limits.pauses, self._limits.proven)
        while not self._ending.is_set():
            began = time.monotonic()
            problem = await self._live()
            if self._ending.is_set():
                return
            pause = backoff.after(time.monotonic() - began)
            self._is_renewed = problem is None
            if problem is None:
                _LOG.info(
                    "camera %s: one of its files or devices has appeared; starting it again in %g s", self.name, pause
                )
                if self.report.state is m.State.STREAMING:
                    self._take(msgspec.structs.replace(self.report, state=m.State.CONNECTING))
            else:
                _LOG.warning("camera %s: %s; starting it again in %g s", self.name, problem, pause)
                self._take(msgspec.structs.replace(self.report, state=m.State.FAILED, error=problem))
            await asyncio.sleep(pause)

    async def _live(self) -> str | None:
        """Run one process from its start to its end; return why it ended, or None if `_renew` ended it."""
        if self.camera.events.snapshots or self.camera.events.clips:
            # The process may write only to folders that exist when it starts. The process reports an unusable folder.
            with contextlib.suppress(OSError):
                await asyncio.to_thread(os.makedirs, self._begin.folder, 0o750, exist_ok=True)
        reach = capture_reach(self._begin)
        known = await asyncio.to_thread(rules.inodes, reach)
        command = [*self._limits.command, str(os.getpid()), reach.argument()]
        decoder = msgspec.msgpack.Decoder(ready(m.FromCapture))
        try:
            child = await PipedProcess.start(command, "camera", decoder, m.LARGEST, camera=self.name)
        except OSError as error:
            return f"cannot start its process: {error.strerror or error}"
        self._process, self._heard = child, None
        watch = tasks.keep(f"watch of camera {self.name}", lambda: self._watch(child))
        renewal = tasks.keep(f"renewal of camera {self.name}", lambda: self._renew(child, reach, known))
        try:
            child.send(self._begin)
            self._tell()
            async with aclosing(child.messages()) as messages:
                async for message in messages:
                    self._heard = time.monotonic()
                    await self._receive(message)
        except ProtocolError as error:
            child.end(f"its process sent {error}")
        finally:
            watch.cancel()
            is_renewed = renewal.done()
            renewal.cancel()
            if not self._is_asked:
                child.end()
            status = await child.gone()
            self._process = None
        if is_renewed and not child.ended:
            return None
        return child.ended or self.report.error or f"its process ended with status {status}"

    async def _watch(self, child: PipedProcess[m.FromCapture]) -> None:
        """End the process if it sends no message for too long."""
        period, silence, then = self._limits.silent / 10, 0.0, time.monotonic()
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            # If this task slept much longer than `period`, the daemon was busy: do not count this against the camera.
            silence = silence + min(now - then, 4 * period) if self._heard is None or self._heard < then else 0.0
            limit = self._limits.start if self._heard is None else self._limits.silent
            then = now
            if silence > limit:
                child.end(f"its process sent no message for {limit:g} s")

    async def _renew(self, child: PipedProcess[m.FromCapture], reach: rules.Reach, known: Set[tuple[int, int]]) -> None:
        """Ask the process to stop if the camera or an output does not work, and a file or device has appeared since the
        process started. The process may use only files and devices that existed at its start. For example, a camera
        that was plugged in again needs a new process. A process that has read a file to its end is not asked to stop,
        so the file is not played again."""
        while True:
            await asyncio.sleep(self._limits.silent / 10)
            state = self.report.state
            is_in_trouble = state in _IN_TROUBLE or (state is m.State.STREAMING and self.report.sinks)
            if is_in_trouble and await asyncio.to_thread(rules.inodes, reach) - known:
                return child.ask_to_stop()

    async def _receive(self, message: m.FromCapture) -> None:
        if isinstance(message, m.Report):
            self._take(message)
        elif isinstance(message, m.Picture):
            if self._watchers:
                async with self._news:
                    self._newest = message
                    self._news.notify_all()
        elif message.kind in ("occupied", "free"):
            what = ZoneChanged(self.name, message.place, message.kind == "occupied", message.file)
            self._events.emit(what, self.camera.model)

    def _take(self, report: m.Report) -> None:
        """Store a report. If the camera starts or stops streaming, is lost, or fails, log this and emit an event. After
        a restart by `_renew`, a lost or failed camera keeps its state until it sends a frame."""
        before = self.report
        is_held = self._is_renewed and report.state is m.State.CONNECTING and not report.frames
        if is_held and before.state in (m.State.LOST, m.State.FAILED):
            report = msgspec.structs.replace(report, state=before.state, error=report.error or before.error)
        self._is_renewed = is_held
        self.report = report = msgspec.structs.replace(report, error=redact(report.error))
        if report.state is before.state or (report.state not in _SETTLED and before.state is not m.State.STREAMING):
            return
        level = logging.INFO if report.state is m.State.STREAMING else logging.WARNING
        _LOG.log(level, "camera %s is %s%s", self.name, report.state.value, f": {report.error}" * bool(report.error))
        self._events.emit(CameraMoved(self.name, report.state.value, report.error), self.camera.model)


def capture_reach(begin: m.Begin) -> rules.Reach:
    """Return the files, devices and network that the process of a camera may use. The process of a GStreamer pipeline
    may need any file, so it is not confined."""
    found = rules.reach(_reads(begin), _writes(begin), network=True, devices=rules.CAMERAS)
    return found._replace(mode="off") if begin.camera.source.startswith("gst:") else found


def _reads(begin: m.Begin) -> Iterator[str]:
    camera = begin.camera
    if "://" not in camera.source:
        yield os.path.abspath(camera.source)
        yield os.path.realpath(camera.source)
    if camera.sinks.mqtt_password_file:
        yield camera.sinks.mqtt_password_file
    with contextlib.suppress(ValueError):  # invalid address: the camera's process reports the error
        yield from parse_qs(urlsplit(camera.sinks.mqtt).query).get("ca", ())
    if begin.target.startswith("unix:"):
        yield os.path.dirname(begin.target.removeprefix("unix:"))


def _writes(begin: m.Begin) -> Iterator[str]:
    camera = begin.camera
    yield "/dev/shm"  # noqa: S108 - rings of frames for the daemon
    yield begin.folder
    if camera.sinks.lines:
        yield os.path.dirname(os.path.abspath(camera.sinks.lines))
    if camera.sinks.zmq.startswith("ipc://"):
        yield os.path.dirname(camera.sinks.zmq.removeprefix("ipc://"))
