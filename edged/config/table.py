"""The base of every table of the configuration."""

from __future__ import annotations

import msgspec


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file: its docstring says what it is about, the `Meta` of a field what a key means."""
