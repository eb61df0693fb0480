"""`edged demo`: shows the whole system at work, in a temporary folder."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from edged import formatting
from edged.cli import common
from edged.errors import EdgedError, InvalidInput

if TYPE_CHECKING:
    from edged.demo.report import Outcome
    from edged.demo.runner import Plan


def demo(
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=1.0, help="Seconds of streaming before the daemon's restart; 4 s more follow."),
    ] = 14.0,
    cameras: Annotated[int, typer.Option("--cameras", min=1, max=64, help="Number of cameras.")] = 4,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON.")] = None,
    snapshot: Annotated[
        Path | None, typer.Option("--snapshot", metavar="FILE.jpg", help="Write the annotated pictures to one JPEG.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="FILE.onnx", help="Your model instead of the embedded one.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            help="Your frames instead of drawn ones: rtsp://..., /dev/video0, a video, a folder of pictures.",
        ),
    ] = None,
) -> None:
    """Show edged at work: a daemon, some cameras, an engine swap.

    Starts a daemon in a temporary folder, streams cameras through it, and prints what happens.

    The daemon answers at once, builds and verifies faster engines, and swaps them in. Then the daemon is restarted, and
    finds its engine in the store. The demo prints the address of a page that shows the daemon in a browser. The demo
    waits for engines that are still being built, up to three minutes longer than --seconds. Only the files of --json
    and --snapshot are kept. Exit status: 0 no check failed (some may not have finished in time), 1 a check failed.
    """
    from edged.demo.runner import Plan
    from edged.demo.view import render

    if model is not None and not model.is_file():
        raise InvalidInput(f"--model {str(model)!r} is not a file; give the path of an ONNX file")
    if snapshot is not None and snapshot.suffix.lower() not in (".jpg", ".jpeg"):
        raise InvalidInput(f"--snapshot {snapshot.name!r} is not the name of a JPEG; give a name that ends in .jpg")
    for path in (json, snapshot):
        if path is not None:
            _require_writable(path)
    outcome = asyncio.run(_run(Plan(cameras, seconds, model, source, snapshot)))
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome.report)) + b"\n")
    files = tuple(path for path in (snapshot, json) if path is not None and path.exists())
    common.out.print(render(outcome, files, common.out), soft_wrap=True)
    if outcome.report.problems:
        raise EdgedError("; ".join(outcome.report.problems))


async def _run(plan: Plan) -> Outcome:
    """Run the demo. Ctrl-C, SIGTERM and SIGHUP cancel it. A further signal does not interrupt the cleanup, which takes
    seconds at most. Raises KeyboardInterrupt after a signal."""
    from edged.demo.runner import run
    from edged.demo.view import open_view

    with open_view(common.out) as view:
        view.heading(_heading(plan))
        work = asyncio.ensure_future(run(plan, view))
        stopped = False

        def stop() -> None:
            nonlocal stopped
            if not stopped:
                stopped = work.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        try:
            return await work
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _heading(plan: Plan) -> str:
    count = formatting.many(plan.cameras, "camera")
    return f"edged demo: {count} of {plan.source or 'drawn scenes'}, {plan.model or 'the embedded detector'}"


def _require_writable(path: Path) -> None:
    """Create the file's folder. Raises InvalidInput if the folder cannot be created or the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot create folder {str(path.parent)!r}: {error.strerror}") from None
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidInput(f"file {str(path)!r} cannot be written; name a file in a folder that you own")
