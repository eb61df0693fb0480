"""Options of a TensorRT build besides its precision and its shapes, from a model's settings. Pure.

The builder's level is `Recipe.optimization`; the others are `Recipe.options`, written as `workspace_mb=2048` and,
where they are not as usual, `dla_core=0`, `hardware_compatible` and `version_compatible`, joined by ";", by alphabet.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edged.backends.contract import Effort
from edged.errors import ConfigError
from edged.vision.settings import boolean, integer, nearest

PREFIX = "tensorrt."
_NAMES = ("builder_level", "dla_core", "hardware_compatible", "version_compatible", "workspace_mb")
_KNOWN = tuple(PREFIX + name for name in _NAMES)

_LEAST_WORKSPACE, _MOST_WORKSPACE = 16, 1 << 20  # MiB
_DEFAULT_MOST = 8192  # MiB; more is never used by models that a box like this serves
_UNKNOWN_MEMORY = 4096  # MiB, of a device that does not say
_LEVEL, _HIGHEST_LEVEL = 3, 5
_HIGHEST_DLA_CORE = 7
# What an effort takes off the level, and by what it divides the workspace.
_EASED: Mapping[Effort, tuple[int, int]] = {"full": (0, 1), "reduced": (2, 2), "least": (_HIGHEST_LEVEL, 4)}


class Options(msgspec.Struct, frozen=True):
    """`workspace_mb` caps the scratch memory that a layer may take, in MiB. `builder_level` is how long the builder
    searches, 0 to 5. `dla_core` is the deep learning accelerator to use, None for the GPU alone; what it cannot do the
    GPU does. An engine may be version compatible (later TensorRT of the same major version loads it) or hardware
    compatible (GPUs of Ampere and later run it); both cost speed."""

    workspace_mb: int
    builder_level: int = _LEVEL
    dla_core: int | None = None
    hardware_compatible: bool = False
    version_compatible: bool = False

    @property
    def optimization(self) -> str:
        """The level as `Recipe.optimization` has it."""
        return str(self.builder_level)

    def __str__(self) -> str:
        """The others as `Recipe.options` has them."""
        words = [f"dla_core={self.dla_core}"] if self.dla_core is not None else []
        words += ["hardware_compatible"] if self.hardware_compatible else []
        words += ["version_compatible"] if self.version_compatible else []
        return ";".join([*words, f"workspace_mb={self.workspace_mb}"])

    @classmethod
    def parse(cls, optimization: str, options: str) -> Options:
        """The options of a recipe; what it leaves out is as usual. ConfigError for text that edged did not write."""
        words = [word.partition("=") for word in options.split(";")] if options else []
        settings = {PREFIX + name: value if equals else "true" for name, equals, value in words}
        level = {PREFIX + "builder_level": optimization} if optimization != "all" else {}
        found = of(settings | level, None)
        if options and str(found) != options:
            raise ConfigError(f"{options[:80]!r} are no TensorRT options as edged writes them")
        return found

    def eased(self, effort: Effort) -> Options:
        """The same with less asked of the builder, for a build that failed for want of memory or time."""
        less, divisor = _EASED[effort]
        return msgspec.structs.replace(
            self,
            builder_level=max(0, self.builder_level - less),
            workspace_mb=max(_LEAST_WORKSPACE, self.workspace_mb // divisor),
        )


def check(settings: Mapping[str, str]) -> None:
    """ConfigError for a name under `tensorrt.` that does not exist, or a value that it cannot have."""
    for key in settings:
        if key.startswith(PREFIX) and key not in _KNOWN:
            raise ConfigError(f"there is no setting {key[:60]}; {nearest(key[:60], _KNOWN)}")
    of(settings, None)


def of(settings: Mapping[str, str], memory_mb: int | None) -> Options:
    """The options for a device with so many MiB of memory (None if unknown); ConfigError for impossible values."""
    workspace = integer(settings, PREFIX + "workspace_mb", _LEAST_WORKSPACE, _MOST_WORKSPACE)
    if workspace is not None and memory_mb is not None and workspace > memory_mb:
        raise ConfigError(f"tensorrt.workspace_mb={workspace} is more than the {memory_mb} MiB that the device has")
    level = integer(settings, PREFIX + "builder_level", 0, _HIGHEST_LEVEL)
    return Options(
        workspace_mb=_default_workspace(memory_mb) if workspace is None else workspace,
        builder_level=_LEVEL if level is None else level,
        dla_core=integer(settings, PREFIX + "dla_core", 0, _HIGHEST_DLA_CORE),
        hardware_compatible=boolean(settings, PREFIX + "hardware_compatible") or False,
        version_compatible=boolean(settings, PREFIX + "version_compatible") or False,
    )


def _default_workspace(memory_mb: int | None) -> int:
    """At most a quarter of the memory, which cameras, decoders and on a Jetson everything else need too.

    A power of two: it is part of the engine's key, and a kernel that keeps a few MiB more for itself should not change
    it.
    """
    share = max(_LEAST_WORKSPACE, min(_DEFAULT_MOST, (memory_mb or _UNKNOWN_MEMORY) // 4))
    return 1 << (share.bit_length() - 1)
