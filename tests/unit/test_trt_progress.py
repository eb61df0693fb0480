"""How far a build is: phases within phases, told by several threads, by a builder that must not be disturbed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.trt.progress import Progress, watch
from tests.fake_trt import Script, make
from tests.unit.trt_builds import build, gpu

__all__ = ["gpu"]


def test_inner_phases_are_parts_of_a_step() -> None:
    told: list[float] = []
    progress = Progress(told.append)
    progress.start("all", None, 2)
    progress.step("all", 0)
    progress.start("inner", "all", 4)
    progress.step("inner", 0)
    progress.start("innermost", "inner", 2)
    progress.step("innermost", 0)
    assert told == [0.5, 0.625, 0.6875]
    progress.step("innermost", 1)
    progress.finish("innermost")
    progress.step("inner", 1)
    assert told[3:] == [0.75]


def test_only_the_end_is_the_end() -> None:
    told: list[float] = []
    progress = Progress(told.append)
    progress.start("all", None, 1)
    progress.step("all", 0)
    progress.finish("all")
    assert told == [0.99]
    progress.end()
    assert told == [0.99, 1.0]


def test_a_second_beginning_does_not_go_back() -> None:
    told: list[float] = []
    progress = Progress(told.append)
    for _ in range(3):
        progress.start("all", None, 4)
        for step in range(3):
            progress.step("all", step)
        progress.finish("all")
    assert told == [0.25, 0.5, 0.75, 0.99]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from("abc"), st.sampled_from([None, "a", "b", "c"]), st.integers(-1, 5)),
        st.tuples(st.just("step"), st.sampled_from("abc"), st.integers(-1, 9)),
        st.tuples(st.just("finish"), st.sampled_from("abc")),
    ),
    max_size=40,
)


@given(EVENTS)
def test_whatever_a_builder_claims_the_share_only_grows(events: list[tuple[Any, ...]]) -> None:
    told: list[float] = []
    progress = Progress(told.append)
    for name, *arguments in events:
        getattr(progress, name)(*arguments)
    assert told == sorted(set(told))
    assert all(0 < share < 1 for share in told)


def test_several_threads_may_tell_at_once() -> None:
    told: list[float] = []
    progress = Progress(told.append)
    progress.start("all", None, 4)

    def work(name: str) -> None:
        progress.start(name, "all", 500)
        for step in range(500):
            progress.step(name, step)
        progress.finish(name)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == sorted(set(told))
    assert told[-1] == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("generation", ["10", "11", "rtx"])
def test_a_listener_that_fails_is_left_alone_and_the_build_goes_on(generation: str) -> None:
    calls: list[float] = []

    def fail(share: float) -> None:
        calls.append(share)
        raise BrokenPipeError

    trt, _ = make(generation)
    monitor: Any = watch(trt, Progress(fail))
    monitor.phase_start("all", None, 4)
    assert monitor.step_complete("all", 0) is True
    assert monitor.step_complete("all", 1) is True
    monitor.phase_finish("all")
    assert len(calls) == 1


def test_nothing_that_a_builder_says_raises_into_it() -> None:
    trt, _ = make("10")
    monitor: Any = watch(trt, Progress([].append))
    monitor.phase_start(None, 3, "many")
    assert monitor.step_complete("never started", "what") is True
    monitor.phase_finish(b"")


def test_the_oldest_interface_tells_nothing() -> None:
    trt, _ = make("8.6")
    assert watch(trt, Progress([].append)) is None


@pytest.mark.parametrize(("generation", "share"), [("8.6", []), ("10", [0.5]), ("11", [0.5]), ("rtx", [0.5])])
def test_a_build_tells_what_the_builder_tells(generation: str, share: list[float], tmp_path: Path) -> None:
    def phases(monitor: Any) -> None:
        monitor.phase_start("Building", None, 2)
        monitor.step_complete("Building", 0)

    told: list[float] = []
    build(generation, tmp_path, Script(phases=phases), told=told)
    assert told == [*share, 1.0]
