"""A way in that is opened anew with another setting, and as before where that cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from edged.api.endpoints import endpoints as lane_module
from edged.api.endpoints.endpoints import Endpoint, Opened
from edged.errors import ConfigError


class FakeListener:
    """Opens for everything but what it refuses; knows what it did."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)
        self.did: list[str] = []
        self.failures = 0  # so many openings fail before one succeeds

    async def open(self, setting: str) -> Opened | None:
        if not setting:
            return None
        if setting in self.refused or self.failures:
            self.failures = max(0, self.failures - 1)
            raise ConfigError(f"cannot listen on {setting}; choose another")
        self.did.append(f"open {setting}")

        async def close(grace: float) -> None:
            self.did.append(f"close {setting} {grace:g}")

        return Opened((setting,), close)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "_PAUSE_SECONDS", 0.0)


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def test_it_is_closed_before_it_is_opened_anew() -> None:
    listener = FakeListener()

    async def work() -> None:
        endpoint = Endpoint("a", listener.open)
        assert list(endpoint.addresses) == []
        await endpoint.start()
        await endpoint.change("b", 2.0)
        assert endpoint.addresses == ("b",)
        await endpoint.change("", 1.0)
        assert list(endpoint.addresses) == []
        await endpoint.change("c", 1.0)
        await endpoint.stop(0.0)
        await endpoint.stop(0.0)

    run(work)
    assert listener.did == ["open a", "close a 2", "open b", "close b 1", "open c", "close c 0"]


def test_what_is_refused_leaves_it_as_it_was() -> None:
    listener = FakeListener("b")

    async def work() -> None:
        endpoint = Endpoint("a", listener.open)
        await endpoint.start()
        for _ in range(2):
            with pytest.raises(ConfigError, match="listen on b"):
                await endpoint.change("b", 0.0)
            assert endpoint.addresses == ("a",)

    run(work)
    assert listener.did[-1] == "open a"


def test_a_place_that_is_free_only_in_a_moment_is_waited_for() -> None:
    listener = FakeListener()

    async def work() -> None:
        endpoint = Endpoint("a", listener.open)
        await endpoint.start()
        listener.failures = 3
        await endpoint.change("b", 0.0)
        assert endpoint.addresses == ("b",)

    run(work)


def test_where_nothing_was_open_nothing_is_waited_for() -> None:
    listener = FakeListener()

    async def work() -> None:
        endpoint = Endpoint("", listener.open)
        await endpoint.start()
        listener.failures = 1
        with pytest.raises(ConfigError):
            await endpoint.change("b", 0.0)
        assert list(endpoint.addresses) == []

    run(work)
