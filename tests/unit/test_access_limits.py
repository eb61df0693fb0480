"""What one client may have under way."""

from __future__ import annotations

import pytest

from edged.api.auth import limits
from edged.api.auth.limits import Bounds, ClientLimits
from edged.config import Access
from edged.errors import ClientLimited

_BOUNDS = Bounds(streams=2, requests=3, size=100, rate=10.0)


def test_requests_at_a_time() -> None:
    counted = ClientLimits(_BOUNDS)
    usage = counted.usage("a", "token a", 0.0)
    for _ in range(3):
        counted.request(usage, 1, 0.0)
    with pytest.raises(ClientLimited, match=r"token a has 3 requests under way, the most it may; try again in 0\.1 s"):
        counted.request(usage, 1, 0.0)
    counted.request(counted.usage("b", "token b", 0.0), 1, 0.0)
    counted.end(usage, 1)
    counted.request(usage, 1, 0.0)
    assert counted.refused == {"requests": 1}


def test_bytes_at_a_time_but_one_request_of_any_size() -> None:
    counted = ClientLimits(_BOUNDS)
    usage = counted.usage("a", "a", 0.0)
    counted.request(usage, 1000, 0.0)
    with pytest.raises(ClientLimited, match="MiB"):
        counted.request(usage, 1, 0.0)
    counted.end(usage, 1000)
    counted.request(usage, 60, 0.0)
    with pytest.raises(ClientLimited):
        counted.request(usage, 41, 0.0)
    counted.request(usage, 40, 0.0)
    assert counted.refused == {"bytes": 2}


def test_requests_a_second_and_when_to_come_again() -> None:
    counted = ClientLimits(Bounds(streams=99, requests=99, size=100, rate=10.0))
    usage = counted.usage("a", "a", 0.0)
    for _ in range(10):
        counted.request(usage, 0, 0.0)
    with pytest.raises(ClientLimited) as raised:
        counted.request(usage, 0, 0.05)
    assert raised.value.seconds == pytest.approx(0.05)
    counted.request(usage, 0, 0.11)
    for _ in range(10):  # a pause earns a second's worth and no more
        counted.request(usage, 0, 1000.0)
    with pytest.raises(ClientLimited):
        counted.stream(usage, 1000.0)
    assert counted.refused == {"rate": 2}


def test_streams_at_a_time() -> None:
    counted = ClientLimits(_BOUNDS)
    usage = counted.usage("a", "a", 0.0)
    counted.stream(usage, 0.0)
    counted.stream(usage, 0.0)
    with pytest.raises(ClientLimited, match="2 streams"):
        counted.stream(usage, 0.0)
    counted.end_stream(usage)
    counted.stream(usage, 0.0)


def test_clients_that_have_nothing_under_way_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MOST_CLIENTS", 8)
    counted = ClientLimits(_BOUNDS)
    busy = counted.usage("busy", "busy", 0.0)
    counted.stream(busy, 0.0)
    for number in range(1000):
        counted.usage(str(number), "x", 0.0)
    assert len(counted._clients) <= 9
    assert counted.usage("busy", "busy", 0.0) is busy


def test_the_defaults_are_bounds() -> None:
    bounds = Bounds.of(Access())
    assert all(0 < bound < 1 << 40 for bound in (bounds.streams, bounds.requests, bounds.size, bounds.rate))
