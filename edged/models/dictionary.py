"""The characters of a text recogniser, from a file of PaddleOCR next to the model.

The file is either a dictionary, in UTF-8 with one character on each line (ppocr_keys_v1.txt, en_dict.txt,
ppocrv5_dict.txt), or inference.yml of PaddleOCR 3 with the list `character_dict`. PyYAML writes the entries of this
list plain, in single quotes or in double quotes, so edged needs no YAML library.

Source: ppocr/utils and export_model.py of PaddlePaddle/PaddleOCR (commit 00639f6).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edged.decoding import ready
from edged.files import read_regular
from edged.vision import characters

FAMILIES = ("ctc", "parseq")  # the families that need the characters
_INFERENCE = "inference.yml"
_NAME = re.compile(r"(.+[_-])?(charset|dict|keys)(_v\d+)?\.txt", re.IGNORECASE)
_LIST = re.compile(r" *character_dict: *")
_ENTRY = re.compile(r" *- (.+)")
_SHORT_ESCAPE = re.compile(r"(?<!\\)\\x")
_MOST_BYTES = 1 << 20


def read_settings(file: Path) -> tuple[str, dict[str, str]]:
    """Return the name of the dictionary of the model in `file`, and the setting `decode.characters`. Both are empty
    without a dictionary.

    A dictionary belongs to a model if the dictionary's name begins with the model's name, or if the folder has no other
    model. If several dictionaries belong to the model, edged reads none of them. A file that is too large or cannot be
    read counts as absent.
    """
    try:
        names = sorted(each.name for each in file.parent.iterdir())
    except OSError:
        return "", {}
    is_alone = sum(name.lower().endswith(".onnx") for name in names) == 1
    found = [name for name in names if _NAME.fullmatch(name) and (is_alone or name.startswith(file.stem))]
    if not found and is_alone and _INFERENCE in names:
        found = [_INFERENCE]
    listed = _read(file.parent / found[0]) if len(found) == 1 else ()
    if len(listed) < 2:
        return "", {}
    separator = "" if all(len(each) == 1 for each in listed) else "\n"
    text = separator.join(listed)
    return found[0], {"decode.characters": text if listed[-1] else f"{text}\n"}  # `characters.parse` drops one newline


def _read(path: Path) -> tuple[str, ...]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return ()
        text = read_regular(path).decode()
        return characters.parse("\n".join(_entries(text)) if path.name == _INFERENCE else text)
    except (OSError, ValueError):
        return ()


def _entries(text: str) -> Iterator[str]:
    """Yield the entries of `character_dict`; none if the file has no CTCLabelDecode. Raises ValueError if an entry in
    double quotes is invalid."""
    lines = iter(text.split("\n"))
    if "CTCLabelDecode" not in text or not any(_LIST.fullmatch(line) for line in lines):
        return
    for line in lines:
        found = _ENTRY.fullmatch(line.removesuffix("\r"))
        if found is None:
            return
        yield _scalar(found[1])


def _scalar(written: str) -> str:
    if written.startswith("'"):
        return written[1:-1].replace("''", "'")
    if written.startswith('"'):
        # JSON has no escape \x. PyYAML's other escapes that JSON lacks stand for characters that no dictionary has.
        return msgspec.json.decode(_SHORT_ESCAPE.sub(r"\\u00", written), type=ready(str))
    return written
