"""The clock: boxes without a battery start in the past, and every certificate, log and time in the store goes with it.

Sources: adjtimex(2), systemd-timesyncd.service(8).
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
from collections.abc import Iterable
from pathlib import Path

import msgspec

import edged
from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong

_SYNCHRONIZED = "run/systemd/timesync/synchronized"
_SET = "see: timedatectl status; set it with: timedatectl set-ntp true, or date -s"
_LEEWAY_SECONDS = 300.0  # by which two boxes' clocks differ without harm
_LAST_YEAR = 2100
_STA_UNSYNC = 0x40  # of timex.status
_STATUS_WORD = 5  # of struct timex: modes (and padding), offset, freq, maxerror, esterror, then status
_TIMEX_BYTES = 512  # twice what the structure has


class Moment(msgspec.Struct, frozen=True):
    """Seconds since the epoch: `now`, when edged was installed here, and the latest time in the store (0: none)."""

    now: float
    installed: float = 0.0
    latest_engine: float = 0.0


def installed() -> float:
    """When the newest file of this package was put here; 0 where that cannot be seen."""
    files = Path(edged.__file__).parent.glob("*.py")
    times = [0.0]
    for file in files:
        with contextlib.suppress(OSError):
            times.append(file.stat().st_ctime)  # the modification time is the packager's
    return max(times)


def judge(moment: Moment) -> Check:
    """Judges the time that it is said to be."""
    try:
        said = datetime.datetime.fromtimestamp(moment.now, tz=datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return wrong(Name.CLOCK, f"the clock says {moment.now:g} seconds since 1970, which is no date", _SET)
    shown = f"{said:%Y-%m-%d %H:%M:%S} UTC"
    for then, what in (
        (moment.installed, "before edged was installed"),
        (moment.latest_engine, "before the newest engine of the store was made"),
    ):
        if moment.now < then - _LEEWAY_SECONDS:
            return wrong(Name.CLOCK, f"the clock says {shown}, which is {what} ({_date(then)})", _SET)
    if said.year > _LAST_YEAR:
        return wrong(Name.CLOCK, f"the clock says {shown}", _SET)
    return ok(Name.CLOCK, f"it is {shown}")


def latest(times: Iterable[float]) -> float:
    """The latest of the store's times, 0 without any."""
    return max(times, default=0.0)


def is_synchronized(root: Root) -> bool | None:
    """Whether something keeps the clock right: systemd's mark, otherwise the kernel's. None where neither tells."""
    if root.exists(_SYNCHRONIZED):
        return True
    return _kernel_says() if root.is_live else None


def has_battery(root: Root) -> bool:
    """Whether the box has a clock that runs while it is off."""
    return bool(root.glob("sys/class/rtc/rtc[0-9]*"))


def judge_sync(synchronized: bool | None, battery: bool) -> Check:
    """Judges who keeps the clock."""
    if synchronized is None:
        return unknown(Name.CLOCK_SYNC, "nothing tells whether the clock is kept by NTP")
    if synchronized:
        return ok(Name.CLOCK_SYNC, "it is kept by NTP")
    more = "" if battery else ", and the box has no battery clock: it may start in the past"
    remedy = "timedatectl set-ntp true, or install chrony"
    return warning(Name.CLOCK_SYNC, f"the clock is not synchronised{more}", remedy)


def _kernel_says() -> bool | None:
    """Asked, not set: with `modes` zero nobody needs a right for it."""
    buffer = (ctypes.c_long * (_TIMEX_BYTES // ctypes.sizeof(ctypes.c_long)))()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    return (
        not ctypes.cast(ctypes.byref(buffer, _STATUS_WORD * ctypes.sizeof(ctypes.c_long)), _IntPointer)[0] & _STA_UNSYNC
    )


_IntPointer = ctypes.POINTER(ctypes.c_int)


def _date(then: float) -> str:
    try:
        return f"{datetime.datetime.fromtimestamp(then, tz=datetime.timezone.utc):%Y-%m-%d}"
    except (OverflowError, ValueError, OSError):
        return f"{then:g} seconds since 1970"
