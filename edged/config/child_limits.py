"""Limits of time, memory and disk for the daemon's child processes."""

from __future__ import annotations

import functools
import os
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from edged.decoding import explain, ready
from edged.device import system
from edged.device.root import Root
from edged.errors import ConfigError

_USUAL_MB = 100  # a model of up to this size gets exactly the configured seconds, a larger one proportionally more
_TIMES = 3  # most memory per byte of weights: the file, the tensors, and a reordered copy
_LEFT = 0.1  # share of the box's memory that admission never uses
ADMISSION_SECONDS: Final = "EDGED_ADMISSION_SECONDS"
ADMISSION_MEMORY_MB: Final = "EDGED_ADMISSION_MEMORY_MB"
_READING = 0.35  # share of the time for the child that reads the file; the child of each runtime gets the rest


_Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]
_Day: TypeAlias = Annotated[float, Meta(gt=0, le=86400)]
_Mebibytes: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 30)]
_HostMebibytes: TypeAlias = Annotated[int, Meta(gt=0, le=1 << 20)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a build: its child process and the processes that this child starts, together."""

    seconds: Annotated[_Seconds, Meta(description="Wall-clock time, in seconds.")] = 3600.0
    memory_mb: Annotated[int, Meta(gt=0, le=1 << 30, description="Resident memory, in MiB.")] = 8192
    stall_seconds: Annotated[
        _Seconds, Meta(description="Longest time without a message and without using the processor, in seconds.")
    ] = 600.0
    disk_mb: Annotated[
        _Mebibytes,
        Meta(
            description="Largest file that a build may write, in MiB; 0: as much as engines.budget_mb and"
            " the disk allow."
        ),
    ] = 0


class HostLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of an engine host and of a request in it, unless the model's settings change them."""

    arena_mb: Annotated[_HostMebibytes, Meta(description="A host's shared memory, in MiB.")] = 512
    job_seconds: Annotated[
        _Day, Meta(description="Inference time of a request, in seconds, after which the request is stopped.")
    ] = 120.0
    open_seconds: Annotated[_Day, Meta(description="Time to open or close an engine, in seconds.")] = 600.0
    output_mb: Annotated[_HostMebibytes, Meta(description="Size of a request's outputs, in MiB.")] = 512
    memory_mb: Annotated[
        _Mebibytes,
        Meta(
            description="Private memory of a host, in MiB; 0: the memory of the box minus 10 % of it, or minus"
            " 512 MiB if that is more, but at least half of the memory of the box."
        ),
    ] = 0


class AdmissionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of the checks that a model passes before it is served."""

    seconds: Annotated[
        _Seconds,
        Meta(
            description="Wall-clock time of all stages together, in seconds, for a model of up to 100 MiB; a larger"
            " model gets proportionally more."
        ),
    ] = 18.0
    memory_mb: Annotated[
        int,
        Meta(ge=64, le=1 << 30, description="Memory of one child, in MiB; three times the size of the model is added."),
    ] = 2048

    def seconds_for(self, size_mb: float) -> float:
        """Return the wall-clock seconds of all stages together for a model of `size_mb`."""
        return self.seconds * max(1.0, size_mb / _USUAL_MB)

    def most_mb(self, size_mb: float) -> int:
        """Return the MiB of memory for a child that examines a model of `size_mb`: at most 90 % of the box's memory."""
        wanted = self.memory_mb + round(_TIMES * size_mb)
        total = box_mb()
        return min(wanted, round(total * (1 - _LEFT))) if total else wanted

    def of_reader(self, size_mb: float) -> Limits:
        """Return the limits of the child that reads a model file of `size_mb`."""
        return self._child(_READING * self.seconds_for(size_mb), size_mb)

    def of_runtime(self, size_mb: float) -> Limits:
        """Return the limits of a child that tries a model of `size_mb` on a runtime."""
        return self._child((1 - _READING) * self.seconds_for(size_mb), size_mb)

    def _child(self, seconds: float, size_mb: float) -> Limits:
        return Limits(seconds=seconds, memory_mb=self.most_mb(size_mb), stall_seconds=1e6)


@functools.cache
def box_mb() -> int:
    """Return the memory of this box in MiB, or its cgroup's limit if that is lower; 0 if unknown."""
    known = system.probe(Root())
    return int(known.get("memory.limit_mb") or known.get("memory.total_mb") or 0)


def admission_limits(seconds: float | None = None, memory_mb: int | None = None) -> AdmissionLimits:
    """Return the limits of admission from options or, without an option, from the environment. Commands without a
    daemon's configuration use this.

    Raises ConfigError if a value is out of range or not a number.
    """
    given: dict[str, object] = {"seconds": seconds, "memory_mb": memory_mb}
    for field, variable in (("seconds", ADMISSION_SECONDS), ("memory_mb", ADMISSION_MEMORY_MB)):
        if given[field] is None and os.environ.get(variable, "").strip():
            given[field] = os.environ[variable]
    try:
        return msgspec.convert({k: v for k, v in given.items() if v is not None}, ready(AdmissionLimits), strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"a limit for the examination of models is invalid: {explain(error)}; correct --seconds or --memory-mb, or"
            f" {ADMISSION_SECONDS} or {ADMISSION_MEMORY_MB} in the environment"
        ) from error
