"""Builds a camera from settings in text form, such as `max_fps=5` or `zones.door.points=[[0, 0], [1, 0], [1, 1]]`.

Keys are those below `[cameras.NAME]`; values are written as in environment variables. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from edged.config.cameras import Camera, settings
from edged.config.checking import contradictions, faults
from edged.config.keys import Table, dotted, tables, toml
from edged.config.reading import parsed
from edged.config.tables import check_names
from edged.decoding import ready
from edged.errors import InvalidInput, redact

_ROOT = tables(Camera)


def camera_of(name: str, changes: Mapping[str, str], base: Camera | None = None) -> Camera:
    """Return `base`, or a new camera, with the settings in `changes`, which maps dotted keys to texts. An empty string
    resets a key, or removes a zone or line.

    Raises InvalidInput if a key or value is invalid. The message suggests the closest known key.
    """
    tree = {} if base is None else settings(base)
    for key, text in changes.items():
        path = key.split(".")
        hint = _hint(_ROOT, path)
        if text:
            _put(tree, path, text if hint is None else parsed(text, hint), key)
        else:
            _remove(tree, path)
    try:
        check_names("cameras", (name,))
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    wrong = next(faults(tree, _ROOT), None) or next(contradictions(tree, _ROOT), None)
    if wrong is not None:
        key = f"{dotted(wrong.path)}: " if wrong.path and not wrong.message.startswith(dotted(wrong.path)) else ""
        raise InvalidInput(f"camera {name!r}: {key}{wrong.message}")
    return msgspec.convert(tree, ready(Camera))


def as_texts(camera: Camera) -> dict[str, str]:
    """Return the settings that differ from their defaults, as texts that `camera_of` reads, without passwords."""
    return {key: redact(value if isinstance(value, str) else toml(value)) for key, value in _leaves(settings(camera))}


def _leaves(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _hint(table: Table, path: list[str]) -> object:
    """Return the type of a key; None for an unknown key, which `faults` reports later."""
    for key in table.keys:
        if [key.path[-1]] == path:
            return key.hint
    for inner in table.tables:
        if inner.field == path[0]:
            return _hint(inner, path[2 if inner.is_named else 1 :]) if len(path) > 1 else None
    return None


def _put(tree: dict[str, object], path: list[str], value: object, key: str) -> None:
    *outer, last = path
    for name in outer:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InvalidInput(f"{key!r} is not a setting of a camera: {name!r} is not a table")
        tree = inner
    tree[last] = value


def _remove(tree: dict[str, object], path: list[str]) -> None:
    *outer, last = path
    for name in outer:
        inner = tree.get(name)
        if not isinstance(inner, dict):
            return
        tree = inner
    tree.pop(last, None)
