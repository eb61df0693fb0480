"""How much time, memory and disk the daemon's child processes may take."""

from __future__ import annotations

import functools
import os
from typing import Annotated, Final

import msgspec

from edged.decoding import explain, ready
from edged.device import system
from edged.device.root import Root
from edged.errors import ConfigError

_USUAL_MB = 100  # of a model that the seconds of admission are for
_TIMES = 3  # what a runtime takes at most for each byte of weights: the file, the tensors, and a copy of them in order
_LEFT = 0.1  # share of the box that admission leaves to everything else
ADMISSION_SECONDS: Final = "EDGED_ADMISSION_SECONDS"
ADMISSION_MEMORY_MB: Final = "EDGED_ADMISSION_MEMORY_MB"
_READING = 0.35  # of the time, for reading the file; the rest is for each runtime, two of which run at a time


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a child that builds may use, together with the processes that it starts."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=1e6, description="Wall-clock time, in seconds.")] = 3600.0
    memory_mb: Annotated[int, msgspec.Meta(gt=0, le=1 << 30, description="Mebibytes of resident memory.")] = 8192
    stall_seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            le=1e6,
            description="How many seconds it may show no sign of life, which is a message or processor time.",
        ),
    ] = 600.0
    disk_mb: Annotated[
        int, msgspec.Meta(ge=0, le=1 << 30, description="Mebibytes of any one file that it writes; 0 for no limit.")
    ] = 0


class HostLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine host, and a request in it, may take where a model says nothing else."""

    arena_mb: Annotated[int, msgspec.Meta(gt=0, le=1 << 20, description="Mebibytes of a host's shared memory.")] = 512
    job_seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            le=86400,
            description="Seconds of an engine's time that a request may take; then it is stopped.",
        ),
    ] = 120.0
    open_seconds: Annotated[
        float, msgspec.Meta(gt=0, le=86400, description="Seconds for opening or closing an engine.")
    ] = 600.0
    output_mb: Annotated[int, msgspec.Meta(gt=0, le=1 << 20, description="Mebibytes of a request's outputs.")] = 512
    memory_mb: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1 << 30,
            description="Mebibytes of a host's own memory; 0 for all but what the rest of the box needs.",
        ),
    ] = 0


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


@functools.cache
def box_mb() -> int:
    """Mebibytes that this box has, or its cgroup allows where that is less; 0 when unknown."""
    known = system.probe(Root())
    return int(known.get("memory.limit_mb") or known.get("memory.total_mb") or 0)


def admission_limits(seconds: float | None = None, memory_mb: int | None = None) -> AdmissionLimits:
    """Limits from command-line options, otherwise from the environment; used without a daemon's configuration.

    ConfigError for a value that is out of range or not a number.
    """
    said: dict[str, object] = {"seconds": seconds, "memory_mb": memory_mb}
    for field, variable in (("seconds", ADMISSION_SECONDS), ("memory_mb", ADMISSION_MEMORY_MB)):
        if said[field] is None and os.environ.get(variable, "").strip():
            said[field] = os.environ[variable]
    try:
        return msgspec.convert({k: v for k, v in said.items() if v is not None}, ready(AdmissionLimits), strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"limits of admission ({ADMISSION_SECONDS}, {ADMISSION_MEMORY_MB} or options): {explain(error)}"
        ) from error
