"""Runs a demo: two runs of a daemon in a child process. The first run builds engines, the second finds them in the
store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edged.client import AsyncClient
from edged.client.result import Result
from edged.demo.cameras import DemoCamera, open_camera
from edged.demo.daemon_process import DaemonProcess, free_port, running
from edged.demo.life import Life, Story
from edged.demo.report import CameraCounts, FrameCounts, Outcome, make_report
from edged.demo.view import MAX_TILES, View, paint_snapshot
from edged.errors import EdgedError
from edged.shapes import MODEL_PATH, Prediction

_LONGEST_TMP = 50  # bytes; sockets are in the scratch folder, and Linux limits their paths to 107 bytes


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder for one demo."""
    place = tempfile.gettempdir()
    if len(os.fsencode(place)) > _LONGEST_TMP:
        place = "/tmp"  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="edged-demo-", dir=place, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _daemon(folder: Path, name: str, model: Path, page: str) -> DaemonProcess:
    """Start a daemon with one model and a page. The daemon uses the engines that are already in `folder`."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    address = f"unix:{folder / 'edged.sock'}"
    return DaemonProcess(
        address,
        [
            *("--model", f"{name}={model}", "--listen", address),
            *("--state", str(folder / "state"), "--cache", str(folder / "cache")),
        ],
        folder,
        # TMPDIR: temporary files of a killed daemon are removed with the scratch folder. XDG_CONFIG_HOME: the daemon
        # must not read the user's configuration.
        {**os.environ, "TMPDIR": str(temporary), "XDG_CONFIG_HOME": str(folder), "EDGED_PAGE_LISTEN": page},
    )


AFTER_RESTART_S = 4.0  # seconds of streaming in the second run
# How much longer than requested a demo waits for engines on a busy box.
_PATIENCE_S = 180.0
_DRAIN_S = 120.0
_CALL_S = 180.0  # the first answer may wait until a large model is read and opened
_LOOK_S = 0.25
_HOPELESS = 20  # if so many frames fail before the first answer, the demo ends


@dataclass(frozen=True)
class Plan:
    """The options of a demo. `seconds` is the time of streaming before the restart. If `model` is None, the embedded
    model is used. If `source` is None, the cameras show drawn scenes. If `snapshot` is None, no snapshot is written."""

    cameras: int
    seconds: float
    model: Path | None = None
    source: str | None = None
    snapshot: Path | None = None

    @property
    def is_judged(self) -> bool:
        """Whether the ground truth is known."""
        return self.model is None and self.source is None


Done = Callable[[float, float], bool]
"""Whether a run may end, given the seconds since the launch and the seconds of streaming."""


async def run(plan: Plan, view: View) -> Outcome:
    """Run the whole demo. Raises EdgedError if it cannot begin; later problems are in the report.

    When it ends, even by cancellation, no process and no file except the snapshot is left.
    """
    counts = FrameCounts((f"cam{n}" for n in range(1, plan.cameras + 1)), judged=plan.is_judged)
    cold, warm = Life(), Life()

    def is_shown(now: float, streamed: float) -> bool:
        return streamed >= plan.seconds and (cold.is_settled(now) or streamed >= plan.seconds + _PATIENCE_S)

    def is_back(_: float, streamed: float) -> bool:
        return streamed >= AFTER_RESTART_S and (warm.served_s is not None or streamed >= AFTER_RESTART_S + _PATIENCE_S)

    page = f"localhost:{free_port()}"
    with scratch() as folder:
        await _live(_Stage(plan, counts, cold, Story(cold), view, page, is_first=True), folder, is_shown)
        if not cold.problem:
            view.heading("restart, with the engines in the store")
            await _live(_Stage(plan, counts, warm, Story(warm, cold), view, page, plan.snapshot), folder, is_back)
    return Outcome(make_report(counts, cold, warm, swap_due=plan.model is None), cold, warm)


async def _live(stage: _Stage, folder: Path, is_done: Done) -> None:
    """Run the daemon once. An error that ends the run early is raised if no frame was answered yet, otherwise stored in
    the run's `Life`."""
    model = stage.plan.model or MODEL_PATH
    try:
        async with (
            running(_daemon(folder, stage.name, model.absolute(), stage.page)) as daemon,
            AsyncClient(daemon.address, timeout=_CALL_S) as client,
        ):
            await stage.stream(daemon, client, is_done)
    except EdgedError as error:
        if not stage.counts.ages:
            raise
        stage.life.problem = str(error)  # more precise than a camera's error about its lost stream


@dataclass
class _Stage:
    """One run of the daemon: its options, and the objects that record it."""

    plan: Plan
    counts: FrameCounts
    life: Life
    story: Story
    view: View
    page: str
    snapshot: Path | None = None
    is_first: bool = False

    @property
    def name(self) -> str:
        return "shapes" if self.plan.model is None else "model"

    async def stream(self, daemon: DaemonProcess, client: AsyncClient, is_done: Done) -> None:
        """Stream all cameras until `is_done`, then wait for the last answers."""
        count = self.plan.cameras
        if self.is_first:
            await self._open_page(client)
        cameras = [await asyncio.to_thread(open_camera, n, count, self.plan.source) for n in range(1, count + 1)]
        started = time.monotonic()
        streams = [
            asyncio.create_task(self._stream(client, camera, counts, daemon.launched))
            for camera, counts in zip(cameras, self.counts.cameras, strict=True)
        ]
        try:
            while not all(stream.done() for stream in streams):
                await self._look(daemon, client)
                if self.life.problem or is_done(time.monotonic() - daemon.launched, time.monotonic() - started):
                    break
                await asyncio.sleep(_LOOK_S)
            await self._drain(cameras, streams)
            await self._look(daemon, client)
            if self.snapshot is not None:
                await self._paint(client, cameras, self.snapshot)
        finally:
            self.life.streamed_s = time.monotonic() - started
            await _end(cameras, streams)

    async def _open_page(self, client: AsyncClient) -> None:
        """Show the page's address. The page has pictures only of cameras that the daemon opens itself, but this process
        opens the demo's cameras. Therefore a demo with the embedded model and drawn scenes adds a drawn camera to the
        daemon."""
        if address := (await client.status()).page:
            self.view.page(address)
            if self.plan.is_judged:
                await client.add_camera("scene", {"source": "scene:7", "model": self.name, "max_fps": "5"})

    async def _stream(self, client: AsyncClient, camera: DemoCamera, counts: CameraCounts, launched: float) -> None:
        """Stream one camera. Frames without an answer count as failed."""
        stream = client.stream(self.name, camera, camera=camera.name)
        counts.streams.append(stream.counts)
        try:
            async with stream:
                async for result in stream:
                    self._on_result(result, camera, counts, launched)
        except EdgedError as error:
            self.life.problem = self.life.problem or f"{camera.name}: {error}"
        finally:
            stream.counts.on_lost()

    def _on_result(self, result: Result, camera: DemoCamera, counts: CameraCounts, launched: float) -> None:
        truth = camera.truth(result.sequence)
        if result.error is not None:
            self.counts.error = f"{result.error[1]} ({result.error[0]})"
            return
        self.life.answer(result.engine, time.monotonic() - launched)
        counts.on_answer(result.age_ms)
        self.counts.ages.append(result.age_ms)
        if truth is not None and self.plan.is_judged:
            found = [Prediction(d.class_id, d.score, d.x1, d.y1, d.x2, d.y2) for d in result.detections]
            self.counts.judge(found, truth)

    async def _look(self, daemon: DaemonProcess, client: AsyncClient) -> None:
        """Ask the daemon for its state and show it. Raises EdgedError if the daemon ended or the model cannot be
        served."""
        try:
            models, engines = await client.models(), await client.engines(self.name)
        except EdgedError:
            await asyncio.sleep(_LOOK_S)  # if the daemon ended, its own error says more; it is available a moment later
            daemon.check()
            raise
        model = next((model for model in models if model.name == self.name), None)
        now = time.monotonic() - daemon.launched
        self.life.look(model, engines, now)
        for line in self.story.new_lines(now):
            self.view.event(line)
        self.view.show(now, self.counts, self.life)
        if model is not None and model.state in ("refused", "failed"):
            raise EdgedError(model.reason)
        if not self.counts.ages and self.counts.totals().failed >= _HOPELESS:
            raise EdgedError(self.counts.error)

    async def _drain(self, cameras: Sequence[DemoCamera], streams: Sequence[asyncio.Task[None]]) -> None:
        """Stop the cameras, and wait for the last answers."""
        for camera in cameras:
            camera.interrupt()
        _, waiting = await asyncio.wait(streams, timeout=_DRAIN_S)
        if waiting:
            self.life.problem = self.life.problem or f"frames waited for {_DRAIN_S:g} s without an answer"

    async def _paint(self, client: AsyncClient, cameras: Sequence[DemoCamera], path: Path) -> None:
        """Run the model again on the newest picture of each camera, and write the results as one picture."""
        seen = []
        for camera in cameras[:MAX_TILES]:
            if camera.newest is not None:
                seen.append((camera.newest, await client.infer(self.name, camera.newest, camera=camera.name)))
        if seen:
            jpeg = await asyncio.to_thread(paint_snapshot, seen)
            path.write_bytes(jpeg)


async def _end(cameras: Sequence[DemoCamera], streams: Sequence[asyncio.Task[None]]) -> None:
    for camera in cameras:
        camera.interrupt()
    for stream in streams:
        stream.cancel()
    ended = await asyncio.gather(*streams, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
