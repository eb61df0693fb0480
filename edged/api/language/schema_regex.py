"""Converts JSON schemas to regular expressions, so that answers are compact and numbers have few digits. Pure.

A runtime that follows a schema itself allows any number of spaces between the parts, and any number of digits. A small
model may write spaces or digits until its tokens are used up. If no regular expression can describe a schema, the
runtime gets the schema unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from edged.api.language.grammar import check_regex, referred
from edged.errors import InvalidInput

_SPECIAL: Final = frozenset(r"\.^$|?*+()[]{}/-")
_CHARACTER: Final = r'([^"\\\x00-\x1F\x7F]|\\["\\/bfnrt])'
_NATURAL: Final = "(0|[1-9][0-9]{0,9})"
_INTEGER: Final = "(0|-?[1-9][0-9]{0,9})"
_NUMBER: Final = rf"-?{_NATURAL}(\.[0-9]{{1,6}})?"
_DEEPEST: Final = 8
_MOST_NUMBERS: Final = 200  # limit of numbers in a range that becomes a list of alternatives
_MOST_WORK: Final = 30_000  # limit of the characters made plus the parts visited
_MOST_REPEATED: Final = 256  # larger counts make expressions that take long to prepare
# Keywords of schemas that change which values are valid, and that are not translated.
_OTHERS: Final = (
    frozenset(
        ("allOf", "not", "if", "dependentRequired", "dependentSchemas", "patternProperties", "prefixItems", "contains")
    )
    | frozenset(
        ("uniqueItems", "multipleOf", "exclusiveMinimum", "exclusiveMaximum", "pattern", "format", "minProperties")
    )
    | frozenset(("maxProperties", "propertyNames", "dependencies"))
)
# The translation of one of these ignores the other keywords, so a schema must not combine it with `_LIMITING`.
_WHOLE: Final = ("$ref", "const", "enum", "anyOf", "oneOf")
_LIMITING: Final = frozenset(
    (*_WHOLE, "type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems")
) | frozenset(("minLength", "maxLength", "minimum", "maximum"))
_KINDS: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}


class _Unknown(Exception):
    """No regular expression can describe the schema."""


def regex_of(schema: Mapping[str, Any]) -> str | None:
    """Return an expression for a schema that `check_schema` accepted; None if the schema cannot be translated. Every
    text that matches is valid for the schema, but not every valid text matches."""
    try:
        found = _Translator(schema).value(schema, 0)
        check_regex(found)
    except (_Unknown, InvalidInput):
        return None
    return found


class _Translator:
    """Translates the parts of one schema, with a limit of the work."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, _MOST_WORK

    def value(self, schema: Any, depth: int) -> str:
        found = self._value(schema, depth)
        self._left -= 1 + len(found)
        if self._left < 0:
            raise _Unknown
        return found

    def _value(self, schema: Any, depth: int) -> str:
        if not isinstance(schema, Mapping) or depth > _DEEPEST or _OTHERS & schema.keys():
            raise _Unknown
        whole = next((key for key in _WHOLE if key in schema), "")
        if whole and (_LIMITING & schema.keys()) - {whole, "type" if whole in ("const", "enum") else whole}:
            raise _Unknown
        if "$ref" in schema:
            return self.value(referred(self._root, schema["$ref"]), depth + 1)
        if "const" in schema or "enum" in schema:
            return _any(map(_literal, _values(schema)))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return _any(self.value(each, depth + 1) for each in schema[key])
        kind = schema.get("type")
        if isinstance(kind, list):
            return _any(self.value({**schema, "type": each}, depth + 1) for each in dict.fromkeys(kind))
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return f'"{_CHARACTER}{_count(schema)}"'
            case "integer":
                return _integer(schema)
            case "number":
                if "minimum" in schema or "maximum" in schema:
                    raise _Unknown
                return _NUMBER
            case "boolean":
                return "(true|false)"
            case "null":
                return "null"
            case _:
                raise _Unknown

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not properties or any(name not in properties for name in required):
            raise _Unknown
        parts = {name: f"{_literal(name)}: {self.value(each, depth + 1)}" for name, each in properties.items()}
        needed = [parts[name] for name in parts if name in required]
        others = [parts[name] for name in parts if name not in required]
        if needed:
            return r"\{" + ", ".join(needed) + "".join(f"(, {each})?" for each in others) + r"\}"
        self._left -= sum(map(len, others)) * len(others)
        if self._left < 0:
            raise _Unknown
        # The first property in a text has no comma before it, and each property may be the first.
        starts = (each + "".join(f"(, {later})?" for later in others[i + 1 :]) for i, each in enumerate(others))
        return r"\{(" + "|".join(starts) + r")?\}"

    def _array(self, schema: Mapping[str, Any], depth: int) -> str:
        item = self.value(schema.get("items"), depth + 1)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if max(least, most or 0) > _MOST_REPEATED:
            raise _Unknown
        if most == 0:
            return r"\[\]"
        more = max(least - 1, 0)
        if most is None:
            rest = f"(, {item}){{{more},}}" if more else f"(, {item})*"
        else:
            rest = f"(, {item}){{{more},{most - 1}}}" if most > 1 else ""
        return rf"\[{item}{rest}\]" if least else rf"\[({item}{rest})?\]"


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values of `const` or `enum` that `type` allows. Raises _Unknown if `type` allows none of them."""
    values, kinds = schema.get("enum", [schema.get("const")]), schema.get("type", [*_KINDS.values()])
    allowed = {kinds} if isinstance(kinds, str) else set(kinds)
    if "number" in allowed:
        allowed.add("integer")
    found = [value for value in values if _KINDS[type(value)] in allowed]
    if not found:
        raise _Unknown
    return found


def _integer(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return _INTEGER
    if low == 0 and high is None:
        return _NATURAL
    if not isinstance(low, int) or not isinstance(high, int) or not 0 <= high - low < _MOST_NUMBERS:
        raise _Unknown
    return _any(map(_literal, range(low, high + 1)))


def _count(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if max(least, most or 0) > _MOST_REPEATED or most == 0:
        raise _Unknown
    if most is None:
        return f"{{{least},}}" if least else "*"
    return f"{{{least},{most}}}"


def _any(found: Iterable[str]) -> str:
    return f"({'|'.join(found)})"


def _literal(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=not str(value).isprintable())
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in text)
