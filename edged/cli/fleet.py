"""Asks several daemons at once, each in a thread of its own; what they say comes in the order in which they say it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from edged.cli import common
from edged.cli.inventory import Box
from edged.cli.reach import client_of
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
