"""The characters of a text recogniser, from a dictionary file next to the model.

PaddleOCR keeps them apart from the model, in a UTF-8 file with a character on each line: ppocr_keys_v1.txt,
en_dict.txt, ppocrv5_dict.txt and others. Source: ppocr/utils of PaddlePaddle/PaddleOCR.
"""

from __future__ import annotations

import re
from pathlib import Path

from edged.files import read_regular
from edged.vision import characters

FAMILIES = ("ctc", "parseq")  # that have characters
_NAME = re.compile(r"(.+[_-])?(charset|dict|keys)(_v\d+)?\.txt", re.IGNORECASE)
_MOST_BYTES = 1 << 20


def read_settings(file: Path) -> tuple[str, dict[str, str]]:
    """Return the name of the dictionary of the model in `file`, and the setting `decode.characters`; empty without one.

    A dictionary belongs to a model if its name begins with that of the model, or if no other model is in the folder. If
    several belong to it, none is read. A file that is too large or not UTF-8 counts as absent.
    """
    try:
        names = sorted(each.name for each in file.parent.iterdir())
    except OSError:
        return "", {}
    is_alone = sum(name.lower().endswith(".onnx") for name in names) == 1
    found = [name for name in names if _NAME.fullmatch(name) and (is_alone or name.startswith(file.stem))]
    listed = _read(file.parent / found[0]) if len(found) == 1 else ()
    if len(listed) < 2:
        return "", {}
    separator = "" if all(len(each) == 1 for each in listed) else "\n"
    return found[0], {"decode.characters": separator.join(listed)}


def _read(path: Path) -> tuple[str, ...]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return ()
        return characters.parse(read_regular(path).decode())
    except (OSError, ValueError):
        return ()
