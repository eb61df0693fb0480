"""Puts a question to the daemons that are meant, and shows what they answer: one as if there were no others, several
each under its name or in one table, with a summary at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import typer
from rich.console import RenderableType
from rich.padding import Padding

from edged.cli import common, fleet
from edged.cli.fleet import Ended, Said
from edged.cli.inventory import Box
from edged.cli.reach import Reach

if TYPE_CHECKING:
    from edged.client.client import Client

Answer = TypeVar("Answer")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Question(Generic[Answer]):
    """`ask` puts it to one daemon. Of its answer, which is never None, `tell` makes what people read and `plain` what
    programs read; `wrong` says why it counts as a failure, empty where it does not. `table` shows the answers of
    several boxes, by name, where that reads better than one after the other. `lasting` says what goes on, or not, at a
    box that nobody listens to any more."""

    ask: Callable[[Client], Answer]
    tell: Callable[[Answer], Iterable[RenderableType]]
    plain: Callable[[Answer], Any]
    wrong: Callable[[Answer], str] = lambda _: ""
    table: Callable[[Mapping[str, Answer]], RenderableType] | None = None
    lasting: str = ""


def put(question: Question[Answer], reach: Reach, json: bool, doing: str = "") -> None:
    """Asks and shows. The command ends with status 1 where an answer counts as a failure, or of several boxes any
    failed; an EdgedError is raised where the only one does. `doing` is what a terminal is told meanwhile."""
    if reach.is_fleet:
        _put_to_fleet(question, reach.boxes(), json, doing)
        return
    with reach.client() as client, common.working(doing) if doing else contextlib.nullcontext():
        answer = question.ask(client)
    show(question.tell, question.plain, answer, json)
    if question.wrong(answer):
        raise typer.Exit(common.FAILED)


def show(
    tell: Callable[[Answer], Iterable[RenderableType]], plain: Callable[[Answer], Any], answer: Answer, json: bool
) -> None:
    """The only answer, wherever it comes from; the functions are as in `Question`."""
    if json:
        common.print_json(msgspec.json.encode(plain(answer)))
        return
    for part in tell(answer):
        common.show(part)


def flat(answers: Mapping[str, Iterable[Item]]) -> list[tuple[str, Item]]:
    """Items with the box that each is from."""
    return [(box, item) for box, items in answers.items() for item in items]


def boxed(items: Sequence[tuple[str, Item]]) -> tuple[str, ...]:
    """The heading of a column for boxes, where items have any."""
    return ("BOX",) if any(box for box, _ in items) else ()


def finish(ended: Mapping[str, str], boxes: Sequence[Box], json: bool) -> None:
    """The summary: `ended` is by box why it failed, empty where it did not. Status 1 where any did."""
    failed = {name: why for name, why in ended.items() if why}
    if not json:
        common.say(f"{len(ended) - len(failed)} of {len(boxes)} boxes done")
        for box in boxes:
            if box.name in failed:
                common.say(f"  {box.name}: {failed[box.name]}")
    if failed:
        raise typer.Exit(common.FAILED)


def left(ended: Iterable[str], boxes: Sequence[Box], lasting: str) -> None:
    """Told where somebody leaves before all boxes have answered."""
    silent = [box.name for box in boxes if box.name not in set(ended)]
    told = f"no answer yet from {', '.join(silent)}" if silent else "all boxes have answered"
    common.say("; ".join(filter(None, (told, lasting))))


def json_line(ended: Ended[Answer], wrong: str, plain: Callable[[Answer], Any]) -> None:
    """What a program reads of one box."""
    result = None if ended.answer is None else plain(ended.answer)
    line = {"box": ended.box, "ok": not (ended.error or wrong), "error": ended.error or wrong, "result": result}
    if ended.error:
        line["code"] = ended.code.value
    common.print_json(msgspec.json.encode(line))


def _put_to_fleet(question: Question[Answer], boxes: Sequence[Box], json: bool, doing: str) -> None:
    ended: dict[str, str] = {}
    answers: dict[str, Answer] = {}
    try:
        for end in _waited_for(fleet.ask(boxes, lambda client, _: question.ask(client)), boxes, ended, doing):
            wrong = "" if end.answer is None else question.wrong(end.answer)
            ended[end.box] = end.error or wrong
            if end.answer is not None:
                answers[end.box] = end.answer
            if json:
                json_line(end, wrong, question.plain)
            elif end.answer is not None and question.table is None:
                _tell(end.box, list(question.tell(end.answer)))
    except KeyboardInterrupt:
        left(ended, boxes, question.lasting)
        raise
    if question.table is not None and answers and not json:
        common.show(question.table({box.name: answers[box.name] for box in boxes if box.name in answers}))
    finish(ended, boxes, json)


def _waited_for(
    heard: Iterator[Said[None] | Ended[Answer]], boxes: Sequence[Box], ended: Mapping[str, str], doing: str
) -> Iterator[Ended[Answer]]:
    """Each end as it comes; a terminal is told meanwhile who is waited for."""
    while len(ended) < len(boxes):
        silent = [box.name for box in boxes if box.name not in ended]
        more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
        with common.working(f"{doing or 'waiting'} for {', '.join(silent[:3])}{more}"):
            end = next(heard)
        if isinstance(end, Ended):
            yield end


def _tell(box: str, parts: Sequence[RenderableType]) -> None:
    """A line says whose it is; more stands under the name."""
    if len(parts) == 1 and isinstance(parts[0], str):
        common.show(f"{box}: {parts[0]}")
        return
    common.show(f"{box}:")
    for part in parts:
        common.show(f"  {part}" if isinstance(part, str) else Padding(part, (0, 0, 0, 2), expand=False))
