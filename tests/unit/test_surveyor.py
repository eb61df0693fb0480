"""Changes of the device's facts: reported once, and planned for unless a reboot is pending."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from edged.device.fingerprint import Fingerprint
from edged.device.nvidia import REBOOT_PENDING
from edged.engines import surveyor as surveyor_module
from edged.engines.surveyor import Surveyor
from edged.events import DeviceChanged, EventLog, FactChange
from tests.unit.control_room import emitted

_OLD = Fingerprint({"nvidia.driver": "550", "nvidia.kernel_module": "550"})
_HALF = Fingerprint({"nvidia.driver": "560", "nvidia.kernel_module": "550", "nvidia.state": REBOOT_PENDING})
_NEW = Fingerprint({"nvidia.driver": "560", "nvidia.kernel_module": "560"})


@pytest.mark.parametrize(
    ("found", "pending", "planned", "reports"),
    [
        pytest.param((_OLD, _NEW, _NEW), [False] * 3, [_NEW], 1, id="changed facts are reported once"),
        pytest.param((_HALF, _HALF), [True, True], [], 1, id="a pending reboot plans nothing"),
        pytest.param((_HALF, _NEW), [True, False], [_NEW], 2, id="the reboot is over"),
        pytest.param((_HALF, _OLD), [True, False], [_OLD], 2, id="the driver was restored"),
    ],
)
async def test_refresh_plans_for_changed_facts_unless_a_reboot_is_pending(
    found: tuple[Fingerprint, ...],
    pending: list[bool],
    planned: list[Fingerprint],
    reports: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue, seen, events, plans = iter(found), list[bool](), EventLog(), list[Fingerprint]()
    monkeypatch.setattr(surveyor_module, "probe", lambda: next(queue))
    surveyor = Surveyor(_OLD, events, plans.append)
    for _ in found:
        await surveyor.refresh()
        seen.append(surveyor.is_reboot_pending)
    assert (seen, plans, surveyor.fingerprint) == (pending, planned, [_OLD, *planned][-1])
    reported = emitted(events, DeviceChanged)
    assert [len(each.changes) for each in reported] == [2] * reports
    assert reported[0].changes[0] == FactChange("nvidia.driver", "550", "560")


async def test_watch_calls_looked_after_each_look_at_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Fingerprint] = []

    async def ticks(folders: object) -> AsyncGenerator[None, None]:
        for _ in range(2):
            yield

    async def look() -> None:
        looked.append(surveyor.fingerprint)

    monkeypatch.setattr(surveyor_module, "changes", ticks)
    monkeypatch.setattr(surveyor_module, "probe", lambda: _OLD)
    surveyor = Surveyor(_OLD, EventLog(), lambda _: None, look)
    await surveyor.watch()
    assert looked == [_OLD, _OLD]
