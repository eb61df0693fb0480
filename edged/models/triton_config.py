"""A model's Triton configuration, as plain data: the fields that have an effect. `triton_text` reads it.

Format: config.pbtxt, the protobuf text form of inference.ModelConfig (protos/model_config.proto). Datatypes have the
names of the Open Inference Protocol, such as FP32. Dims have no batch dimension if `max_batch_size` is above 0; -1 is
an open dimension. Times are in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from edged.errors import ConfigError
from edged.files import leads_outside

VERSIONS = "versions"
_LATEST = re.compile(r"latest(?::\s*([0-9]{1,9}))?")
_VERSION = re.compile(r"[0-9]{1,18}")
_MOST_VERSIONS = 64


class VersionPolicy(msgspec.Struct, frozen=True):
    """Which versions are served. `named` lists these versions. If `named` is empty, the `latest` highest versions are
    served (0: all)."""

    latest: int = 1
    named: tuple[int, ...] = ()

    def choose(self, present: Iterable[int]) -> tuple[int, ...]:
        """Return the versions that are served, the highest first."""
        numbers = sorted(set(present), reverse=True)
        if self.named:
            return tuple(number for number in numbers if number in self.named)
        return tuple(numbers[: self.latest] if self.latest else numbers)

    def __str__(self) -> str:
        """Return the policy as the text of the setting `versions`."""
        if self.named:
            return ",".join(map(str, self.named))
        return f"latest:{self.latest}" if self.latest else "all"


def version_policy(settings: Mapping[str, str]) -> VersionPolicy | None:
    """Return the policy in the settings; None if they have no policy. Raises ConfigError if the policy is invalid."""
    text = settings.get(VERSIONS)
    return None if text is None else parse_versions(text)


def parse_versions(text: str) -> VersionPolicy:
    """Parse the text of the setting `versions`. Raises ConfigError if the text is invalid."""
    word = text.strip()
    if word == "all":
        return VersionPolicy(latest=0)
    latest = _LATEST.fullmatch(word)
    if latest and int(latest[1] or "1") > 0:
        return VersionPolicy(latest=int(latest[1] or "1"))
    numbers = [number.strip() for number in word.split(",")]
    if len(numbers) <= _MOST_VERSIONS and all(map(_VERSION.fullmatch, numbers)):
        return VersionPolicy(named=tuple(sorted({int(number) for number in numbers})))
    raise ConfigError(f'setting {VERSIONS}={text[:40]!r}: write "latest:2", "all", or numbers such as "1,3"')


FILE = "config.pbtxt"
WARMUP_FOLDER = "warmup"
STATE_FOLDER = "initial_state"


class TensorConfig(msgspec.Struct, frozen=True):
    """One input or output. `reshape` is the model's shape if this differs from `dims`, the shape in requests.
    `label_file` of an output is a file in the model's folder with one class name per line. `optional` says that
    requests may leave the input out; only ensembles use this field."""

    name: str
    datatype: str = ""  # empty if not given
    dims: tuple[int, ...] = ()
    reshape: tuple[int, ...] | None = None
    label_file: str = ""
    optional: bool = False

    @property
    def model_dims(self) -> tuple[int, ...]:
        """The dims that the model declares."""
        return self.dims if self.reshape is None else self.reshape


class QueuePolicy(msgspec.Struct, frozen=True):
    """How requests wait in the queue. `size` is the largest number of waiting requests, 0 for the daemon's limit.
    `timeout` is in seconds, 0 for no timeout. `allow_override` lets a request set a shorter timeout. A request that
    waits longer than its timeout is refused, or, with `delay`, served after all other requests."""

    size: int = 0
    timeout: float = 0.0
    allow_override: bool = False
    delay: bool = False


class DynamicBatching(msgspec.Struct, frozen=True):
    """How requests form batches. `max_delay` is in seconds. `levels` is the number of priority levels, which are
    numbered from 1, the highest; 0 if there are no levels."""

    preferred: tuple[int, ...] = ()
    max_delay: float = 0.0
    preserve_ordering: bool = False
    levels: int = 0
    default_level: int = 0
    policy: QueuePolicy = QueuePolicy()
    policies: dict[int, QueuePolicy] = {}


ControlKind = Literal["start", "ready", "end", "corrid"]


class Control(msgspec.Struct, frozen=True):
    """An input that edged fills in. If `kind` is "corrid", the input holds the sequence's id. Otherwise the input holds
    the first value of `false_true` for false, or the second for true. "start" and "end" say whether the request starts
    or ends the sequence; "ready" is always true."""

    input: str
    kind: ControlKind
    datatype: str
    false_true: tuple[float, float] = (0.0, 1.0)


class State(msgspec.Struct, frozen=True):
    """An output that becomes an input of the next request in the sequence.

    The first request gets zeros, or the bytes of `initial_file`, a file in the model's folder `initial_state`.
    """

    input: str
    output: str
    datatype: str
    dims: tuple[int, ...]
    initial_file: str = ""
    initial_dims: tuple[int, ...] = ()


class SequenceBatching(msgspec.Struct, frozen=True):
    """How requests form sequences. `idle` is the longest time between two requests of a sequence, in seconds.
    `strategy` is Triton's scheduling strategy. edged only reports it to clients, and runs requests of sequences one at
    a time."""

    strategy: Literal["direct", "oldest"] = "direct"
    idle: float = 1.0
    controls: tuple[Control, ...] = ()
    states: tuple[State, ...] = ()
    max_candidates: int = 0
    max_delay: float = 0.0
    preferred: tuple[int, ...] = ()


class WarmupInput(msgspec.Struct, frozen=True):
    """One input of a warm-up request. If `data` is "file", `file` is in the model's folder `warmup`."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    data: Literal["zero", "random", "file"] = "zero"
    file: str = ""


class Warmup(msgspec.Struct, frozen=True):
    """A request that is sent `count` times before an engine serves. `batch_size` is 0 for a model without batches."""

    name: str
    batch_size: int = 0
    count: int = 1
    inputs: tuple[WarmupInput, ...] = ()


class Step(msgspec.Struct, frozen=True):
    """A step of an ensemble: one inference with the model `model`. `version` is a number, or empty for the default
    version. `inputs` maps each input of the model to a tensor of the ensemble. `outputs` maps each output of the model
    that the ensemble uses to a tensor of the ensemble."""

    model: str
    version: str
    inputs: dict[str, str]
    outputs: dict[str, str]


class TritonConfig(msgspec.Struct, frozen=True):
    """A model's configuration. `max_batch_size` is 0 if it is not given, or if the model has no batch dimension.
    `steps` are the steps of an ensemble; None if the model is not an ensemble. `unused` has a line for each field
    without effect."""

    max_batch_size: int = 0
    inputs: tuple[TensorConfig, ...] = ()
    outputs: tuple[TensorConfig, ...] = ()
    versions: VersionPolicy | None = None
    dynamic: DynamicBatching | None = None
    sequence: SequenceBatching | None = None
    decoupled: bool = False
    model_file: str = ""
    warmups: tuple[Warmup, ...] = ()
    parameters: dict[str, str] = {}
    steps: tuple[Step, ...] | None = None
    unused: tuple[str, ...] = ()


def require_plain_name(what: str, name: str) -> None:
    """Raise ConfigError for a file name that leads out of its folder, is too long or is not printable."""
    if leads_outside(name) or not name.isprintable() or len(name.encode()) > 255:
        raise ConfigError(f"{what} {name[:80]!r} is not the name of a file in the model's folder")
