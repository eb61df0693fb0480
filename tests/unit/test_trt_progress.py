"""Progress of a build: nested phases, reported by several threads of a builder."""

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


def shares(*events: tuple[Any, ...]) -> list[float]:
    """Return the shares that a progress reports for events: names of methods with their arguments."""
    reported: list[float] = []
    progress = Progress(reported.append)
    for name, *arguments in events:
        getattr(progress, name)(*arguments)
    return reported


_ROUND = [("start", "all", None, 4), *(("step", "all", step) for step in range(3)), ("finish", "all")]


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        pytest.param(
            [
                ("start", "all", None, 2),
                ("step", "all", 0),
                ("start", "inner", "all", 4),
                ("step", "inner", 0),
                ("start", "innermost", "inner", 2),
                ("step", "innermost", 0),
                ("step", "innermost", 1),
                ("finish", "innermost"),
                ("step", "inner", 1),
            ],
            [0.5, 0.625, 0.6875, 0.75],
            id="inner phases are parts of a step",
        ),
        pytest.param([("start", "all", None, 1), ("step", "all", 0), ("finish", "all")], [0.99], id="not yet the end"),
        pytest.param([("start", "all", None, 1), ("finish", "all"), ("end",)], [0.99, 1.0], id="the end"),
        pytest.param(_ROUND * 3, [0.25, 0.5, 0.75, 0.99], id="again from the beginning"),
    ],
)
def test_progress_reports_growing_shares(events: list[tuple[Any, ...]], wanted: list[float]) -> None:
    assert shares(*events) == wanted


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from("abc"), st.sampled_from([None, "a", "b", "c"]), st.integers(-1, 5)),
        st.tuples(st.just("step"), st.sampled_from("abc"), st.integers(-1, 9)),
        st.tuples(st.just("finish"), st.sampled_from("abc")),
    ),
    max_size=40,
)


@given(EVENTS)
def test_progress_shares_of_any_events_only_grow(events: list[tuple[Any, ...]]) -> None:
    reported = shares(*events)
    assert reported == sorted(set(reported))
    assert all(0 < share < 1 for share in reported)


def test_progress_accepts_events_of_several_threads() -> None:
    reported: list[float] = []
    progress = Progress(reported.append)
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
    assert reported == sorted(set(reported))
    assert reported[-1] == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("generation", ["10", "11", "rtx"])
def test_watch_listener_that_fails_is_not_called_again(generation: str) -> None:
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


def test_watch_invalid_events_raise_nothing() -> None:
    trt, _ = make("10")
    monitor: Any = watch(trt, Progress([].append))
    monitor.phase_start(None, 3, "many")
    assert monitor.step_complete("never started", "what") is True
    monitor.phase_finish(b"")


def test_watch_oldest_interface_has_no_monitor() -> None:
    trt, _ = make("8.6")
    assert watch(trt, Progress([].append)) is None


@pytest.mark.parametrize(("generation", "share"), [("8.6", []), ("10", [0.5]), ("11", [0.5]), ("rtx", [0.5])])
def test_build_reports_the_builders_progress(generation: str, share: list[float], tmp_path: Path) -> None:
    def phases(monitor: Any) -> None:
        monitor.phase_start("Building", None, 2)
        monitor.step_complete("Building", 0)

    reported: list[float] = []
    build(generation, tmp_path, Script(phases=phases), reported=reported)
    assert reported == [*share, 1.0]
