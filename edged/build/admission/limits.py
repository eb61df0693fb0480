"""How long admission may take and how much memory: few for a file that means harm, more for a model that is large."""

from __future__ import annotations

import functools
import os
from typing import Annotated

import msgspec

from edged.build.admission.variables import MEMORY_MB, SECONDS
from edged.build.child import Limits, Patience
from edged.decoding import explain, ready
from edged.device import system
from edged.device.root import Root
from edged.errors import ConfigError
from edged.model.finding import Stage

_USUAL_MB = 100  # of a model that the seconds are for
_TIMES = 3  # what a runtime takes at most for each byte of weights: the file, the tensors, and a copy of them in order
_LEFT = 0.1  # share of the box that admission leaves to everything else
_READING = 0.35  # of the time, for reading the file; the rest is for each runtime, two of which run at a time
_STARVED = 8.0  # times as long again, for a child that others on the box do not let run
_HASHING_SECONDS = 3600.0  # weights beside a model are regular files of a known size, and disks are slow


class AdmissionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What examining a model may take before it is served."""

    seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            le=1e6,
            description="Wall-clock time of all stages together, in seconds, of a model of up to 100 MiB; larger ones"
            " get as much more as they are larger.",
        ),
    ] = 18.0
    memory_mb: Annotated[
        int,
        msgspec.Meta(
            ge=64,
            le=1 << 30,
            description="Mebibytes of any one child, besides three times the size of the model.",
        ),
    ] = 2048

    def seconds_for(self, size_mb: float) -> float:
        """Seconds for a model of that size."""
        return self.seconds * max(1.0, size_mb / _USUAL_MB)

    def most_mb(self, size_mb: float) -> int:
        """Mebibytes for a child that examines a model of that size; never all that the box has."""
        wanted = self.memory_mb + round(_TIMES * size_mb)
        total = box_mb()
        return min(wanted, round(total * (1 - _LEFT))) if total else wanted

    def of_reader(self, size_mb: float) -> Limits:
        """Of the child that reads a file of that size."""
        return self._child(_READING * self.seconds_for(size_mb), size_mb)

    def of_runtime(self, size_mb: float) -> Limits:
        """Of a child that tries a model of that size on a runtime."""
        return self._child((1 - _READING) * self.seconds_for(size_mb), size_mb)

    def _child(self, seconds: float, size_mb: float) -> Limits:
        return Limits(seconds=seconds, memory_mb=self.most_mb(size_mb), stall_seconds=1e6)


USUAL = AdmissionLimits()


def patience(limits: Limits) -> Patience:
    """With a child that wants the processor and does not get it, and with the disk."""
    return Patience(limits.seconds * _STARVED, {Stage.EXTERNAL_DATA.value: _HASHING_SECONDS})


def given(seconds: float | None = None, memory_mb: int | None = None) -> AdmissionLimits:
    """As options say, otherwise as the environment does. ConfigError for what is out of range or no number."""
    said: dict[str, object] = {"seconds": seconds, "memory_mb": memory_mb}
    for field, variable in (("seconds", SECONDS), ("memory_mb", MEMORY_MB)):
        if said[field] is None and os.environ.get(variable, "").strip():
            said[field] = os.environ[variable]
    try:
        return msgspec.convert({k: v for k, v in said.items() if v is not None}, ready(AdmissionLimits), strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"limits of admission ({SECONDS}, {MEMORY_MB} or options): {explain(error)}") from error


@functools.cache
def box_mb() -> int:
    """Mebibytes that this box has, or its cgroup allows where that is less; 0 when unknown."""
    known = system.probe(Root())
    return int(known.get("memory.limit_mb") or known.get("memory.total_mb") or 0)
