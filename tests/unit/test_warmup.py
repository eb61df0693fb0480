"""The requests that a model's configuration wants made before an engine serves: what a failure says of the engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from edged.engines.probe import warm_up
from edged.errors import (
    DeadlineExceeded,
    EdgedError,
    EngineUnusable,
    HostLost,
    InvalidInput,
    NotReady,
    OutOfMemory,
    Overloaded,
    TooLarge,
    WarmupFailed,
)
from edged.ipc import messages as m
from edged.ipc.arena import Arena
from edged.models.model import Model
from edged.models.triton_config import TritonConfig, Warmup, WarmupInput
from tests.unit.control_room import entry, inspection
from tests.waiting import run

BYTES = 16  # of one input


class Host:
    """As much of a link as a warm-up takes. `outcomes` are errors, or None for an answer."""

    def __init__(self, capacity: int = 1 << 12) -> None:
        self.arena = Arena(capacity)
        self.outcomes: deque[EdgedError | None] = deque()
        self.probe_session = 0

    def submit(self, make: Callable[[int], m.Infer]) -> asyncio.Future[m.Answer]:
        make(1)
        self.probe_session += 1
        outcome = self.outcomes.popleft() if self.outcomes else None
        future: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        if outcome is None:
            future.set_result(m.Answer(1, (), m.Times()))
        else:
            future.set_exception(outcome)
        return future


def model(count: int = 1) -> Model:
    inputs = (WarmupInput("x", "FP32", (1, 4)),)
    config = TritonConfig(warmups=(Warmup("w", count=count, inputs=inputs),))
    return Model.of(msgspec.structs.replace(entry(), triton=config), inspection())


def warm(host: Host, of: Model | None = None) -> None:
    link: Any = host
    run(warm_up(of or model(), link, 1))


def test_warm_up_runs_as_often_as_configured_and_frees_the_arena() -> None:
    host = Host()
    warm(host, model(count=3))
    assert (host.probe_session, host.arena.taken) == (3, 0)


@pytest.mark.parametrize("kind", [OutOfMemory, Overloaded, NotReady, DeadlineExceeded])
def test_warm_up_temporary_error_does_not_blame_the_engine(kind: type[EdgedError]) -> None:
    host = Host()
    host.outcomes.append(kind("not now"))
    with pytest.raises(kind, match="'w'") as raised:
        warm(host)
    assert not isinstance(raised.value, WarmupFailed)
    assert host.arena.taken == 0


def test_a_host_that_is_lost_over_it_is_lost_and_nothing_else() -> None:
    host = Host()
    host.outcomes.append(HostLost("it died"))
    with pytest.raises(HostLost, match=r"^it died$"):
        warm(host)


def test_an_arena_that_is_full_of_requests_is_no_failure_of_the_warm_up() -> None:
    host = Host(64)
    span = host.arena.reserve(64)
    with pytest.raises(Overloaded):
        warm(host)
    host.arena.release(span)
    warm(host)
    assert host.probe_session == 1


@pytest.mark.parametrize("kind", [EngineUnusable, InvalidInput, TooLarge])
def test_warm_up_permanent_error_blames_the_engine(kind: type[EdgedError]) -> None:
    host = Host()
    host.outcomes.append(kind("out of range"))
    with pytest.raises(WarmupFailed, match="'w'"):
        warm(host)


def test_a_request_that_is_larger_than_the_arena_will_never_fit() -> None:
    host = Host(8 * 64)
    wide = WarmupInput("x", "FP32", (1, 4 * BYTES * 64))
    config = TritonConfig(warmups=(Warmup("w", inputs=(wide,)),))
    with pytest.raises(WarmupFailed, match=r"hosts\.arena_mb"):
        warm(host, Model.of(msgspec.structs.replace(entry(), triton=config), inspection(shape=(1, "n"))))
