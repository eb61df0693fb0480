"""Keys of engines. A key has everything that decides whether an engine is valid, as named parts, and a digest of these
parts.

The format version comes first. If the meaning of keys changes, a new version makes sure that no older engine is found.
Facts that only describe a build, such as its date and its duration, are in the record and not in the key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec

from edged.backends.contract import Recipe
from edged.backends.registry import ABSENT
from edged.device.fingerprint import Fingerprint
from edged.device.validity import is_driver, relevant

FORMAT = "1"
_BACKEND = "recipe.backend"
_OPTIONS = "recipe.options"
_TENSORRT = ("tensorrt.version", "runtime.tensorrt")
_GPU = re.compile(r"gpu\.\d+\.(name|compute_capability|memory_mb|memory_bus_bits|cores)")
_NOT_FACTS = ("format", "model", "recipe.")


class PartChange(msgspec.Struct, frozen=True):
    """A part that differs between two keys: its name, and its values in the old and the new key. A value is None if the
    key lacks the part."""

    part: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.part.removeprefix('runtime.')} {self.old or ABSENT} → {self.new or ABSENT}"


class EngineKey(msgspec.Struct, frozen=True, dict=True):
    """The key of an engine: named parts in a fixed order, with the format version first."""

    parts: dict[str, str]

    @classmethod
    def of(cls, model_digest: str, recipe: Recipe, fingerprint: Fingerprint) -> EngineKey:
        """Return the key of the engine that `recipe` makes of a model on a device."""
        parts = {"format": FORMAT, "model": model_digest, **recipe.parts()}
        kind, _, index = recipe.device.partition(":")
        for fact in relevant(recipe.backend, kind, int(index or 0)):
            parts[fact] = fingerprint.facts.get(fact, ABSENT)
        return cls(parts)

    @cached_property  # the control loop reads it at every turn
    def digest(self) -> str:
        """A digest of all names and values, 32 hexadecimal digits. Delimiters separate the names and values."""
        return _digest(self.parts)[:32]

    @cached_property
    def generation(self) -> str:
        """A digest of the device's facts alone, 12 hexadecimal digits. Engines of one generation can share a host
        process."""
        own = {name: value for name, value in self.parts.items() if not name.startswith(_NOT_FACTS)}
        return _digest(own)[:12]


def _digest(parts: Mapping[str, str]) -> str:
    hasher = hashlib.sha256()
    for name, value in parts.items():
        hasher.update(name.encode() + b"\0" + value.encode() + b"\0")
    return hasher.hexdigest()


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[PartChange, ...]:
    """Return the parts that differ: first the parts of the new key, in its order, then the parts that only the old key
    has."""
    names = [*new, *(name for name in old if name not in new)]
    return tuple(PartChange(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n))


def differ_by_driver(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether two keys differ only in facts of the driver, or in parts that the old engine's build options allow to
    change. False if the keys are equal, or if the model or the recipe differs."""
    differing = changes(old, new)
    options = frozenset(old.get(_OPTIONS, "").split(";"))
    return bool(differing) and all(is_driver(change.part) or _is_bridged(change, options) for change in differing)


def _is_bridged(change: PartChange, options: frozenset[str]) -> bool:
    """Whether an engine with these build options also works with the new value of a changed part. The options may allow
    another TensorRT of the same major version, or another GPU if both GPUs are Ampere or later."""
    if "version_compatible" in options and change.part in _TENSORRT:
        one, other = ((version or "").split(".") for version in (change.old, change.new))
        return one[0].isdecimal() and one[0] == other[0]
    if "hardware_compatible" in options and _GPU.fullmatch(change.part):
        is_capability = change.part.endswith(".compute_capability")
        return not is_capability or all(_is_ampere(value) for value in (change.old, change.new))
    return False


def _is_ampere(capability: str | None) -> bool:
    major = (capability or "").partition(".")[0]
    return major.isdecimal() and int(major) >= 8


def may_be_for(built: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether an engine that was built ahead (on a box with another device) may be the wanted engine.

    Of the parts that were known at the build, only the driver and the builder's memory limit may differ. (The limit
    follows from the memory of the device.)
    """
    return all(
        is_driver(change.part)
        or (change.part == _OPTIONS and _lasting(change.old) == _lasting(change.new))
        or (not change.part.startswith(_NOT_FACTS) and change.old in (None, ABSENT))
        for change in changes(built, wanted)
    )


def _lasting(options: str | None) -> set[str]:
    return {word for word in (options or "").split(";") if not word.startswith("workspace_mb=")}


def nearest(wanted: Mapping[str, str], stored: Iterable[tuple[str, Mapping[str, str]]]) -> str | None:
    """Return the digest of the stored key that is most similar to `wanted`. Only keys of the same backend count. None
    without such a key.

    Keys of the same model come first, then keys with fewer differing parts of the recipe, then keys with fewer
    differing parts in all. So the result is usually the previous engine of the same model. The parts that differ show
    why this engine is not the wanted one.
    """
    rivals = ((digest, parts) for digest, parts in stored if parts.get(_BACKEND) == wanted.get(_BACKEND))

    def distance(item: tuple[str, Mapping[str, str]]) -> tuple[bool, int, int, str]:
        digest, parts = item
        differing = changes(parts, wanted)
        recipe = sum(change.part.startswith("recipe.") for change in differing)
        return parts.get("model") != wanted.get("model"), recipe, len(differing), digest

    best = min(rivals, key=distance, default=None)
    return best[0] if best else None
