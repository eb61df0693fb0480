"""Tables of fixed width: what does not fit is left out by how little it matters, then cut. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

_GAP = 2
_LEAST = 10  # cells that what may be cut keeps


@dataclass(frozen=True)
class Column:
    """`matters` says which goes last where there is no room; one that `is_cut` may lose the ends of its texts."""

    title: str
    matters: int
    is_right: bool = False
    is_cut: bool = False


@dataclass(frozen=True)
class Cell:
    text: str
    style: str = ""


Row = Sequence[Cell]


def plain(text: str) -> str:
    """What a terminal takes for text and nothing else: names come from clients."""
    return "".join(character if character.isprintable() else "?" for character in text)


def cut(text: str, width: int) -> str:
    """At most so many cells of it, with a sign where something is missing."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…" * min(width, 1)


def table(columns: Sequence[Column], rows: Sequence[Row], width: int, style: str = "") -> list[Text]:
    """A heading and a line for each row, none wider than `width`. A column without any text is left out."""
    texts = [[plain(cell.text) for cell in row] for row in rows]
    natural = [max([cell_len(column.title), *(cell_len(row[i]) for row in texts)]) for i, column in enumerate(columns)]
    kept = [i for i in range(len(columns)) if any(row[i] for row in texts)]
    while len(kept) > 1 and _needed(columns, natural, kept) > width:
        kept.remove(min(reversed(kept), key=lambda i: columns[i].matters))
    widths = _widths(columns, natural, kept, width)
    gap = Text(_GAP * " ")
    lines = [gap.join(Text(_fill(columns[i].title, widths[i], columns[i].is_right), "dim") for i in kept)]
    for row, words in zip(rows, texts, strict=True):
        lines.append(gap.join(Text(_fill(words[i], widths[i], columns[i].is_right), row[i].style) for i in kept))
    for line in lines:
        line.rstrip()
        line.truncate(width)
        line.no_wrap = True
        if style:
            line.stylize(style)
    return lines


def _needed(columns: Sequence[Column], natural: Sequence[int], kept: Sequence[int]) -> int:
    least = (min(natural[i], _LEAST) if columns[i].is_cut else natural[i] for i in kept)
    return sum(least) + _GAP * (len(kept) - 1)


def _widths(columns: Sequence[Column], natural: Sequence[int], kept: Sequence[int], width: int) -> dict[int, int]:
    """What is to spare goes to those that would be cut, first to those that matter most."""
    found = {i: min(natural[i], _LEAST) if columns[i].is_cut else natural[i] for i in kept}
    spare = width - _GAP * (len(kept) - 1) - sum(found.values())
    for i in sorted(kept, key=lambda i: -columns[i].matters):
        more = max(0, min(spare, natural[i] - found[i]))
        found[i] += more
        spare -= more
    if spare < 0:  # one column that is wider than everything
        found = {i: max(1, found[i] + spare) for i in found}
    return found


def _fill(text: str, width: int, is_right: bool) -> str:
    text = cut(text, width)
    space = " " * (width - cell_len(text))
    return space + text if is_right else text + space
