"""edged: for every model on the box one verified engine that fits the box as it is now."""

from edged.version import __version__

__all__ = ["__version__"]
