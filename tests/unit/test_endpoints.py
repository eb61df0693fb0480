"""Endpoints that are opened again with another setting, or with the previous one if that fails."""

from __future__ import annotations

import pytest

from edged.api.endpoints.endpoints import Endpoint, Opened
from edged.errors import ConfigError
from tests.waiting import run


class FakeListener:
    """Opens for every setting except `refused`, and records its calls."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)
        self.did: list[str] = []
        self.failures = 0  # number of openings that fail before one succeeds

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


async def started(listener: FakeListener, setting: str) -> Endpoint[str]:
    endpoint = Endpoint(setting, listener.open, pause=0.0)
    assert endpoint.addresses == ()
    await endpoint.start()
    return endpoint


def test_change_closes_before_it_opens() -> None:
    listener = FakeListener()

    async def work() -> None:
        endpoint = await started(listener, "a")
        for setting, grace in (("b", 2.0), ("", 1.0), ("c", 1.0)):
            await endpoint.change(setting, grace)
            assert endpoint.addresses == ((setting,) if setting else ())
        await endpoint.stop(0.0)
        await endpoint.stop(0.0)

    run(work())
    assert listener.did == ["open a", "close a 2", "open b", "close b 1", "open c", "close c 0"]


async def test_change_that_fails_opens_the_previous_setting() -> None:
    endpoint = await started(FakeListener("b"), "a")
    for _ in range(2):
        with pytest.raises(ConfigError):
            await endpoint.change("b", 0.0)
        assert endpoint.addresses == ("a",)


@pytest.mark.parametrize(("before", "failures", "after"), [("a", 3, ("b",)), ("", 1, None)])
async def test_change_of_an_open_endpoint_is_retried(before: str, failures: int, after: tuple[str, ...] | None) -> None:
    listener = FakeListener()
    endpoint = await started(listener, before)
    listener.failures = failures
    if after is not None:
        await endpoint.change("b", 0.0)
    else:
        with pytest.raises(ConfigError):
            await endpoint.change("b", 0.0)
    assert endpoint.addresses == (after or ())
