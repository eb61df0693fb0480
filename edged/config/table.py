"""The base of every table of the configuration."""

from __future__ import annotations

import msgspec


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file. Its docstring is the table's description; the `Meta` of a field describes a key."""
