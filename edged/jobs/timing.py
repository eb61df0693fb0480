"""Times an engine against the reference: one inference at a time, and several at the same time.

Engine and reference run alternately, in blocks of inferences, so that the load of the box affects both alike. Within a
block, the CPU caches contain the weights of the engine, as they do while it serves. If engine and reference alternated
after each inference, each would find the weights of the other in the caches. If an inference takes more than 125 ms, a
block is one inference: filling the caches takes too small a share of this time to matter.

Before each single inference there is a pause, as between two requests of a client. The runtime's threads fall asleep in
this pause, and waking the threads may take longer than a small model's inference. Blocks are repeated until the ratio
of the two times is precise enough. After each round this process sleeps, because cameras share the box.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from edged.backends.contract import ONE_INSTANCE, Order, Parallelism, Replicable, Session
from edged.device import load
from edged.errors import EdgedError
from edged.ipc.job_messages import Timed
from edged.store.record import Blocks, Speed
from edged.tensors import Array

_RUNS = 10  # inferences of a block
_BLOCK_SECONDS = 0.25  # if a block would take longer, it has fewer inferences, but at least one
_LEAST_ROUNDS = 3
_LEAST_ROUNDS_OF_ONE = 6  # for blocks of one inference, whose time is less precise than a median of several
_PRECISE = 0.015  # a ratio is precise enough if its standard error is a smaller share of the ratio
_PAUSE = 0.0005  # seconds before an inference, as long as the round trip of a request
_MOST_BLOCKS = 200  # the most blocks whose times are returned
_REST = 1 / 3  # seconds of sleep for each second of work


def parallelisms(order: Order, cores: int) -> tuple[Parallelism, ...]:
    """Return the forms in which to time an engine: first one instance on all `cores`, then several instances that share
    the cores."""
    if order.recipe.device != "cpu":
        return (ONE_INSTANCE,)
    if threads := order.recipe.threads:
        return (ONE_INSTANCE, Parallelism(cores // threads, threads)) if cores // threads > 1 else (ONE_INSTANCE,)
    instances = sorted({count for count in (2, cores // 2, cores) if 1 < count <= cores})
    return (ONE_INSTANCE, *(Parallelism(count, cores // count) for count in instances))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def measure(
    open_form: Callable[[Parallelism], Session],
    forms: Iterable[Parallelism],
    reference: Session,
    inputs: Mapping[str, Array],
    is_right: Callable[[Session], bool],
    seconds: float = 1.0,
    on_round: Callable[[], None] = lambda: None,
) -> Timed:
    """Time an engine in each form until the ratios are precise enough, for about `seconds` at most. `open_form` may
    return the reference itself. `on_round` is called before each round of blocks.

    A form with several instances is left out if the runtime cannot run it, for example because memory is too small, or
    if its answer is wrong (`is_right` is false).
    """
    ticks, used, began = load.read(), time.process_time(), time.perf_counter()
    speeds, blocks = list[Speed](), list[Blocks]()
    for form in forms:
        try:
            with _opened(open_form, form, reference) as session:
                if form.instances == 1 or (isinstance(session, Replicable) and is_right(session)):
                    speed, took = _compare(session, form, reference, inputs, seconds, on_round)
                    speeds.append(speed)
                    blocks.append(took)
        except (EdgedError, MemoryError):
            if form.instances == 1:
                raise
    elapsed = time.perf_counter() - began
    mine = (time.process_time() - used) / (elapsed * (os.cpu_count() or 1))
    busy = round(max(0.0, load.read().share_since(ticks) - mine), 3)
    return Timed(tuple(speeds), busy, blocks[0] if blocks else Blocks())


@contextlib.contextmanager
def _opened(open_form: Callable[[Parallelism], Session], form: Parallelism, reference: Session) -> Iterator[Session]:
    session = open_form(form)
    try:
        yield session
    finally:
        if session is not reference:
            session.close()


def _compare(
    session: Session,
    form: Parallelism,
    reference: Session,
    inputs: Mapping[str, Array],
    seconds: float,
    on_round: Callable[[], None],
) -> tuple[Speed, Blocks]:
    crew = [session]
    is_reference = session is reference
    others, intervals = list[float](), list[float]()
    own = others if is_reference else list[float]()
    try:
        if isinstance(session, Replicable):
            for _ in range(form.instances - 1):
                crew.append(session.replica())
        with ThreadPoolExecutor(len(crew), "time") as pool:
            runs = _runs_of(session, inputs)
            reference_runs = runs if is_reference else _runs_of(reference, inputs)
            list(pool.map(lambda replica: _time(replica, inputs, 1), crew[1:]))  # the first inference is slow
            until = time.perf_counter() + seconds
            least = _LEAST_ROUNDS if min(runs, reference_runs) > 1 else _LEAST_ROUNDS_OF_ONE
            while len(own) < least or (
                time.perf_counter() < until and not (_is_known(own, others) and _is_known(intervals, others))
            ):
                on_round()
                started = time.perf_counter()
                others.append(block(reference, inputs, reference_runs))
                if not is_reference:
                    own.append(block(session, inputs, runs))
                intervals.append(_interval(pool, crew, inputs, runs))
                time.sleep((time.perf_counter() - started) * _REST)
    finally:
        for replica in crew[1:]:
            replica.close()
    # Other work on the box can only make a block slower, so the fastest block is the best measure.
    fastest = (round(min(times) * 1000, 4) for times in (own, intervals, others))
    blocks = Blocks(*(tuple(round(took * 1000, 4) for took in times[:_MOST_BLOCKS]) for times in (own, others)))
    return Speed(form.instances, form.threads, *fastest), blocks


def _runs_of(session: Session, inputs: Mapping[str, Array]) -> int:
    """Run a session two or three times to prepare it. Return the number of inferences in one of its blocks."""
    took = _time(session, inputs, 2)[1]
    if took * _RUNS > _BLOCK_SECONDS:  # perhaps only because other work interrupted the inference
        took = min(took, *_time(session, inputs, 1))
    return max(1, min(_RUNS, int(_BLOCK_SECONDS / took)))


def block(session: Session, inputs: Mapping[str, Array], runs: int) -> float:
    """Return the median seconds of `runs` inferences. If `runs` > 1, another inference first fills the caches."""
    return statistics.median(_time(session, inputs, runs + 1)[1:] if runs > 1 else _time(session, inputs, 1))


def _time(session: Session, inputs: Mapping[str, Array], runs: int) -> list[float]:
    """Return the seconds of each of `runs` inferences, with pauses between them."""
    times = []
    for _ in range(runs):
        time.sleep(_PAUSE)
        started = time.perf_counter()
        session.infer(inputs)
        times.append(time.perf_counter() - started)
    return times


def _interval(pool: ThreadPoolExecutor, crew: Sequence[Session], inputs: Mapping[str, Array], runs: int) -> float:
    """Return the mean seconds between two answers while all sessions of the crew work in parallel."""

    def work(session: Session) -> None:
        for _ in range(runs):
            session.infer(inputs)

    if runs > 1:
        list(pool.map(lambda session: session.infer(inputs), crew))  # fills the caches
    started = time.perf_counter()
    list(pool.map(work, crew))
    return (time.perf_counter() - started) / (runs * len(crew))


def _is_known(own: Sequence[float], others: Sequence[float]) -> bool:
    """Whether the standard error of the ratio of two series of times is small enough."""
    logs = [math.log(mine / other) for mine, other in zip(own, others, strict=True)]
    return statistics.stdev(logs) / math.sqrt(len(logs)) < _PRECISE
