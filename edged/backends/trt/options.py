"""Options of a TensorRT build from a model's settings, except precision and shapes. Pure.

The builder's level is `Recipe.optimization`. All other options are in `Recipe.options`, sorted and joined by ";". It
always has `workspace_mb`, such as `workspace_mb=2048`. It has `dla_core=0`, `hardware_compatible` and
`version_compatible` only if these are set.
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
_DEFAULT_MOST = 8192  # MiB; models that edge boxes serve never use more
_UNKNOWN_MEMORY = 4096  # MiB that are assumed if the device does not report its memory
_LEVEL, _HIGHEST_LEVEL = 3, 5
_HIGHEST_DLA_CORE = 7
# For each effort: how much to subtract from the level, and the divisor of the workspace.
_EASED: Mapping[Effort, tuple[int, int]] = {"full": (0, 1), "reduced": (2, 2), "least": (_HIGHEST_LEVEL, 4)}


class Options(msgspec.Struct, frozen=True):
    """Options of a build. `workspace_mb` limits the scratch memory of a layer, in MiB. `builder_level` is TensorRT's
    builder optimization level, 0 to 5: with a higher level the builder searches longer. `dla_core` is the DLA core to
    use, None for the GPU alone; the GPU runs layers that DLA cannot. If `hardware_compatible`, all GPUs since Ampere
    can run the engine. If `version_compatible`, later releases of TensorRT with the same major version can load the
    engine. Both make the engine slower."""

    workspace_mb: int
    builder_level: int = _LEVEL
    dla_core: int | None = None
    hardware_compatible: bool = False
    version_compatible: bool = False

    @property
    def optimization(self) -> str:
        """The builder's level in the form of `Recipe.optimization`."""
        return str(self.builder_level)

    def __str__(self) -> str:
        """Return all options except the builder's level, in the form of `Recipe.options`."""
        words = [f"dla_core={self.dla_core}"] if self.dla_core is not None else []
        words += ["hardware_compatible"] if self.hardware_compatible else []
        words += ["version_compatible"] if self.version_compatible else []
        return ";".join([*words, f"workspace_mb={self.workspace_mb}"])

    @classmethod
    def parse(cls, optimization: str, options: str) -> Options:
        """Parse the options of a recipe; missing options get their default. Raises ConfigError if `options` is not in
        the form that `str` writes."""
        words = [word.partition("=") for word in options.split(";")] if options else []
        settings = {PREFIX + name: value if equals else "true" for name, equals, value in words}
        level = {PREFIX + "builder_level": optimization} if optimization != "all" else {}
        found = of(settings | level, None)
        if options and str(found) != options:
            raise ConfigError(f"invalid TensorRT options {options[:80]!r}: they are not in the form that edged writes")
        return found

    def eased(self, effort: Effort) -> Options:
        """Return the options for a build with this effort. The effort is reduced after a build failed for lack of
        memory or time."""
        less, divisor = _EASED[effort]
        return msgspec.structs.replace(
            self,
            builder_level=max(0, self.builder_level - less),
            workspace_mb=max(_LEAST_WORKSPACE, self.workspace_mb // divisor),
        )


def check(settings: Mapping[str, str]) -> None:
    """Raise ConfigError if a setting under `tensorrt.` is unknown or has an invalid value."""
    for key in settings:
        if key.startswith(PREFIX) and key not in _KNOWN:
            raise ConfigError(f"unknown setting {key[:60]!r}; {nearest(key[:60], _KNOWN)}")
    of(settings, None)


def of(settings: Mapping[str, str], memory_mb: int | None) -> Options:
    """Return the options from a model's settings, for a device with `memory_mb` (None if unknown). Raises ConfigError
    if a value is invalid."""
    workspace = integer(settings, PREFIX + "workspace_mb", _LEAST_WORKSPACE, _MOST_WORKSPACE)
    if workspace is not None and memory_mb is not None and workspace > memory_mb:
        raise ConfigError(
            f"setting tensorrt.workspace_mb={workspace} is more than the {memory_mb} MiB that the device has; lower it"
        )
    level = integer(settings, PREFIX + "builder_level", 0, _HIGHEST_LEVEL)
    return Options(
        workspace_mb=_default_workspace(memory_mb) if workspace is None else workspace,
        builder_level=_LEVEL if level is None else level,
        dla_core=integer(settings, PREFIX + "dla_core", 0, _HIGHEST_DLA_CORE),
        hardware_compatible=boolean(settings, PREFIX + "hardware_compatible") or False,
        version_compatible=boolean(settings, PREFIX + "version_compatible") or False,
    )


def _default_workspace(memory_mb: int | None) -> int:
    """Return the default workspace in MiB: at most a quarter of the memory. Cameras and decoders need memory, too,
    and on a Jetson the whole system uses the same memory.

    The workspace is a power of two. So the engine's key, which contains the workspace, usually stays the same if
    another Linux kernel reserves a few MiB more.
    """
    share = max(_LEAST_WORKSPACE, min(_DEFAULT_MOST, (memory_mb or _UNKNOWN_MEMORY) // 4))
    return 1 << (share.bit_length() - 1)
