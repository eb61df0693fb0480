"""The characters of a text recogniser, in the order of its classes.

The characters are in the metadata `character` that RapidOCR writes into PP-OCR's models, in a dictionary file of
PaddleOCR (`ppocr_keys_v1.txt`), or in the setting `decode.characters`. Each character is on a separate line, or all
characters are on one line.

Source: `CTCLabelDecode` in rapidocr 3.10.0 and ppocr/postprocess/rec_postprocess.py of PaddlePaddle/PaddleOCR.
"""

from __future__ import annotations

import functools
import unicodedata

MOST_LISTED = 1 << 19  # code points of a whole list
_UNPRINTABLE = frozenset(("Cc", "Cs", "Zl", "Zp"))  # controls, surrogates, separators of lines
_NOTHING = ""  # the entry of the class that stands for no character: the blank, or the end of the text


@functools.lru_cache(4)  # each change recognises all models again, and PP-OCR has 18,708 characters
def parse(text: str) -> tuple[str, ...]:
    """Return the entries of a list of characters: its lines if it has several lines, otherwise the characters of its
    only line. Return no entries if the text is longer than `MOST_LISTED`.

    An empty line is the class that stands for no character. Control characters become U+FFFD, because terminals and
    logs show the texts of models.
    """
    if len(text) > MOST_LISTED:
        return ()
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n").split("\n")
    return tuple(map(_printable, lines if len(lines) > 1 else lines[0]))


def by_class(listed: tuple[str, ...], classes: int | None, *, nothing_last: bool) -> tuple[str, ...] | None:
    """Return the character of each class, in order. The class that stands for no character gets an empty string.

    If `listed` has no empty entry, one is added at the start, or at the end with `nothing_last`. If the model has one
    class more than that, a space is added after the last character, as in PaddleOCR. `classes` is the model's number of
    classes, None if unknown. Return None if the list does not fit.
    """
    if not listed or listed.count(_NOTHING) > 1:
        return None
    if _NOTHING not in listed:
        if classes == len(listed) + 2:
            listed = (*listed, " ")
        listed = (*listed, _NOTHING) if nothing_last else (_NOTHING, *listed)
    return listed if classes in (None, len(listed)) else None


def _printable(entry: str) -> str:
    if entry.isascii() and entry.isprintable():  # a fast path; most other entries have one or two code points
        return entry
    return "".join("\ufffd" if unicodedata.category(each) in _UNPRINTABLE else each for each in entry)
