"""What a client may be, and the sets of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, cast, get_args

from edged.config.access import Role as Role
from edged.errors import InvalidInput

Roles: TypeAlias = "frozenset[Role]"

ALL: Roles = frozenset(get_args(Role))
NONE: Roles = frozenset()


def parse(words: Iterable[str]) -> Roles:
    """Roles by their names. InvalidInput for what is none."""
    found = [word.strip() for word in words]
    for word in found:
        if word not in ALL:
            raise InvalidInput(f"there is no role {word[:40]!r}; there are {told(ALL)}")
    return cast("Roles", frozenset(found))


def told(roles: Roles) -> str:
    """For people, in an order that stays."""
    return ", ".join(role for role in get_args(Role) if role in roles) or "none"
