"""Engines that are being made: a bar for each on a terminal, a line for each step elsewhere, or JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import msgspec
import typer
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from edged.cli import common, words
from edged.client.commands import EngineProgress
from edged.errors import EdgedError

Show = Callable[[EngineProgress], None]


def follow(updates: Iterable[EngineProgress], json: bool) -> list[EngineProgress]:
    """Shows engines until all have their outcome; as each is at the end. Ctrl-C ends only the watching."""
    draws = common.err.is_terminal and not common.err.is_dumb_terminal
    display = _json_lines() if json else _bars() if draws else _lines()
    last: dict[str, EngineProgress] = {}
    try:
        with display as show:
            for update in updates:
                last[update.key] = update
                show(update)
    except KeyboardInterrupt:
        typer.echo("the work goes on; see: edged status; end it: edged engines cancel", err=True)
        raise
    if draws and not json:  # the bars are gone by now
        for engine in last.values():
            common.show(words.line(engine))
    return list(last.values())


def require_success(engines: list[EngineProgress], done: str) -> None:
    """EdgedError names those that were not `done`, such as "rebuilt"."""
    wrong = [engine for engine in engines if not engine.succeeded]
    if wrong:
        told = "; ".join(words.line(engine) for engine in wrong)
        raise EdgedError(f"{len(wrong)} of {len(engines)} engines could not be {done}: {told}")


@contextlib.contextmanager
def _json_lines() -> Iterator[Show]:
    yield lambda update: common.print_json(msgspec.json.encode(update.json()))


@contextlib.contextmanager
def _lines() -> Iterator[Show]:
    """One for each step, however often the seconds change."""
    steps: dict[str, tuple[object, ...]] = {}

    def show(update: EngineProgress) -> None:
        step = (update.state, update.phase, update.reason, update.done)
        if steps.get(update.key) != step:
            steps[update.key] = step
            common.show(words.line(update))

    yield show


@contextlib.contextmanager
def _bars() -> Iterator[Show]:
    """On standard error, where they leave no trace; a bar whose share is not known runs to and fro."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[told]}", markup=False),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=common.err, transient=True) as progress:

        def show(update: EngineProgress) -> None:
            if update.key not in tasks:
                tasks[update.key] = progress.add_task(words.name(update), told="", total=None)
            share = 1.0 if update.done else 0.0 if update.phase == "waiting" else update.fraction
            progress.update(
                tasks[update.key],
                total=None if share is None else 1.0,
                completed=share or 0.0,
                told=_told(update),
            )

        yield show


def _told(update: EngineProgress) -> str:
    if update.done:
        return update.state
    return "  ".join(filter(None, (update.phase or update.state, words.times(update.elapsed_s, update.estimate_s))))
