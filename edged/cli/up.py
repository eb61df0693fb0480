"""`edged up`: serves a model to a camera with one command."""

from __future__ import annotations

import asyncio
import signal
import time
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from edged.cli import common, model_options

if TYPE_CHECKING:
    from edged.demo.up import Plan

_PLAIN_S = 10.0  # seconds between two lines about the camera if the output is not a terminal


def up(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="An ONNX file, a reference to one, or a model of the box; default: the embedded one.",
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Argument(
            metavar="[SOURCE]", help="rtsp://..., /dev/video0, a video or a folder of pictures; default: drawn shapes."
        ),
    ] = "",
    name: Annotated[str, typer.Option("--name", help="The camera's name; default: derived from the source.")] = "",
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser of this desktop.")] = False,
) -> None:
    """Serve a model to a camera; start a daemon if none runs.

    It adds the model and the camera, prints the address of the page with the live picture, and shows progress until
    Ctrl-C. The model, its engines and the camera are kept. If the installed service or another daemon on your default
    socket already runs, the command uses this daemon, which continues after Ctrl-C. EDGED_TARGET has no effect. For
    another daemon use `edged models add` and `edged cameras add`.

    \b
    edged up
    edged up yolo11n.onnx rtsp://user:password@camera/main
    """
    from edged.demo.up import Plan

    local = model_options.local_file(model)
    settings = {} if local.pin is None else local.pin.settings
    if local.pin is not None:
        model = str(local.path)
    if asyncio.run(_run(Plan(model, source, name, settings), open_)):
        say("stopped; models, engines and cameras are kept; to continue: the same command, or edged serve")


def say(line: str) -> None:
    """Print a line, wrapped between words at the terminal's width."""
    common.show(Text(line))


async def _run(plan: Plan, is_opened: bool) -> bool:
    """Run until Ctrl-C or a signal. Return whether this command started a daemon; if so, that daemon is stopped at the
    end."""
    from edged.demo.up import Output, up

    shown_at = 0.0

    def page(address: str) -> None:
        common.show(f"page     {address}")
        if is_opened:
            webbrowser.open(address)

    with common.working("", common.out) as spin:

        def show(line: str) -> None:
            nonlocal shown_at
            spin(line)
            if not common.out.is_terminal and time.monotonic() - shown_at > _PLAIN_S:
                shown_at = time.monotonic()
                say(f"         {line}")

        output = Output(say, show, page)
        work = asyncio.ensure_future(up(plan, output))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            return output.has_started
    return False
