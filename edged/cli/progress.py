"""Engines that are being made: a bar for each on a terminal, a line for each step elsewhere, or JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import typer
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from edged.api_types import EngineProgress
from edged.cli import answers, common, fleet, words
from edged.cli.inventory import Box
from edged.cli.reach import Reach
from edged.errors import EdgedError

if TYPE_CHECKING:
    from edged.client.client import Client

Order: TypeAlias = "Callable[[Client], Iterable[EngineProgress]]"

_Which: TypeAlias = tuple[str, str]  # model and key: models of one content share engines

Show: TypeAlias = Callable[[str, EngineProgress], None]  # of which box; "" where there is only one

GOES_ON = "the work goes on; see: edged status; end it: edged engines cancel"


def follow(order: Order, reach: Reach, json: bool, done: str, nothing: str) -> None:
    """Gives an order and shows engines until all have their outcome. Ctrl-C ends only the watching. EdgedError, or of
    several boxes a summary and status 1, where any engine was not `done`, such as "rebuilt"; `nothing` is said where
    none was selected."""
    if reach.is_fleet:
        _follow_fleet(order, reach.boxes(), json, done, nothing)
        return
    last: dict[_Which, EngineProgress] = {}
    with reach.client() as client:
        updates = order(client)
        with _watching(lambda: typer.echo(GOES_ON, err=True)), _display(json) as show:
            for update in updates:
                last[update.model, update.key] = update
                show("", update)
    engines = list(last.values())
    _tell_ends("", engines, json)
    if not engines and not json:
        common.show(nothing)
    if wrong := trouble(engines, done):
        raise EdgedError(wrong)


def trouble(engines: Collection[EngineProgress], done: str) -> str:
    """Names those that were not `done`, such as "rebuilt"; empty where all were."""
    wrong = [engine for engine in engines if not engine.succeeded]
    if not wrong:
        return ""
    told = "; ".join(words.line(engine) for engine in wrong)
    return f"{len(wrong)} of {len(engines)} engines could not be {done}: {told}"


def _follow_fleet(order: Order, boxes: Sequence[Box], json: bool, done: str, nothing: str) -> None:
    def work(client: Client, say: Callable[[EngineProgress], None]) -> list[EngineProgress]:
        last: dict[_Which, EngineProgress] = {}
        for update in order(client):
            last[update.model, update.key] = update
            say(update)
        return list(last.values())

    ended: dict[str, str] = {}
    ends: dict[str, list[EngineProgress]] = {}
    # All of them at once: they work, not we, and one that waits for others would not even begin.
    heard = fleet.ask(boxes, work, len(boxes))
    with _watching(lambda: answers.left(ended, boxes, GOES_ON)), _display(json) as show:
        for each in heard:
            if isinstance(each, fleet.Said):
                show(each.box, each.update)
                continue
            wrong = trouble(each.answer or (), done)
            ended[each.box] = each.error or wrong
            if each.answer is not None:
                ends[each.box] = each.answer
            if json:
                answers.json_line(each, wrong, lambda engines: [engine.json() for engine in engines])
    for box in boxes:
        engines = ends.get(box.name)
        if engines is not None:
            _tell_ends(box.name, engines, json)
            if not engines and not json:
                common.show(f"{box.name}: {nothing}")
    answers.finish(ended, boxes, json)


@contextlib.contextmanager
def _watching(leave: Callable[[], None]) -> Iterator[None]:
    """`leave` is called where somebody stops watching."""
    try:
        yield
    except KeyboardInterrupt:
        leave()
        raise


def _draws() -> bool:
    return common.err.is_terminal and not common.err.is_dumb_terminal


def _display(json: bool) -> contextlib.AbstractContextManager[Show]:
    return _json_lines() if json else _bars() if _draws() else _lines()


def _tell_ends(box: str, engines: Sequence[EngineProgress], json: bool) -> None:
    """What bars have shown is gone by now."""
    if _draws() and not json:
        for engine in engines:
            common.show(_of(box, words.line(engine)))


def _of(box: str, line: str) -> str:
    return f"{box}: {line}" if box else line


@contextlib.contextmanager
def _json_lines() -> Iterator[Show]:
    def show(box: str, update: EngineProgress) -> None:
        plain = {"box": box, "update": update.json()} if box else update.json()
        common.print_json(msgspec.json.encode(plain))

    yield show


@contextlib.contextmanager
def _lines() -> Iterator[Show]:
    """One for each step, however often the seconds change."""
    steps: dict[tuple[str, _Which], tuple[object, ...]] = {}

    def show(box: str, update: EngineProgress) -> None:
        step, whose = (update.state, update.phase, update.reason, update.done), (box, (update.model, update.key))
        if steps.get(whose) != step:
            steps[whose] = step
            common.show(_of(box, words.line(update)))

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
    tasks: dict[tuple[str, _Which], TaskID] = {}
    with Progress(*columns, console=common.err, transient=True) as progress:

        def show(box: str, update: EngineProgress) -> None:
            whose = (box, (update.model, update.key))
            if whose not in tasks:
                tasks[whose] = progress.add_task(_of(box, words.name(update)), told="", total=None)
            share = 1.0 if update.done else 0.0 if update.phase == "waiting" else update.fraction
            progress.update(
                tasks[whose],
                total=None if share is None else 1.0,
                completed=share or 0.0,
                told=_told(update),
            )

        yield show


def _told(update: EngineProgress) -> str:
    if update.done:
        return update.state
    return "  ".join(filter(None, (update.phase or update.state, words.times(update.elapsed_s, update.estimate_s))))
