"""Calls one or several daemons and shows their answers. Several answers are shown below the boxes' names or in one
table, followed by a summary."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec
import typer
from rich.console import RenderableType
from rich.padding import Padding

from edged.cli import common
from edged.cli.inventory import Box
from edged.cli.targets import Targets, client_of, is_daemon_addressed
from edged.errors import EdgedError, ErrorCode

if TYPE_CHECKING:
    from edged.client.client import Client

AT_ONCE = 8
_MAX_QUEUED = 1000  # updates that wait to be shown; while the queue is full, the threads that receive updates block

Update = TypeVar("Update")
Answer = TypeVar("Answer")
Item = TypeVar("Item")


@dataclass(frozen=True)
class BoxUpdate(Generic[Update]):
    """A progress report from one box."""

    box: str
    update: Update


@dataclass(frozen=True)
class BoxOutcome(Generic[Answer]):
    """The outcome of a call to one box: its answer, or an error. `error` is the message for users, and `code` the
    error's code for programs."""

    box: str
    answer: Answer | None = None
    error: str = ""
    code: ErrorCode = ErrorCode.INTERNAL


Work: TypeAlias = "Callable[[Client, Callable[[Update], None]], Answer]"


def call_all(
    boxes: Sequence[Box], work: Work[Update, Answer], at_once: int = AT_ONCE
) -> Iterator[BoxUpdate[Update] | BoxOutcome[Answer]]:
    """Run `work` for every box, `at_once` boxes at a time, and yield a `BoxOutcome` for each.

    `work` gets a client of the box and a function. Each update that `work` passes to this function is
    yielded as a `BoxUpdate`. After the iterator is closed, no further box is called.
    """
    waiting: queue.SimpleQueue[Box] = queue.SimpleQueue()
    received: queue.Queue[BoxUpdate[Update] | BoxOutcome[Answer]] = queue.Queue(_MAX_QUEUED)
    over = threading.Event()
    for box in boxes:
        waiting.put(box)

    def call_boxes() -> None:
        with contextlib.suppress(queue.Empty):
            while not over.is_set():
                received.put(_call_box(waiting.get_nowait(), work, received.put))

    for _ in range(min(at_once, len(boxes))):
        threading.Thread(target=call_boxes, daemon=True).start()  # an interrupted command does not wait for the thread
    missing = len(boxes)
    try:
        while missing:
            each = received.get()
            missing -= isinstance(each, BoxOutcome)
            yield each
    finally:
        over.set()


def _call_box(box: Box, work: Work[Update, Answer], report: Callable[[BoxUpdate[Update]], None]) -> BoxOutcome[Answer]:
    try:
        with client_of(box) as client:
            return BoxOutcome(box.name, work(client, lambda update: report(BoxUpdate(box.name, update))))
    except EdgedError as error:
        return BoxOutcome(box.name, error=error.message, code=error.code)
    except OSError as error:
        return BoxOutcome(box.name, error=common.refused_by_system(error))
    except Exception as error:  # a bug fails this box only
        return BoxOutcome(box.name, error=f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class RemoteCommand(Generic[Answer]):
    """A call to a daemon, and how to show its answer. With several boxes, an answer None is not shown.

    `failure` returns why an answer counts as a failure, or an empty text. `table` makes one table from the answers of
    several boxes; its argument maps the boxes' names to their answers. If Ctrl-C interrupts the calls to several boxes,
    the names of the boxes that have not answered are printed, followed by the text `if_interrupted`. If
    `if_interrupted` is None, nothing is printed.
    """

    call: Callable[[Client], Answer]
    render: Callable[[Answer], Iterable[RenderableType]]
    to_json: Callable[[Answer], Any]
    failure: Callable[[Answer], str] = lambda _: ""
    table: Callable[[Mapping[str, Answer]], RenderableType] | None = None
    if_interrupted: str | None = ""

    def show(self, answer: Answer, json: bool) -> None:
        """Print the answer of a daemon, or an answer that was read from this box's folders."""
        if json:
            common.print_json(msgspec.json.encode(self.to_json(answer)))
            return
        for part in self.render(answer):
            common.show(part)


def run(command: RemoteCommand[Answer], targets: Targets, json: bool, doing: str = "") -> None:
    """Call one or several daemons and show the answers. A terminal shows `doing` meanwhile.

    Exits with status 1 if an answer counts as a failure, or if any of several boxes failed. Raises EdgedError if the
    call to a single daemon failed.
    """
    if targets.is_fleet:
        boxes = targets.boxes()
        print_summary(run_on_fleet(command, boxes, json, doing=doing or "waiting"), boxes, json)
        return
    with targets.client() as client, common.working(doing) if doing else contextlib.nullcontext():
        answer = command.call(client)
    command.show(answer, json)
    if command.failure(answer):
        raise typer.Exit(common.FAILED)


def run_or_read(
    command: RemoteCommand[Answer],
    targets: Targets,
    folders: Sequence[Path | None],
    read: Callable[[], Answer],
    json: bool,
    doing: str = "",
) -> None:
    """Call the addressed daemons and show their answers. If no daemon is addressed, show the answer of `read`, which
    reads this box's folders."""
    if is_daemon_addressed(targets.named, *folders):
        run(command, targets, json, doing)
        return
    with common.working(doing) if doing else contextlib.nullcontext():
        answer = read()
    command.show(answer, json)


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A column of a list. A column with `is_optional` is left out if all its texts are empty. Texts of a column with
    `is_whole` are never wrapped."""

    heading: str
    text: Callable[[Item], str]
    is_optional: bool = False
    is_whole: bool = False


def list_command(
    call: Callable[[Client], list[Item]],
    columns: Sequence[Column[Item]],
    to_json: Callable[[list[Item]], Any],
    empty: str,
) -> RemoteCommand[list[Item]]:
    """Return a command that lists items in one table, also for several boxes. `empty` replaces an empty table."""
    return RemoteCommand(
        call=call,
        render=lambda items: [item_table({"": items}, columns, empty)],
        to_json=to_json,
        table=lambda boxes: item_table(boxes, columns, empty),
    )


def item_table(answers: Mapping[str, Sequence[Item]], columns: Sequence[Column[Item]], empty: str) -> RenderableType:
    """Return a table with a row for each item, or `empty` if there are no items. `answers` maps the names of boxes to
    the boxes' items. The first column has the boxes' names, unless all names are empty."""
    items = [(box, item) for box, items in answers.items() for item in items]
    if not items:
        return empty
    shown = [column for column in columns if not column.is_optional or any(column.text(item) for _, item in items)]
    has_boxes = any(box for box, _ in items)
    table = common.table(*(["BOX"] if has_boxes else []))
    for column in shown:
        table.add_column(column.heading, no_wrap=column.is_whole)
    for box, item in items:
        table.add_row(*([box] if has_boxes else []), *(column.text(item) for column in shown))
    return table


def run_on_fleet(
    command: RemoteCommand[Answer],
    boxes: Sequence[Box],
    json: bool,
    work: Work[Update, Answer] | None = None,
    *,
    on_update: Callable[[str, Update], None] = lambda _box, _update: None,
    on_outcome: Callable[[BoxOutcome[Answer]], None] = lambda _: None,
    at_once: int = AT_ONCE,
    doing: str | None = None,
) -> dict[str, str]:
    """Run `work`, by default the command's call, for every box. Return a mapping from each box's name to the reason why
    the box failed. The reason is empty if the box succeeded.

    With `json`, print each outcome when it arrives. Otherwise call `on_outcome` with each outcome, and show all answers
    in the command's table at the end. If the command has no table, show each answer when it arrives. A terminal shows
    `doing` and the names of boxes that have not answered.
    """
    ended: dict[str, str] = {}
    answers: dict[str, Answer] = {}
    received = call_all(boxes, work or (lambda client, _: command.call(client)), at_once)
    try:
        while missing := [box.name for box in boxes if box.name not in ended]:
            with contextlib.nullcontext() if doing is None else common.working(f"{doing} for {_few(missing)}"):
                each = next(received)
            if isinstance(each, BoxUpdate):
                on_update(each.box, each.update)
                continue
            wrong = ""
            if each.answer is not None:
                answers[each.box], wrong = each.answer, command.failure(each.answer)
            ended[each.box] = each.error or wrong
            if json:
                _print_json(each, wrong, command.to_json)
                continue
            on_outcome(each)
            if each.answer is not None and command.table is None and (parts := list(command.render(each.answer))):
                _print(each.box, parts)
    except KeyboardInterrupt:
        if command.if_interrupted is not None:
            line = f"no answer yet from {', '.join(missing)}" if missing else "all boxes have answered"
            common.say("; ".join(filter(None, (line, command.if_interrupted))))
        raise
    if command.table is not None and answers and not json:
        common.show(command.table({box.name: answers[box.name] for box in boxes if box.name in answers}))
    return ended


def print_summary(ended: Mapping[str, str], boxes: Sequence[Box], json: bool) -> None:
    """Print how many boxes are done and why the others failed (not with `json`). Exit with status 1 if any failed."""
    failed = {box.name: ended[box.name] for box in boxes if ended[box.name]}
    if not json:
        common.say(f"{len(ended) - len(failed)} of {len(boxes)} boxes done")
        for name, why in failed.items():
            common.say(f"  {name}: {why}")
    if failed:
        raise typer.Exit(common.FAILED)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _print_json(ended: BoxOutcome[Answer], failure: str, to_json: Callable[[Answer], Any]) -> None:
    result = None if ended.answer is None else to_json(ended.answer)
    line = {"box": ended.box, "ok": not (ended.error or failure), "error": ended.error or failure, "result": result}
    if ended.error:
        line["code"] = ended.code.value
    common.print_json(msgspec.json.encode(line))


def _print(box: str, parts: Sequence[RenderableType]) -> None:
    """Print a one-line answer after its box's name, a longer answer below the name."""
    if len(parts) == 1 and isinstance(parts[0], str):
        common.show(f"{box}: {parts[0]}")
        return
    common.show(f"{box}:")
    for part in parts:
        common.show(f"  {part}" if isinstance(part, str) else Padding(part, (0, 0, 0, 2), expand=False))
