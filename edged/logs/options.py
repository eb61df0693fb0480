"""What the configuration says of the log."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

Format: TypeAlias = Literal["auto", "text", "json", "journal"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class LogOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the daemon says, and how."""

    format: Annotated[
        Format,
        Meta(
            description='"text" is for people; "json" is one object a line; "journal" goes to systemd\'s journal, with'
            ' fields to search by; "auto" is "journal" where standard error goes there, and otherwise "text".'
        ),
    ] = "auto"
    level: Annotated[
        Level, Meta(description='From which level on; "debug" adds every call, with its outcome and time.')
    ] = "info"
