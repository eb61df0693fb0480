"""`edged top`: shows live what boxes do."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from edged.cli import common
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.errors import NotReady

if TYPE_CHECKING:
    from edged.cli.top.watch import BoxState, Watch

_APART_S = 1.0  # seconds between the two calls from which the rates of a single picture are computed
_PATIENCE_S = 10.0
_UNFOLDED = 1 << 20  # columns without a terminal


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, max=3600, help="Seconds between updates.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; the default without a terminal.")] = False,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Show live what one or several boxes do.

    It shows models and their engines, cameras, engine hosts, the device, builds and alarms. INFER is the recent median
    time of one inference, and BEST is the lowest median so far. Ages are from capture to answer. Keys: q quits; s sorts
    by name, load or slowness; j, k and the arrows scroll.

    If a box does not answer, the command keeps trying. --json prints a line for each box and update. With --once the
    exit status is 1 if a box does not answer.
    """
    from edged.cli.inventory import Box
    from edged.cli.top.watch import Watch
    from edged.client.address import resolve

    if targets.is_fleet:
        boxes = targets.boxes()
    else:
        place = resolve(targets.target)
        boxes = (targets.with_timeout(Box(place, place)),)
    is_drawn = common.out.is_terminal and not common.out.is_dumb_terminal and not json
    single = once or not (json or is_drawn)
    with contextlib.closing(Watch(boxes, _APART_S if single else interval)) as watch:
        if single:
            _print_once(watch, json)
        elif json:
            _print_again(watch, interval)
        else:
            from edged.cli.top.screen import Screen  # imports termios, which not every system has

            Screen(common.out, watch).run()


def _print_once(watch: Watch, json: bool) -> None:
    from edged.cli.top.picture import Order, picture

    seen = watch.wait(lambda box: box.answers > 1 or bool(box.error), _PATIENCE_S)
    if json:
        _print_json(seen)
    elif len(seen) == 1 and seen[0].load is None:
        raise NotReady(seen[0].error or f"no answer from {seen[0].name}")
    else:
        width = common.out.width if common.out.is_terminal else _UNFOLDED
        for line in picture(seen, width, Order.NAME, time.time()):
            common.show(line if common.out.is_terminal else line.plain)
    if any(box.error or box.load is None for box in seen):
        raise typer.Exit(common.FAILED)


def _print_again(watch: Watch, interval: float) -> None:
    watch.wait(lambda box: bool(box.tried), _PATIENCE_S)
    while True:
        _print_json(watch.seen())
        time.sleep(interval)


def _print_json(seen: list[BoxState]) -> None:
    for box in seen:
        line = {"box": box.name, "ok": not box.error and box.load is not None, "error": box.error, "result": box.json()}
        common.print_json(msgspec.json.encode(line))
