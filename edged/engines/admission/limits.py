"""How long admission may take and how much memory: few for a file that means harm, more for a model that is large."""

from __future__ import annotations

import os

import msgspec

from edged.config.limits import AdmissionLimits, Limits
from edged.decoding import explain, ready
from edged.engines.admission.variables import MEMORY_MB, SECONDS
from edged.engines.child import Patience
from edged.errors import ConfigError
from edged.models.finding import Stage

_STARVED = 8.0  # times as long again, for a child that others on the box do not let run
_HASHING_SECONDS = 3600.0  # weights beside a model are regular files of a known size, and disks are slow


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
