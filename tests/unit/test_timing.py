"""Timing of an engine against the reference, in every form that it can be opened in."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from edged.backends.contract import ONE_INSTANCE, Order, Parallelism, Recipe, Session, Signature
from edged.errors import OutOfMemory
from edged.jobs import timing
from edged.jobs.timing import measure, parallelisms
from edged.store.record import Speed
from edged.tensors import Array

INPUTS = {"x": np.zeros(4, np.float32)}


class Timed:
    """A session that takes `seconds`, multiplied by `beside` while another session of its engine runs."""

    def __init__(self, seconds: float, beside: float = 1.0, running: list[int] | None = None) -> None:
        self._seconds, self._beside, self._running = seconds, beside, [0] if running is None else running
        self._lock, self.is_open = threading.Lock(), True

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        with self._lock:
            self._running[0] += 1
        time.sleep(self._seconds * (self._beside if self._running[0] > 1 else 1.0))
        with self._lock:
            self._running[0] -= 1
        return {}

    def replica(self) -> Timed:
        return Timed(self._seconds, self._beside, self._running)

    def close(self) -> None:
        self.is_open = False


class Single:
    """A session of a runtime that runs one inference at a time."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        time.sleep(0.001)
        return {}

    def close(self) -> None:
        pass


def forms(cores: int, **recipe: object) -> list[tuple[int, int]]:
    order = Order("m.onnx", Signature((), ()), Recipe("onnxruntime", **recipe))  # type: ignore[arg-type]
    return [(form.instances, form.threads) for form in parallelisms(order, cores)]


@pytest.mark.parametrize(
    ("cores", "recipe", "expected"),
    [
        (1, {}, [(1, 0)]),
        (2, {}, [(1, 0), (2, 1)]),
        (4, {}, [(1, 0), (2, 2), (4, 1)]),
        (6, {}, [(1, 0), (2, 3), (3, 2), (6, 1)]),
        (4, {"threads": 1}, [(1, 0), (4, 1)]),
        (4, {"threads": 3}, [(1, 0)]),
        (8, {"device": "cuda:0"}, [(1, 0)]),
    ],
)
def test_forms_share_the_cores_of_a_cpu(cores: int, recipe: dict[str, object], expected: list[tuple[int, int]]) -> None:
    assert forms(cores, **recipe) == expected


def test_measure_times_single_and_concurrent_inferences() -> None:
    opened: list[Timed] = []

    def open_form(form: Parallelism) -> Session:
        opened.append(Timed(0.004 if form == ONE_INSTANCE else 0.006, beside=1.5))
        return opened[-1]

    reference = Timed(0.008)
    found = measure(open_form, [ONE_INSTANCE, Parallelism(2, 1)], reference, INPUTS, lambda session: True, seconds=0.2)
    one, two = found.speeds
    assert (one.parallelism, two.parallelism) == (ONE_INSTANCE, Parallelism(2, 1))
    assert one.interval_ms == pytest.approx(one.latency_ms, rel=0.3)
    assert 0.3 < one.cost(is_busy=False) < 0.7, "4 of 8 ms"
    assert 0.6 < two.cost(is_busy=False) < 0.95, "6 of 8 ms"
    assert 0.4 < two.cost(is_busy=True) < 0.75, "two in 9 of 8 ms"
    assert not any(session.is_open for session in opened)
    assert reference.is_open


def test_measure_leaves_out_forms_that_do_not_run_or_answer_wrongly() -> None:
    two = Parallelism(2, 1)
    single = measure(lambda form: Single(), [ONE_INSTANCE, two], Single(), INPUTS, lambda session: True, seconds=0.0)
    assert [speed.parallelism for speed in single.speeds] == [ONE_INSTANCE]
    wrong = measure(lambda form: Timed(0.001), [ONE_INSTANCE, two], Timed(0.001), INPUTS, lambda session: False, 0.0)
    assert [speed.parallelism for speed in wrong.speeds] == [ONE_INSTANCE]


def test_measure_leaves_out_forms_for_which_memory_is_too_small() -> None:
    many, opened = Parallelism(2, 1), list[Timed]()

    class Lean(Timed):
        def replica(self) -> Timed:
            raise OutOfMemory("no memory for a second instance")

    def open_form(form: Parallelism) -> Session:
        if form.instances > 2:
            raise OutOfMemory("no memory for the weights")
        opened.append(Lean(0.001))
        return opened[-1]

    forms, rounds = [ONE_INSTANCE, many, Parallelism(4, 1)], list[int]()
    found = measure(
        open_form, forms, Timed(0.001), INPUTS, lambda session: True, 0.0, on_round=lambda: rounds.append(1)
    )
    assert [speed.parallelism for speed in found.speeds] == [ONE_INSTANCE]
    assert not any(session.is_open for session in opened)
    assert rounds

    def refuse(form: Parallelism) -> Session:
        raise OutOfMemory("no memory at all")

    with pytest.raises(OutOfMemory):
        measure(refuse, forms, Timed(0.001), INPUTS, lambda session: True, 0.0)


def test_measure_of_the_reference_itself_leaves_it_open() -> None:
    reference = Timed(0.001)
    measure(lambda form: reference, [ONE_INSTANCE], reference, INPUTS, lambda session: True, seconds=0.0)
    assert reference.is_open


def test_block_excludes_the_first_inference() -> None:
    """The first inference after one of another engine takes longer."""
    times = iter([0.02, 0.001, 0.001, 0.001])

    class Cold(Single):
        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            time.sleep(next(times))
            return {}

    assert timing.block(Cold(), INPUTS, 3) < 0.01


class Counted(Single):
    """A session that takes `seconds` and counts its inferences. The first takes ten times as long."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self.count = seconds, 0

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        time.sleep(self._seconds * (1 if self.count else 10))
        self.count += 1
        return {}


def test_measure_asks_a_slow_model_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_BLOCK_SECONDS", 0.01)
    engine, reference = Counted(0.02), Counted(0.02)
    found = measure(lambda form: engine, [ONE_INSTANCE], reference, INPUTS, lambda session: True, seconds=0.0)
    assert (engine.count, reference.count) == (3 + 6 * 2, 3 + 6)
    assert found.speeds[0].latency_ms < 100, "the first inference is not timed"


def test_measure_warms_a_fast_engine_of_a_slow_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_BLOCK_SECONDS", 0.02)
    last: list[Single] = []

    class Cached(Single):
        """A session that takes longer if another session ran before."""

        def __init__(self, seconds: float) -> None:
            self._seconds = seconds

        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            time.sleep(self._seconds * (1 if last and last[0] is self else 5))
            last[:] = [self]
            return {}

    engine, reference = Cached(0.002), Cached(0.02)
    (speed,) = measure(lambda form: engine, [ONE_INSTANCE], reference, INPUTS, lambda session: True, seconds=0.0).speeds
    assert speed.latency_ms < 8


def test_one_interruption_does_not_shorten_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.1])

    class Interrupted(Single):
        count = 0

        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            Interrupted.count += 1
            time.sleep(next(times, 0.0001))
            return {}

    monkeypatch.setattr(timing, "_BLOCK_SECONDS", 0.05)
    measure(lambda form: Interrupted(), [ONE_INSTANCE], Single(), INPUTS, lambda session: True, seconds=0.0)
    assert Interrupted.count >= 3 + 3 * (11 + 11)


def test_measure_times_the_reference_once_if_it_is_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_BLOCK_SECONDS", 0.01)
    reference = Counted(0.02)
    found = measure(lambda form: reference, [ONE_INSTANCE], reference, INPUTS, lambda session: True, seconds=0.0)
    assert reference.count == 3 + 6 * 2
    assert found.speeds[0].latency_ms == found.speeds[0].reference_ms
    assert found.blocks.engine == found.blocks.reference


def test_fastest_form_depends_on_the_demand() -> None:
    one, two = Speed(1, 0, 5.0, 5.0, 10.0), Speed(2, 1, 8.0, 4.0, 10.0)
    assert min((one, two), key=lambda speed: speed.cost(is_busy=False)) == one
    assert min((one, two), key=lambda speed: speed.cost(is_busy=True)) == two
