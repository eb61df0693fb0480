"""The settings `batch.max`, the most frames or rows of requests of a model that go to its engine together, and
`batch.wait_ms`, how many milliseconds the first of them may wait for the others."""

from __future__ import annotations

from collections.abc import Mapping

from edged.backends import profile
from edged.backends.contract import Signature
from edged.errors import ConfigError
from edged.models.triton_check import is_batchable
from edged.models.triton_config import TritonConfig
from edged.vision.settings import integer, nearest, number

PREFIX = "batch."
_MAX, _WAIT = "batch.max", "batch.wait_ms"
_LARGEST = 256
_LONGEST_MS = 1000.0


def check(settings: Mapping[str, str]) -> None:
    """ConfigError for a name under `batch.` that does not exist, or an impossible value."""
    for key in settings:
        if key.startswith(PREFIX) and key not in (_MAX, _WAIT):
            raise ConfigError(f"there is no setting {key}; {nearest(key, (_MAX, _WAIT))}")
    largest(settings)
    wait_seconds(settings)


def largest(settings: Mapping[str, str]) -> int | None:
    """The most frames at a time; None where nothing is said."""
    return integer(settings, _MAX, 1, _LARGEST)


def wait_seconds(settings: Mapping[str, str]) -> float:
    return (number(settings, _WAIT, 0.0, _LONGEST_MS) or 0.0) / 1e3


def most_rows(signature: Signature, settings: Mapping[str, str], triton: TritonConfig) -> int:
    """The most rows of a tensor request, or 0 where the model has no batch dimension that anybody speaks of.

    config.pbtxt decides where it speaks of tensors; `batch.max` may lower it. Otherwise the model counts as one with
    batches when all its first dimensions are open and a setting says how many rows there may be: `batch.max`, or the
    ranges of `profile.*`. It does not depend on the box, so that clients find the same wherever the model is served.
    """
    said = largest(settings)
    if triton.max_batch_size or triton.inputs or triton.outputs:
        return min(triton.max_batch_size, said or triton.max_batch_size)
    if not is_batchable(signature):
        return 0
    return said or _of_profile(signature, settings)


def _of_profile(signature: Signature, settings: Mapping[str, str]) -> int:
    given = {name: profile.given(settings, name) for name in (spec.name for spec in signature.inputs)}
    return min((each.maximum[0] for each in given.values() if each is not None and each.maximum), default=0)
