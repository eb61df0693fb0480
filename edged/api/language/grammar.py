"""Checks JSON schemas and regular expressions before a runtime gets them. An invalid schema or expression may end the
runtime. Pure.

A schema or an expression is accepted only if all runtimes support it.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from edged.errors import InvalidInput
from edged.files import NOT_JSON

LARGEST: Final = 64 << 10  # characters of a schema
_LONGEST: Final = 8 << 10  # characters of an expression
_DEEPEST = 32
_MOST_PARTS = 4096
_MOST_COUNTED = 10_000  # a larger limit of lengths, items or repetitions would fill the memory of a runtime
_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_SCHEMAS = ("items", "additionalProperties", "contains", "not")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "$defs", "definitions", "patternProperties")
_COUNTS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_MOST_SIZE = 50_000  # characters and classes of an expression, counted as if its repetitions were written out


def check_schema(text: str) -> dict[str, Any]:
    """Return the JSON schema in a text. Raises InvalidInput unless all runtimes support the schema."""
    if len(text) > LARGEST:
        raise InvalidInput(f"the JSON schema has {len(text)} characters; send at most {LARGEST}")
    try:
        schema = msgspec.json.decode(text)
    except NOT_JSON as error:
        raise InvalidInput(f"the JSON schema is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise InvalidInput("the JSON schema is not an object")
    _SchemaCheck(schema).check(schema, "", 0)
    return schema


def check_regex(text: str) -> None:
    """Raise InvalidInput unless a text is a regular expression that all runtimes support. The expression may have
    characters, classes, groups, alternatives and repetitions."""
    if not text or len(text) > _LONGEST:
        raise InvalidInput(f"the regular expression has {len(text)} characters; send 1 to {_LONGEST}")
    _RegexCheck(text).check()


def referred(root: Any, reference: str) -> Any:
    """Return the part of a schema that `#/...` names; None if the schema lacks that part."""
    found: Any = root
    for name in filter(None, reference[1:].split("/")):
        key = unquote(name).replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, dict) else None
    return found


class _SchemaCheck:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root, self._parts = root, 0

    def check(self, schema: Any, place: str, depth: int) -> None:
        if isinstance(schema, bool):
            return
        where = place or "its root"
        if not isinstance(schema, dict):
            raise InvalidInput(f"the JSON schema at {where} is not an object")
        self._parts += 1
        if depth > _DEEPEST or self._parts > _MOST_PARTS:
            raise InvalidInput(
                f"the JSON schema has more than {_DEEPEST} levels or {_MOST_PARTS} subschemas; send a smaller schema"
            )
        self._check_words(schema, where)
        for key in _SCHEMAS:
            if key in schema:
                self.check(schema[key], f"{place}/{key}", depth + 1)
        for key in _LISTS:
            if key in schema:
                if not isinstance(schema[key], list) or not schema[key]:
                    raise InvalidInput(f"the JSON schema has {place}/{key}, which is not a list of at least one schema")
                for index, each in enumerate(schema[key]):
                    self.check(each, f"{place}/{key}/{index}", depth + 1)
        for key in _MAPS:
            if key in schema:
                if not isinstance(schema[key], dict):
                    raise InvalidInput(f"the JSON schema has {place}/{key}, which is not an object")
                for name, each in schema[key].items():
                    if key == "patternProperties":
                        check_regex(name)
                    self.check(each, f"{place}/{key}/{name[:40]}", depth + 1)

    def _check_words(self, schema: dict[str, Any], where: str) -> None:
        kinds = schema.get("type", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if len(kinds) > len(_TYPES) or not all(isinstance(kind, str) and kind in _TYPES for kind in kinds):
            raise InvalidInput(f"the JSON schema at {where} has an unknown type: {str(kinds)[:60]}")
        for low, high in _COUNTS:
            least, most = _count(schema, low, where), _count(schema, high, where)
            if least is not None and most is not None and least > most:
                raise InvalidInput(f"the JSON schema at {where} has {low!r} {least} above {high!r} {most}")
        for key in _NUMBERS:
            if key in schema and (isinstance(schema[key], bool) or not isinstance(schema[key], int | float)):
                raise InvalidInput(f"the JSON schema at {where} has {key!r}, which is not a number")
        if "minimum" in schema and "maximum" in schema and schema["minimum"] > schema["maximum"]:
            raise InvalidInput(f"the JSON schema at {where} has 'minimum' above 'maximum'")
        if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
            raise InvalidInput(f"the JSON schema at {where} has 'enum', which is not a list of at least one value")
        if "pattern" in schema:
            if not isinstance(schema["pattern"], str):
                raise InvalidInput(f"the JSON schema at {where} has 'pattern', which is not a string")
            check_regex(schema["pattern"].removeprefix("^").removesuffix("$"))
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
            raise InvalidInput(f"the JSON schema at {where} has 'required', which is not a list of names")
        if "$ref" in schema:
            reference = schema["$ref"]
            if not isinstance(reference, str) or not reference.startswith("#"):
                raise InvalidInput(f"the JSON schema at {where} has a '$ref' that does not point into the schema")
            if not isinstance(referred(self._root, reference), dict | bool):
                raise InvalidInput(f"the JSON schema at {where} has a '$ref' to the missing {reference[:60]!r}")


def _count(schema: dict[str, Any], key: str, where: str) -> int | None:
    value = schema.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_COUNTED):
        raise InvalidInput(f"the JSON schema at {where} has {key!r}, which is not a number from 0 to {_MOST_COUNTED}")
    return value


_ESCAPED = re.compile(r"\\(?:[dDwWsSnrtfv]|x[0-9A-Fa-f]{2}|[^\w\s])", re.ASCII)
_REPEATED = re.compile(r"\{(\d{1,5})(,(\d{1,5})?)?\}", re.ASCII)


class _RegexCheck:
    """Parses an expression once, from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._place = text, 0

    def check(self) -> None:
        size = self._alternatives(0)
        if self._place < len(self._text):
            raise self._wrong("this ) closes no group; write \\)")
        if size > _MOST_SIZE:
            raise InvalidInput("the regular expression repeats too much; use smaller counts in its repetitions")

    def _alternatives(self, depth: int) -> int:
        """Parse the alternatives at this place, and return the sum of their sizes (see `_MOST_SIZE`). Raises
        InvalidInput if an alternative is empty or invalid."""
        if depth > _DEEPEST:
            raise self._wrong(f"groups are nested more than {_DEEPEST} times")
        size = self._sequence(depth)
        while self._next() == "|":
            self._place += 1
            size += self._sequence(depth)
        return size

    def _sequence(self, depth: int) -> int:
        size, begin = 0, self._place
        while self._next() not in ("", "|", ")"):
            size += self._repeated(self._atom(depth))
            if size > _MOST_SIZE:
                raise InvalidInput("the regular expression repeats too much; use smaller counts in its repetitions")
        if self._place == begin:
            raise self._wrong("an alternative is empty")
        return size

    def _atom(self, depth: int) -> int:
        char = self._next()
        if char == "(":
            self._place += 3 if self._text.startswith("(?:", self._place) else 1
            if self._next() == "?":
                raise self._wrong("only groups (...) and (?:...) are supported")
            size = self._alternatives(depth + 1)
            if self._next() != ")":
                raise self._wrong("a group is not closed; add )")
            self._place += 1
            return size
        if char == "[":
            return self._class()
        if char == "\\":
            if self._text.startswith(r"\x00", self._place):
                raise self._wrong("a text cannot have the character 0")
            return self._escape()
        if char in "*+?{}]^$":
            raise self._wrong(f"{char!r} has no meaning here; write \\{char}")
        return self._plain(char)

    def _class(self) -> int:
        self._place += 2 if self._text.startswith("[^", self._place) else 1
        begin = self._place
        while (char := self._next()) != "]":
            if char in ("", "["):
                raise self._wrong("a character class is not closed, or has a [; write \\[")
            if char == "\\":
                self._escape()
            else:
                self._plain(char)
        if self._place == begin:
            raise self._wrong("a character class is empty")
        for low, high in re.findall(r"(?<![\\-])([^\\-])-([^\\\]-])", self._text[begin : self._place]):
            if low > high:
                raise self._wrong(f"the range {low}-{high} is empty")
        self._place += 1
        return 1

    def _escape(self) -> int:
        found = _ESCAPED.match(self._text, self._place)
        if found is None:
            raise self._wrong(f"the escape {self._text[self._place : self._place + 2]!r} is not supported")
        self._place = found.end()
        return 1

    def _plain(self, char: str) -> int:
        if not char.isprintable():
            raise self._wrong("this character cannot be printed; write it as \\xNN")
        self._place += 1
        return 1

    def _repeated(self, size: int) -> int:
        char = self._next()
        if char and char in "*+?":
            self._place += 1
        elif char == "{":
            found = _REPEATED.match(self._text, self._place)
            if found is None:
                raise self._wrong("a repetition is not {N}, {N,} or {N,M}")
            least, most = int(found[1]), int(found[3] or found[1])
            if not most:
                instead = "write *" if found[2] == "," else "leave out what it repeats"
                raise self._wrong(f"the repetition {found[0]} is not supported; {instead}")
            if least > most or most > _MOST_COUNTED:
                raise self._wrong(
                    f"the repetition {found[0]} must be of at most {_MOST_COUNTED} times, the smaller number first"
                )
            self._place = found.end()
            size *= most
        if self._next() and self._next() in "*+?{":
            raise self._wrong("two repetitions follow each other; leave one out")
        return size

    def _next(self) -> str:
        return self._text[self._place : self._place + 1]

    def _wrong(self, why: str) -> InvalidInput:
        return InvalidInput(f"the regular expression is invalid at character {self._place + 1}: {why}")
