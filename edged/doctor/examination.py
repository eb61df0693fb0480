"""Asks what is to be asked within a bounded time: what hangs, crashes or takes too long is one line, and never the end.

Plain questions are asked in threads of their own, since a file of /sys or a dead network disk may never answer; heavy
ones start children, of which two run at a time, so that a box that serves goes on serving.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from edged.doctor.check import Check, Name, Result
from edged.errors import EdgedError

T = TypeVar("T")
Ask: TypeAlias = Callable[[], Awaitable[Sequence[Check]]]

_AT_ONCE = 2
_ENDING_SECONDS = 15.0  # in which children that were cancelled are gone


class Step(msgspec.Struct, frozen=True):
    """One question, whose answer is any number of checks; where there is none, it is that `name` is unknown of
    `subject`. `seconds` is how long it may take once it is its turn."""

    name: Name
    subject: str
    ask: Ask
    seconds: float = 10.0
    is_heavy: bool = False


Tell: TypeAlias = Callable[[Step], None]


class Examination:
    """Runs steps until a moment of the loop's clock, `deadline`; what was not answered by then is left out and told."""

    def __init__(self, deadline: float, tell: Tell) -> None:
        self._deadline, self._tell = deadline, tell
        self._heavy = asyncio.Semaphore(_AT_ONCE)
        self.left_out: list[str] = []

    async def run(self, steps: Sequence[Step]) -> list[Check]:
        """The checks of every step, in the order of the steps."""
        tasks = [asyncio.create_task(self._answer(step)) for step in steps]
        left = self._deadline - asyncio.get_running_loop().time()
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, left))
        late = [task for task in tasks if not task.done()]
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_ENDING_SECONDS)
        checks: list[Check] = []
        for step, task in zip(steps, tasks, strict=True):
            if task in late:
                self.left_out.append(_about(step, "the time for the whole report was over"))
                checks.append(_unknown(step, "not answered before the time for the whole report was over"))
            else:
                checks += task.result()
        return checks

    async def _answer(self, step: Step) -> Sequence[Check]:
        if not step.is_heavy:
            return await self._ask(step)
        async with self._heavy:
            return await self._ask(step)

    async def _ask(self, step: Step) -> Sequence[Check]:
        self._tell(step)
        try:
            return await asyncio.wait_for(step.ask(), step.seconds)
        except asyncio.TimeoutError:
            return [_unknown(step, f"it did not answer within {step.seconds:g} s")]
        except EdgedError as error:
            return [_unknown(step, str(error))]
        except Exception as error:  # a check that fails is a finding; it must not take the others with it
            return [_unknown(step, f"the check itself failed: {type(error).__name__}: {error}")]


def plain(name: Name, question: Callable[[], Iterable[Check]], subject: str = "") -> Step:
    """A step that only reads files."""
    return Step(name, subject, lambda: in_thread(lambda: tuple(question())))


async def in_thread(question: Callable[[], T]) -> T:
    """Calls a function in a thread that nobody waits for at the end of the program, unlike asyncio's own."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # None only beside an error

    def call() -> None:
        value, error = None, None
        try:
            value = question()
        except BaseException as caught:
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=call, daemon=True).start()
    return await answer


def _unknown(step: Step, why: str) -> Check:
    return Check(step.name, step.subject, Result.UNKNOWN, why)


def _about(step: Step, why: str) -> str:
    return f"{' '.join(filter(None, (step.name.value, step.subject)))}: {why}"
