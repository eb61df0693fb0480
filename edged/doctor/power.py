"""How fast the box may run now: power mode, clock governor, throttling and temperatures.

Sources: the kernel's `admin-guide/pm/cpufreq`, `ABI/testing/sysfs-devices-system-cpu`, `driver-api/thermal/sysfs-api`
and `hwmon/sysfs-interface`; the Raspberry Pi firmware's get_throttled; the Jetson Linux guide on over-current events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong

_CPUS = "sys/devices/system/cpu/cpu[0-9]*"
_PI = ("sys/devices/platform/soc/soc:firmware/get_throttled", "sys/devices/platform/soc@*/soc*:firmware/get_throttled")
# Bits of the Raspberry Pi's word: now, and the same since it was started, sixteen higher.
_PI_NOW = {0: "too little voltage", 1: "clock capped", 2: "throttled", 3: "at its temperature limit"}
_ITSELF = ("intel_pstate", "amd-pstate", "amd-pstate-epp")  # their "powersave" goes to full speed under load
_SANE = (-40.0, 150.0)  # degrees; a sensor that is off says -256
_HOT, _TOO_HOT = 85.0, 95.0  # where the box does not say itself
_NEAR_CRITICAL = 3.0  # degrees


class Zone(msgspec.Struct, frozen=True):
    """One temperature in degrees Celsius, and where the box slows down or stops, as far as it says."""

    name: str
    now: float
    passive: float | None = None
    critical: float | None = None


class Frequency(msgspec.Struct, frozen=True):
    """How the clock of processors is governed; kHz, 0 where unknown. `capped` below what the processor could do."""

    governor: str
    driver: str
    capped_khz: int = 0
    able_khz: int = 0


def frequencies(root: Root) -> frozenset[Frequency]:
    """The different ways in which the processors are governed; none where the kernel does not do it."""
    found = set()
    for folder in root.glob(f"{_CPUS}/cpufreq"):
        governor, driver = (_text(root, f"{folder}/scaling_{name}") for name in ("governor", "driver"))
        capped, able = _number(root, f"{folder}/scaling_max_freq"), _number(root, f"{folder}/cpuinfo_max_freq")
        if governor or driver:
            found.add(Frequency(governor, driver, capped or 0, able or 0))
    return frozenset(found)


def zones(root: Root) -> tuple[Zone, ...]:
    """Every temperature that makes sense."""
    found = []
    for folder in root.glob("sys/class/thermal/thermal_zone[0-9]*"):
        now = _degrees(root, f"{folder}/temp")
        if now is not None:
            trips = _trips(root, folder)
            found.append(Zone(_text(root, f"{folder}/type") or folder.rpartition("/")[2], now, *trips))
    return tuple(found)


def throttled(root: Root) -> tuple[str, ...]:
    """What slowed the box down since it was started, in a few words each; what does so now begins with "now: "."""
    return (*_pi(root), *_low_voltage(root), *_overcurrent(root), *_cores(root))


def knows_throttling(root: Root) -> bool:
    """Whether anything here would tell."""
    patterns = (*_PI, f"{_CPUS}/thermal_throttle/core_throttle_count", "sys/class/hwmon/hwmon*/oc[0-9]*_event_cnt")
    return any(root.glob(pattern) for pattern in patterns) or bool(_volt(root))


def mode(facts: Mapping[str, str], governed: Iterable[Frequency]) -> Iterator[Check]:
    """Judges the power mode, and the governor of the processors' clock."""
    governed, jetson = sorted(governed, key=str), facts.get("jetson.power_mode", "")
    if jetson:
        full = (
            "" if jetson.startswith("MAXN") else "; engines are timed and keyed in it, and nvpmodel -m 0 is full speed"
        )
        yield ok(Name.POWER_MODE, f"nvpmodel says {jetson}{full}", "nvpmodel")
    elif facts.get("jetson.l4t"):
        yield unknown(Name.POWER_MODE, "nvpmodel does not say which power mode is set", "nvpmodel")
    for each in governed:
        if each.governor == "powersave" and each.driver not in _ITSELF:
            yield warning(
                Name.POWER_MODE,
                f"the governor powersave of {each.driver or 'cpufreq'} keeps processors at their lowest clock",
                "echo schedutil | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
                "cpufreq",
            )
        elif 0 < each.capped_khz < each.able_khz:
            yield warning(
                Name.POWER_MODE,
                f"processors are capped at {each.capped_khz // 1000} of {each.able_khz // 1000} MHz",
                "raise scaling_max_freq in /sys/devices/system/cpu/cpu*/cpufreq, or leave it if that is meant",
                "cpufreq",
            )
        else:
            yield ok(Name.POWER_MODE, f"governor {each.governor or 'unknown'} of {each.driver or 'cpufreq'}", "cpufreq")
    if not governed and not facts.get("jetson.l4t"):
        yield unknown(Name.POWER_MODE, "nothing here says how the processors' clock is governed")


def throttling(events: tuple[str, ...], is_known: bool) -> Iterator[Check]:
    """Judges what slowed the box down."""
    remedy = "give it a better power supply or better cooling; engines were perhaps timed while it was slow"
    for event in events:
        happens = event.startswith("now: ")
        yield (wrong if happens else warning)(Name.THROTTLING, event, remedy)
    if not events:
        yield (
            ok(Name.THROTTLING, "none since the start") if is_known else unknown(Name.THROTTLING, "nothing here tells")
        )


def temperature(found: tuple[Zone, ...]) -> Iterator[Check]:
    """Judges the temperatures: the hottest where all is well, otherwise each that is not."""
    remedy = "better cooling, a lower power mode, or fewer frames a second"
    bad = []
    for zone in found:
        critical = zone.critical if zone.critical is not None else _TOO_HOT + _NEAR_CRITICAL
        slow = zone.passive if zone.passive is not None else _HOT
        said = f"{zone.now:.0f} °C"
        if zone.now >= critical - _NEAR_CRITICAL:
            bad.append(wrong(Name.TEMPERATURE, f"{said}; the box stops at {critical:.0f} °C", remedy, zone.name))
        elif zone.now >= slow:
            bad.append(warning(Name.TEMPERATURE, f"{said}; it slows down from {slow:.0f} °C on", remedy, zone.name))
    yield from bad
    if not found:
        yield unknown(Name.TEMPERATURE, "no sensor can be read")
    elif not bad:
        hottest = max(found, key=lambda zone: zone.now)
        yield ok(Name.TEMPERATURE, f"{hottest.now:.0f} °C at {hottest.name}, the hottest of {len(found)}")


def _trips(root: Root, folder: str) -> tuple[float | None, float | None]:
    """The lowest temperature from which it slows down, and the lowest at which it stops."""
    found: dict[str, list[float]] = {"passive": [], "critical": []}
    for path in root.glob(f"{folder}/trip_point_*_type"):
        kind, at = _text(root, path), _degrees(root, path.removesuffix("_type") + "_temp")
        if kind in found and at is not None and at > 0:
            found[kind].append(at)
    return min(found["passive"], default=None), min(found["critical"], default=None)


def _pi(root: Root) -> Iterator[str]:
    for path in (path for pattern in _PI for path in root.glob(pattern)):
        text = _text(root, path)
        if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,8}", text):
            continue
        word = int(text, 16)
        for bit, what in _PI_NOW.items():
            if word >> bit & 1:
                yield f"now: {what}"
            elif word >> bit + 16 & 1:
                yield f"{what}, since the start"


def _volt(root: Root) -> list[str]:
    return [path for path in root.glob("sys/class/hwmon/hwmon*/name") if _text(root, path) == "rpi_volt"]


def _low_voltage(root: Root) -> Iterator[str]:
    if root.glob(_PI[0]) or root.glob(_PI[1]):
        return  # which says the same
    for path in _volt(root):
        if _number(root, f"{path.rpartition('/')[0]}/in0_lcrit_alarm"):
            yield "now: too little voltage"


def _overcurrent(root: Root) -> Iterator[str]:
    counts = [_number(root, path) or 0 for path in root.glob("sys/class/hwmon/hwmon*/oc[0-9]*_event_cnt")]
    if sum(counts):
        yield f"throttled {sum(counts)} times because it drew too much current, since the start"


def _cores(root: Root) -> Iterator[str]:
    """Every core of a package counts the package's; the largest number is as often as it happened."""
    for kind in ("core", "package"):
        counts = [_number(root, path) or 0 for path in root.glob(f"{_CPUS}/thermal_throttle/{kind}_throttle_count")]
        if max(counts, default=0):
            yield f"a processor {kind} was throttled {max(counts)} times for its temperature, since the start"


def _degrees(root: Root, path: str) -> float | None:
    thousandths = _number(root, path)
    if thousandths is None or not _SANE[0] <= thousandths / 1000 <= _SANE[1]:
        return None
    return thousandths / 1000


def _number(root: Root, path: str) -> int | None:
    text = _text(root, path)
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None


def _text(root: Root, path: str) -> str:
    return (root.read(path) or "").strip()
