"""Calls of every method that end early: the daemon survives, answers, and keeps no resources of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edged.api.auth import policy
from tests.attack import early_close
from tests.fuzz import goods
from tests.fuzz.live import FuzzedDaemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[FuzzedDaemon]:
    with FuzzedDaemon() as found:
        for name in (goods.NUMBERS, goods.SHAPES):
            found.ready(name)
        yield found
        assert found.stop() == 0


def test_early_close_knows_every_method_of_the_daemon(daemon: FuzzedDaemon) -> None:
    known = {method.path for method in goods.methods()}
    assert known == set(policy.METHODS)
    assert {path.split("/")[1] for path in known} == early_close.services(daemon)


def test_early_close_of_every_method_in_every_way_leaves_nothing(daemon: FuzzedDaemon) -> None:
    early_close.sweep(daemon, 60)  # warm up: code that runs first is loaded first
    print(early_close.sweep(daemon, 300, seed=1))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_early_close_of_thousands_of_calls_leaves_nothing(daemon: FuzzedDaemon) -> None:
    print(early_close.sweep(daemon, 5000, seed=2))
