"""Checks, their report, and steps that run checks within a time limit.

A check that hangs, crashes or takes too long becomes one line of the report and does not end the others. Each step that
reads files runs in its own thread, since a file of /sys or a dead network disk may never answer. Heavy steps start
child processes; at most two of them run at a time, so that a serving box continues to serve.

Programs use the names of checks too, so published names do not change. docs/doctor.md explains each check.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent import futures
from typing import TypeAlias, TypeVar

import msgspec

from edged.errors import EdgedError

T = TypeVar("T")


class Result(str, enum.Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"  # the checked thing works, but may cause problems
    WRONG = "wrong"  # it does not work, or will soon stop working
    UNKNOWN = "unknown"  # it could not be checked or does not apply here


class Name(str, enum.Enum):
    """The names of all checks, in the order of the report."""

    # runtimes
    RUNTIME = "runtime"
    OPSET = "opset"
    PROVIDER = "provider"
    TELEMETRY = "telemetry"
    EXTRA = "extra"
    SELF_CHECK = "self_check"  # of `edged self-check`
    # hardware
    DRIVER = "driver"
    DEVICE_NODES = "device_nodes"
    POWER_MODE = "power_mode"
    THROTTLING = "throttling"
    TEMPERATURE = "temperature"
    # system
    MEMORY = "memory"
    MEMORY_LIMIT = "memory_limit"
    SWAP = "swap"
    SHARED_MEMORY = "shared_memory"
    DESCRIPTORS = "descriptors"
    KERNEL = "kernel"
    CONFINEMENT = "confinement"
    CLOCK = "clock"
    CLOCK_SYNC = "clock_sync"
    # disk
    STATE_FOLDER = "state_folder"
    CACHE_FOLDER = "cache_folder"
    DISK_SPACE = "disk_space"
    STORE = "store"
    # daemon
    DAEMON = "daemon"
    DAEMON_VERSION = "daemon_version"
    DAEMON_FACTS = "daemon_facts"
    SOCKET = "socket"
    HOSTS = "hosts"
    ALARM = "alarm"
    # models
    MODEL = "model"
    ADMISSION = "admission"
    MODEL_OPSET = "model_opset"
    EXTERNAL_DATA = "external_data"
    SHAPES = "shapes"
    BATCH = "batch"
    ENGINE = "engine"
    PLACEMENT = "placement"
    LATENCY = "latency"
    DRIFT = "drift"
    LEVELS = "levels"


class Check(msgspec.Struct, frozen=True):
    """The outcome of one check. `subject` is the runtime, folder or model; empty if the name is enough. `message` and
    `remedy` are one line each; results `warning` and `wrong` always have a remedy."""

    name: Name
    subject: str
    result: Result
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        # Messages quote runtimes, kernels and files, whose texts may have several lines and control characters.
        for field in ("subject", "message", "remedy"):
            msgspec.structs.force_setattr(self, field, _one_line(getattr(self, field)))


def ok(name: Name, message: str, subject: str = "") -> Check:
    return Check(name, subject, Result.OK, message)


def warning(name: Name, message: str, remedy: str, subject: str = "") -> Check:
    return Check(name, subject, Result.WARNING, message, remedy)


def wrong(name: Name, message: str, remedy: str, subject: str = "") -> Check:
    return Check(name, subject, Result.WRONG, message, remedy)


def unknown(name: Name, message: str, subject: str = "", remedy: str = "") -> Check:
    return Check(name, subject, Result.UNKNOWN, message, remedy)


def _one_line(text: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())


class Report(msgspec.Struct, frozen=True):
    """The outcomes of all checks, in the order of `Name`. `left_out` has a line with the reason for each thing that was
    not checked."""

    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()

    def is_ok(self, *, strict: bool = False) -> bool:
        """Whether no check has the result `wrong` or, with `strict`, `warning`. The result `unknown` is allowed."""
        bad = (Result.WRONG, Result.WARNING) if strict else (Result.WRONG,)
        return not any(check.result in bad for check in self.checks)

    def counts(self) -> dict[str, int]:
        """Return how many checks have each result."""
        return {result.value: sum(check.result is result for check in self.checks) for result in Result}


Ask: TypeAlias = Callable[[], Awaitable[Sequence[Check]]]

_AT_ONCE = 2
_ENDING_SECONDS = 15.0  # how long cancelled children may take to end


class Step(msgspec.Struct, frozen=True):
    """One step of an examination. `ask` returns any number of checks. If `ask` fails or runs for longer than `seconds`,
    the step results in one check with `name`, `subject` and the result unknown. At most two heavy steps run at once."""

    name: Name
    subject: str
    ask: Ask
    seconds: float = 10.0
    is_heavy: bool = False

    def unknown(self, why: str) -> Check:
        return unknown(self.name, why, self.subject)


Tell: TypeAlias = Callable[[Step], None]


class Examination:
    """Runs steps until `deadline` on the event loop's clock. Steps that are not done by then are in `left_out`. `tell`
    is called with each step when it begins."""

    def __init__(self, deadline: float, tell: Tell) -> None:
        self._deadline, self._tell = deadline, tell
        self._heavy = asyncio.Semaphore(_AT_ONCE)
        self.left_out: list[str] = []

    async def run(self, steps: Sequence[Step]) -> list[Check]:
        """Run the steps and return their checks, in the order of the steps."""
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
                about = " ".join(filter(None, (step.name.value, step.subject)))
                self.left_out.append(f"{about}: the time limit of all checks was reached")
                checks.append(step.unknown("no answer before the time limit of all checks (--seconds)"))
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
            return [step.unknown(f"the check did not finish within {step.seconds:g} s")]
        except EdgedError as error:
            return [step.unknown(str(error))]
        except Exception as error:  # a failed check must not end the others
            return [step.unknown(f"the check itself failed: {type(error).__name__}: {error}")]


def plain(name: Name, question: Callable[[], Iterable[Check]], subject: str = "") -> Step:
    """Make a step from a function that only reads files; the step calls it in a thread."""
    return Step(name, subject, lambda: in_thread(lambda: tuple(question())))


async def in_thread(question: Callable[[], T]) -> T:
    """Call a function in a daemon thread and return its result. Unlike asyncio's threads, a daemon thread does not
    delay the program's exit."""
    answer: futures.Future[T] = futures.Future()
    answer.set_running_or_notify_cancel()

    def call() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return await asyncio.wrap_future(answer)
