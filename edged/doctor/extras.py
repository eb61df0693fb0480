"""Optional packages: which are installed, and whether those load, each tried in a child of its own."""

from __future__ import annotations

import msgspec

from edged import packages
from edged.config.limits import Limits
from edged.doctor.check import Check, Name, ok, unknown, wrong
from edged.doctor.examination import Step
from edged.engines.child import run
from edged.errors import EdgedError
from edged.ipc import job_messages as jobs

_SECONDS = 90.0
_TRIAL = Limits(seconds=_SECONDS, memory_mb=2048)


class Extra(msgspec.Struct, frozen=True):
    """An optional part of edged by the name that pip knows it by: the modules that it is made of, what it is for."""

    name: str
    modules: tuple[str, ...]
    purpose: str

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules whose packages are not installed. Nothing is imported."""
        return tuple(module for module in self.modules if not packages.is_installed(module))


EXTRAS = (
    Extra("media", ("av",), "video files and network cameras"),
    Extra("mqtt", ("paho.mqtt.client",), "results over MQTT"),
    Extra("http", ("uvicorn", "h11"), "clients that speak HTTP"),
    Extra("tracking", ("supervision", "trackers"), "tracker ids"),
)


def steps() -> list[Step]:
    """One for each extra."""
    return [_step(extra) for extra in EXTRAS]


def judge(extra: Extra, refusal: str | None) -> Check:
    """Judges one: `refusal` is why it does not load, empty where it does, None where it was not tried."""
    if refusal is None:
        said = f"not installed; it is for {extra.purpose}"
        return unknown(Name.EXTRA, said, extra.name, packages.install_extra(extra.name))
    if refusal:
        said = f"it is installed and does not load, which {extra.purpose} need: {refusal}"
        again = packages.install(*_packages(extra), option="--force-reinstall")
        return wrong(Name.EXTRA, said, again, extra.name)
    return ok(Name.EXTRA, f"it loads; it is for {extra.purpose}", extra.name)


def _step(extra: Extra) -> Step:
    async def ask() -> list[Check]:
        if extra.missing:
            return [judge(extra, None)]
        try:
            await run(jobs.ImportPackage(extra.modules), jobs.Done, _TRIAL)
        except EdgedError as error:
            return [judge(extra, str(error))]
        return [judge(extra, "")]

    return Step(Name.EXTRA, extra.name, ask, _SECONDS, is_heavy=not extra.missing)


def _packages(extra: Extra) -> tuple[str, ...]:
    return tuple("paho-mqtt" if module.startswith("paho") else module.partition(".")[0] for module in extra.modules)
