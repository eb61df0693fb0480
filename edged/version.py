"""The version of edged."""

__version__ = "0.1.0"
