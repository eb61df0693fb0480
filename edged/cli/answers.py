"""Puts a question to the daemons that are meant, and shows what they answer: one as if there were no others, several
each under its name or in one table, with a summary at the end."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec
import typer
from rich.console import RenderableType
from rich.padding import Padding

from edged.cli import common
from edged.cli.inventory import Box
from edged.cli.targets import Reach, client_of
from edged.errors import EdgedError, ErrorCode

if TYPE_CHECKING:
    from edged.client.client import Client

AT_ONCE = 8
_UNHEARD = 1000  # updates that wait to be shown: whoever is faster than the terminal waits

Update = TypeVar("Update")
_Answer_ = TypeVar("_Answer_")


@dataclass(frozen=True)
class Said(Generic[Update]):
    """A box is at work and says so."""

    box: str
    update: Update


@dataclass(frozen=True)
class Ended(Generic[_Answer_]):
    """A box is done: it answered, or `error` is the line that says why not, and `code` says so to programs."""

    box: str
    answer: _Answer_ | None = None
    error: str = ""
    code: ErrorCode = ErrorCode.INTERNAL


Work: TypeAlias = "Callable[[Client, Callable[[Update], None]], _Answer_]"


def ask(
    boxes: Sequence[Box], work: Work[Update, _Answer_], at_once: int = AT_ONCE
) -> Iterator[Said[Update] | Ended[_Answer_]]:
    """`work` at every box, `at_once` at a time; it is given a function that says how it goes. One `Ended` for each box,
    and the boxes do not concern each other. Closing the iterator hangs up at once."""
    crew = _Crew(boxes, work)
    with contextlib.closing(crew):
        for _ in range(min(at_once, len(boxes))):
            threading.Thread(target=crew.labour, daemon=True).start()  # daemonic: whoever leaves waits for nobody
        missing = len(boxes)
        while missing:
            heard = crew.heard.get()
            missing -= isinstance(heard, Ended)
            yield heard


class _Crew(Generic[Update, _Answer_]):
    def __init__(self, boxes: Sequence[Box], work: Work[Update, _Answer_]) -> None:
        self.heard: queue.Queue[Said[Update] | Ended[_Answer_]] = queue.Queue(_UNHEARD)
        self._waiting: queue.SimpleQueue[Box] = queue.SimpleQueue()
        for box in boxes:
            self._waiting.put(box)
        self._work = work
        self._lock = threading.Lock()
        self._clients: set[Client] = set()
        self._is_over = False

    def labour(self) -> None:
        """One box after the other, until there is none left."""
        with contextlib.suppress(queue.Empty):
            while not self._is_over:
                self.heard.put(self._visit(self._waiting.get_nowait()))

    def close(self) -> None:
        """Hangs up wherever somebody is being asked."""
        with self._lock:
            self._is_over = True
            clients = tuple(self._clients)
        for client in clients:
            client.close()

    def _visit(self, box: Box) -> Ended[_Answer_]:
        try:
            with client_of(box) as client, self._known(client):
                return Ended(box.name, self._work(client, lambda update: self.heard.put(Said(box.name, update))))
        except EdgedError as error:
            return Ended(box.name, error=error.message, code=error.code)
        except OSError as error:
            return Ended(box.name, error=common.refused_by_system(error))
        except Exception as error:  # a fault of ours costs this box's answer and no other's
            return Ended(box.name, error=f"{type(error).__name__}: {error}")

    @contextlib.contextmanager
    def _known(self, client: Client) -> Iterator[None]:
        with self._lock:
            if self._is_over:
                client.close()
            self._clients.add(client)
        try:
            yield
        finally:
            with self._lock:
                self._clients.discard(client)


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
        for end in _waited_for(ask(boxes, lambda client, _: question.ask(client)), boxes, ended, doing):
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
