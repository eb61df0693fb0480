"""Checks of JSON schemas and regular expressions before a runtime gets them: a runtime may end if one is invalid. Pure.

Only what all runtimes understand is accepted.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from edged.errors import InvalidInput
from edged.files import NOT_JSON

LARGEST: Final = 64 << 10  # bytes
_DEEPEST = 32
_MOST_PARTS = 4096
_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_SCHEMAS = ("items", "additionalProperties", "contains", "not")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "$defs", "definitions", "patternProperties")
_NUMBERS = ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum")
# What Python's expressions have, and those of the runtimes do not.
_UNKNOWN_REGEX = re.compile(r"\(\?(?!:)|\\[1-9]|\\[AbBZ]|[*+?}]\+")


def check_schema(text: str) -> dict[str, Any]:
    """Return the JSON schema in a text. Raises InvalidInput unless the runtimes can follow it."""
    if len(text) > LARGEST:
        raise InvalidInput(f"the JSON schema has {len(text)} characters; send at most {LARGEST}")
    try:
        schema = msgspec.json.decode(text)
    except NOT_JSON as error:
        raise InvalidInput(f"the JSON schema is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise InvalidInput("the JSON schema is not an object")
    _Checker(schema).check(schema, "", 0)
    return schema


def check_regex(text: str) -> None:
    """Raise InvalidInput unless a text is a regular expression that the runtimes can follow."""
    if not text or len(text) > LARGEST:
        raise InvalidInput(f"the regular expression has {len(text)} characters; send 1 to {LARGEST}")
    if found := _UNKNOWN_REGEX.search(text):
        raise InvalidInput(f"the regular expression has {found[0]!r}, which no runtime understands")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidInput(f"the regular expression is invalid: {error}") from None


class _Checker:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root, self._parts = root, 0

    def check(self, schema: Any, place: str, depth: int) -> None:
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise InvalidInput(f"the JSON schema at {place or 'its root'} is not an object")
        self._parts += 1
        if depth > _DEEPEST or self._parts > _MOST_PARTS:
            raise InvalidInput(f"the JSON schema is too large: at most {_DEEPEST} levels and {_MOST_PARTS} parts")
        kinds = schema.get("type", ())
        for kind in kinds if isinstance(kinds, list) else [kinds] if isinstance(kinds, str) else []:
            if kind not in _TYPES:
                raise InvalidInput(f"the JSON schema at {place or 'its root'} has the unknown type {str(kind)[:40]!r}")
        for key in _NUMBERS:
            if key in schema and (isinstance(schema[key], bool) or not isinstance(schema[key], int | float)):
                raise InvalidInput(f"the JSON schema has {place}/{key}, which is not a number")
        if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
            raise InvalidInput(f"the JSON schema has {place}/enum, which is not a list of values")
        if isinstance(schema.get("pattern"), str):
            check_regex(schema["pattern"])
        required, known = schema.get("required", []), schema.get("properties", {})
        if not isinstance(required, list) or not isinstance(known, dict):
            raise InvalidInput(
                f"the JSON schema at {place or 'its root'} has no list `required` or object `properties`"
            )
        self._refer(schema.get("$ref"), place)
        for key in _SCHEMAS:
            if key in schema:
                self.check(schema[key], f"{place}/{key}", depth + 1)
        for key in _LISTS:
            for index, each in enumerate(schema.get(key, [])):
                self.check(each, f"{place}/{key}/{index}", depth + 1)
        for key in _MAPS:
            for name, each in schema.get(key, {}).items():
                self.check(each, f"{place}/{key}/{name[:40]}", depth + 1)

    def _refer(self, reference: Any, place: str) -> None:
        if reference is None:
            return
        found: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise InvalidInput(f"the JSON schema has {place}/$ref, which is not in the schema itself")
        for name in filter(None, reference[1:].split("/")):
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, dict | bool):
            raise InvalidInput(f"the JSON schema has {place}/$ref to {reference[:60]!r}, which does not exist")
