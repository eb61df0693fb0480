"""Changes of the device's facts are reported once and planned for, but not while a reboot is pending."""

from __future__ import annotations

import asyncio

import pytest

from edged.device.fingerprint import Fingerprint
from edged.device.nvidia import REBOOT_PENDING
from edged.engines import surveyor as surveyor_module
from edged.engines.surveyor import Surveyor
from edged.events import DeviceChanged, EventLog

_OLD = Fingerprint({"nvidia.driver": "550", "nvidia.kernel_module": "550"})
_HALF = Fingerprint({"nvidia.driver": "560", "nvidia.kernel_module": "550", "nvidia.state": REBOOT_PENDING})
_NEW = Fingerprint({"nvidia.driver": "560", "nvidia.kernel_module": "560"})


class Watched:
    """A surveyor that finds the given fingerprints, one per refresh, with what it planned for and reported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: Fingerprint) -> None:
        self.planned: list[Fingerprint] = []
        self.changes: list[int] = []
        self.pending: list[bool] = []
        queue = iter(found)
        monkeypatch.setattr(surveyor_module, "probe", lambda: next(queue))

        async def work() -> list[DeviceChanged]:
            events = EventLog()
            surveyor = Surveyor(_OLD, events, self.planned.append)
            for _ in found:
                self.changes.append(len(await surveyor.refresh()))
                self.pending.append(surveyor.is_reboot_pending)
            self.fingerprint = surveyor.fingerprint
            return [event.what async for event in events.follow(live=False) if isinstance(event.what, DeviceChanged)]

        self.reported = asyncio.run(work())


def test_refresh_changed_facts_are_reported_once_and_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, _OLD, _NEW, _NEW)
    assert watched.changes == [0, 2, 0]
    assert watched.planned == [_NEW]
    assert watched.fingerprint == _NEW
    (reported,) = watched.reported
    assert [(change.name, change.old, change.new) for change in reported.changes] == [
        ("nvidia.driver", "550", "560"),
        ("nvidia.kernel_module", "550", "560"),
    ]


def test_refresh_pending_reboot_plans_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch, _HALF, _HALF)
    assert watched.pending == [True, True]
    assert watched.planned == []
    assert watched.fingerprint == _OLD
    assert len(watched.reported) == 1


def test_refresh_after_the_reboot_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, _HALF, _NEW)
    assert watched.pending == [True, False]
    assert watched.planned == [_NEW]


def test_refresh_restored_driver_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, _HALF, _OLD)
    assert watched.pending == [True, False]
    assert watched.planned == [_OLD]
    assert watched.fingerprint == _OLD
