"""What somebody meant who wrote a name that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from edged.config.keys import Path, Table, dotted
from edged.config.words import either

_CLOSE = 0.66  # of 1, how much alike two names are for one to be meant by the other


def nearest(name: str, names: Iterable[str]) -> str:
    """The name that is most like one; empty where none is. Hyphens and capitals make no difference."""
    known = list(names)
    plain = {each.lower(): each for each in reversed(known)}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=_CLOSE)
    return plain[found[0]] if found else ""


def advice(name: str, table: Path, root: Table) -> str:
    """What to write instead of a name that a table does not have: that table's, or another's which has it."""
    here = next(each for each in root.walk() if each.path == table)
    close = nearest(name, here.names)
    elsewhere = [each for each in root.walk() if name in each.names and each is not here]
    if elsewhere:
        belongs = f"it is a key of {_told(elsewhere)}"
        return f"{belongs}; did you mean `{close}` here?" if close else belongs
    if close:
        return f"did you mean `{close}`?"
    for other in root.walk():
        found = nearest(name, other.names)
        if found:
            return f"did you mean `{found}` of {_told([other])}?"
    return f"there are {', '.join(here.names)}"


def _told(tables: Sequence[Table]) -> str:
    at_top = ["the top of the file, before any table"] if any(not each.path for each in tables) else []
    return either([*(f"[{dotted(each.path)}]" for each in tables if each.path), *at_top])
