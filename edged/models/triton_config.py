"""What a model's Triton configuration says, as far as edged acts on it. Plain data; `triton_text` reads it.

Format: config.pbtxt, the protobuf text form of inference.ModelConfig (protos/model_config.proto). Datatypes are the
protocol's names; dims have no batch dimension where `max_batch_size` is above 0, and -1 is an open one. Times are
seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from edged.errors import ConfigError

VERSIONS = "versions"
_LATEST = re.compile(r"latest(?::\s*([0-9]{1,9}))?")
_VERSION = re.compile(r"[0-9]{1,18}")
_MOST_VERSIONS = 64


class VersionPolicy(msgspec.Struct, frozen=True):
    """The `latest` highest numbers, 0 for all of them; or those that are `named`, whatever else there is."""

    latest: int = 1
    named: tuple[int, ...] = ()

    def choose(self, present: Iterable[int]) -> tuple[int, ...]:
        """Those of the numbers that are served, the highest first."""
        numbers = sorted(set(present), reverse=True)
        if self.named:
            return tuple(number for number in numbers if number in self.named)
        return tuple(numbers[: self.latest] if self.latest else numbers)

    def __str__(self) -> str:
        """As the setting is written."""
        if self.named:
            return ",".join(map(str, self.named))
        return f"latest:{self.latest}" if self.latest else "all"


def version_policy(settings: Mapping[str, str]) -> VersionPolicy | None:
    """What the settings say; None where they say nothing. ConfigError for what is no policy."""
    text = settings.get(VERSIONS)
    return None if text is None else parse_versions(text)


def parse_versions(text: str) -> VersionPolicy:
    """The policy of a setting; ConfigError, in one line, for anything else."""
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
    """One input or output. `reshape` is the shape that the model has where requests have `dims`; None where they agree.
    `label_file` names a file in the model's folder with the name of a class on each line; outputs only."""

    name: str
    datatype: str = ""  # empty where nothing is said
    dims: tuple[int, ...] = ()
    reshape: tuple[int, ...] | None = None
    label_file: str = ""

    @property
    def model_dims(self) -> tuple[int, ...]:
        """The dims as the model has them."""
        return self.dims if self.reshape is None else self.reshape


class QueuePolicy(msgspec.Struct, frozen=True):
    """How requests wait: the most that do and the seconds after which one is too late, 0 for no limit of its own.
    `delay`: what is too late goes last instead of being refused."""

    size: int = 0
    timeout: float = 0.0
    allow_override: bool = False
    delay: bool = False


class DynamicBatching(msgspec.Struct, frozen=True):
    """How requests are put together. `levels` of priority are numbered from 1, the highest; 0 is no levels."""

    preferred: tuple[int, ...] = ()
    max_delay: float = 0.0
    preserve_ordering: bool = False
    levels: int = 0
    default_level: int = 0
    policy: QueuePolicy = QueuePolicy()
    policies: dict[int, QueuePolicy] = {}


ControlKind = Literal["start", "ready", "end", "corrid"]


class Control(msgspec.Struct, frozen=True):
    """An input that edged fills in: with the value for false or true, or, of kind `corrid`, with the sequence's id."""

    input: str
    kind: ControlKind
    datatype: str
    false_true: tuple[float, float] = (0.0, 1.0)


class State(msgspec.Struct, frozen=True):
    """What the model keeps between the requests of a sequence: an output that is the next request's input.

    The first request gets zeros, or the bytes of `initial_file`, a file in the folder `initial_state` of the model.
    """

    input: str
    output: str
    datatype: str
    dims: tuple[int, ...]
    initial_file: str = ""
    initial_dims: tuple[int, ...] = ()


class SequenceBatching(msgspec.Struct, frozen=True):
    """Requests that belong together. `idle` is how long a sequence may say nothing. `strategy` is how Triton would put
    several sequences into a batch."""

    strategy: Literal["direct", "oldest"] = "direct"
    idle: float = 1.0
    controls: tuple[Control, ...] = ()
    states: tuple[State, ...] = ()
    max_candidates: int = 0
    max_delay: float = 0.0
    preferred: tuple[int, ...] = ()


class WarmupInput(msgspec.Struct, frozen=True):
    """One input of a warm-up request. `data` is "zero", "random" or "file", then `file` lies in the folder `warmup`."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    data: Literal["zero", "random", "file"] = "zero"
    file: str = ""


class Warmup(msgspec.Struct, frozen=True):
    """A request that is made `count` times before an engine serves. Its batch size is 0 for a model without batches."""

    name: str
    batch_size: int = 0
    count: int = 1
    inputs: tuple[WarmupInput, ...] = ()


class TritonConfig(msgspec.Struct, frozen=True):
    """A model's configuration. `max_batch_size` 0 is no batch dimension, or nothing said. `unused` has a line for
    everything that the file says and edged does not act on."""

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
    unused: tuple[str, ...] = ()


def require_plain_name(what: str, name: str) -> None:
    """Refuses a file's name that would lead out of the folder that it belongs in."""
    pure = PurePosixPath(name)
    outside = pure.is_absolute() or ".." in pure.parts or str(pure) == "."
    if outside or not name.isprintable() or len(name.encode()) > 255:
        raise ConfigError(f"{what} {name[:80]!r} is not the name of a file in the model's folder")
